"""One volunteer: its event loop, trainer, data, console and command line."""
