"""Addresses of peers met before, in a small JSON file: the way back into a swarm whose bootstrap server is down."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from bootstrap.addresses import join_address
from protocol.errors import UserError

log = logging.getLogger(__name__)

MAX_PEERS = 64
_MAX_FILE_BYTES = 64 * 1024


class PeerCache:
    """At most MAX_PEERS full addresses, the latest met first. A file that is missing or damaged counts as empty."""

    def __init__(self, path: Path, trouble: Callable[[OSError], None] | None = None) -> None:
        """`trouble` hears of every time that the file cannot be written; without it, the first is a line in the log."""
        self._path = path
        self._trouble = trouble or self._warn_once
        self._warned = False
        self.addresses: tuple[str, ...] = _read(path)

    def remember(self, addresses: Iterable[str]) -> None:
        """Put `addresses` (each with its /p2p/ peer id) first, and write the file if that changes the set."""
        merged = tuple(dict.fromkeys([*addresses, *self.addresses]))[:MAX_PEERS]
        changed = set(merged) != set(self.addresses)
        self.addresses = merged
        if changed:
            self._write()

    def _write(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"version": 1, "peers": self.addresses}, indent=1))
            temporary.replace(self._path)
        except OSError as error:
            # The cache is a convenience: a full disk must not stop a peer.
            self._trouble(error)

    def _warn_once(self, error: OSError) -> None:
        if not self._warned:
            log.warning("cannot write the cached peers to %s: %s", self._path, error)
        self._warned = True


def _read(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_FILE_BYTES))
        return tuple(address for address in content["peers"][:MAX_PEERS] if _is_usable(address))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("cached peers in %s are ignored: %s", path, error)
        return ()


def _is_usable(address: object) -> bool:
    try:
        return isinstance(address, str) and bool(join_address(address))
    except UserError:
        return False
