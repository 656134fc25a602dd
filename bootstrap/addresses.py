"""Peer addresses: libp2p multiaddresses over TCP that end in the peer's id, `/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from bootstrap.identity import key_of, peer_id
from protocol.errors import ProtocolError, UserError

_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.IGNORECASE | re.ASCII)
_LOOPBACK = 2
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


def join_address(address: str) -> tuple[bytes, str]:
    """(peer key, dialable part) of an address that a user gave. UserError says what would be right."""
    right = "must look like /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…, as `potluck bootstrap` prints it"
    dialable, _, name = address.partition("/p2p/")
    if not name or not is_dialable(dialable):
        raise UserError.field("join", address, right)
    try:
        return key_of(name), dialable
    except ProtocolError as error:
        raise UserError.field("join", address, f"{right} ({error})") from error


def with_peer(address: str, key: bytes) -> str:
    """`address` with the peer id of `key` at its end, in place of any other."""
    return f"{address.partition('/p2p/')[0]}/p2p/{peer_id(key)}"


def dialable(addresses: Iterable[str]) -> list[str]:
    """Those of `addresses` that we may dial (TCP, nothing else), without their peer ids, duplicates dropped."""
    parts = (address.partition("/p2p/")[0] for address in addresses)
    return [part for part in dict.fromkeys(parts) if is_dialable(part)]


def is_dialable(address: str) -> bool:
    """Whether `address` is a host and a TCP port and nothing more.

    QUIC is never dialled: it is slower, it loses the tail when a side closes, and p2pd's version of it can be made to
    exhaust memory.
    """
    parts = address.split("/")
    if len(parts) != 5 or parts[0] or parts[1] not in _HOSTS or parts[3] != "tcp":
        return False
    return _is_host(parts[1], parts[2]) and parts[4].isdecimal() and parts[4].isascii() and 0 <= int(parts[4]) < 2**16


def most_useful_first(addresses: Iterable[str]) -> list[str]:
    """Global addresses, then private ones, then loopback."""
    return sorted(addresses, key=distance)


def usable(addresses: list[str], join: Sequence[str]) -> list[str]:
    """Those of our own addresses that others of the swarm can be expected to dial.

    Who joins through a public address meets peers from anywhere, so its loopback and private addresses help nobody;
    in a swarm on one machine or one local network they do. With nobody to join through, all but loopback, which a peer
    on this machine does not need either, unless there is nothing else.
    """
    needed = min((distance(address) for address in join), default=1)
    found = [address for address in addresses if distance(address) <= needed]
    return found or ([] if join else addresses)


def is_loopback(address: str) -> bool:
    """Whether the address means this machine only."""
    return distance(address) == _LOOPBACK


def _is_host(kind: str, host: str) -> bool:
    if kind.startswith("dns"):
        return _NAME.fullmatch(host) is not None
    try:
        # A zone ("fe80::1%eth0") means something on one machine only.
        return "%" not in host and ipaddress.ip_address(host).version == int(kind[2])
    except ValueError:
        return False


def host_of(address: str) -> str:
    """The IP address in a multiaddress, canonically written; empty if there is none, or if it leads over a relay."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts or not _is_host(parts[1], parts[2]):
        return ""
    return str(ipaddress.ip_address(parts[2]))


def port_of(address: str) -> int:
    """The TCP port of an address that `is_dialable`."""
    return int(address.split("/")[4])


def distance(address: str) -> int:
    """From how far an address can be meant to be dialled: 0 anywhere, 1 a private network, 2 this machine."""
    _, kind, host, *_ = address.split("/")
    if kind.startswith("dns"):
        return 0
    ip = ipaddress.ip_address(host)
    # Carriers' shared addresses (100.64.0.0/10) are neither global nor called private.
    return _LOOPBACK if ip.is_loopback else 0 if ip.is_global else 1
