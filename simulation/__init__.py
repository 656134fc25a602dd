"""Whole swarms without a network: virtual links and a virtual clock under the real protocol."""
