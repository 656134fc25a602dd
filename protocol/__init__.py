"""What every peer must agree on: pure rules and messages, without I/O, clock or randomness."""
