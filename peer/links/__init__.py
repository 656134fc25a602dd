"""Emulated links for a local swarm: proxies in front of its processes that delay, throttle, lose and cut."""
