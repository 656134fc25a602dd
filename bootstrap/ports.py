"""Whether a TCP port is free, asked before p2pd listens on it.

libp2p listens with SO_REUSEPORT: a second daemon on a used port starts without an error, and the kernel then hands each
of them half of the connections.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from protocol.errors import UserError


def require_free(listen: Iterable[str]) -> None:
    """UserError if a port that `listen` (TCP multiaddresses) names is in use. Port 0 takes any free one."""
    for address in listen:
        _, kind, host, _, port = address.split("/")
        if kind in ("ip4", "ip6") and int(port):
            _try(address, socket.AF_INET if kind == "ip4" else socket.AF_INET6, host, int(port))


def _try(address: str, family: socket.AddressFamily, host: str, port: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without this, connections in TIME_WAIT count as use; a listener counts with it too.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                right = "the port is in use; stop what listens there, or choose another (0 takes a free one)"
            else:
                right = f"cannot listen there: {error.strerror}"
            raise UserError.field("listen", address, right) from error
