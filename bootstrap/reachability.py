"""Whether others can dial this peer: it asks the nodes that it joins through, and they try (docs/protocol.md, 6).

What it finds decides which addresses it announces, and so whether it owns chunks. The side that is asked is
bootstrap/dial_back.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from bootstrap.addresses import distance, host_of, is_loopback, join_address, port_of, usable, with_peer
from bootstrap.daemon import Daemon, DaemonError
from bootstrap.dial_back import ASK_TIMEOUT, MAX_PORTS, PROTOCOL, Answer, Question, framed, read
from bootstrap.identity import peer_id
from protocol.errors import ProtocolError

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 15.0
"""Seconds between two looks at our own addresses: a laptop moves."""
ASK_EVERY: Final = 900.0
"""Seconds between two questions while nothing seems to change."""
MAX_ASKED: Final = 4
"""Of the addresses that the user gave, and of the cached ones, so many are asked at once."""

Kind = Literal["reachable", "closed", "unknown", "unasked"]


@dataclass(frozen=True)
class Reachability:
    """What is known: `addresses` (with our peer id, most useful first) are those that others shall dial."""

    kind: Kind
    addresses: tuple[str, ...]
    seen_as: str = ""
    """Our address as others see it."""

    def sentence(self) -> str:
        """For the user; empty if there was nothing to ask."""
        if self.kind == "unasked":
            return ""
        if self.kind == "reachable":
            return f"Others can dial this peer at {self.addresses[0].partition('/p2p/')[0]}: it owns chunks as well."
        if self.kind == "closed":
            return (
                f"Others cannot dial this peer (they see it as {self.seen_as}; NAT or a firewall): it contributes and "
                "receives over the connections that it opens, and owns nothing."
            )
        return "Nobody who could tell whether others can dial this peer has answered yet; asking again later."


async def find_out(daemon: Daemon, join: Sequence[str], cached: Sequence[str] = ()) -> Reachability:
    """Ask some of the nodes at these full addresses where we can be dialled; at most about `ASK_TIMEOUT` seconds.

    `join` is what the user gave; it also says what is worth announcing while nobody knows. A swarm on one machine needs
    no asking. UserError for a malformed address, DaemonError if p2pd does not tell its own.
    """
    own = await daemon.addresses()
    asked = list(dict.fromkeys([*join[:MAX_ASKED], *cached[:MAX_ASKED]]))
    others = [address for address in asked if join_address(address)[0] != daemon.key]
    if all(map(is_loopback, others or own)):
        return Reachability("unasked", tuple(usable(own, join)))
    announce = daemon.options.announce
    ports = tuple(dict.fromkeys(map(port_of, announce or own)))[:MAX_PORTS]
    found = await asyncio.gather(*(ask(daemon, address, ports) for address in others))
    answers = list(zip(others, found, strict=True))
    given = [answer for address, answer in answers if answer and address in join]
    met = [answer for address, answer in answers if answer and address not in join]
    return judge(given, usable(own, join), announce, daemon.key, cached=met)


async def ask(daemon: Daemon, address: str, ports: Sequence[int]) -> Answer | None:
    """One node's answer; None if it does not answer, is too busy, or talks nonsense."""
    key, part = join_address(address)
    try:
        async with asyncio.timeout(ASK_TIMEOUT):
            await daemon.connect(key, [part], ASK_TIMEOUT)
            reader, writer = await daemon.open_stream(key, PROTOCOL, ASK_TIMEOUT)
            try:
                writer.write(framed(Question(1, tuple(ports))))
                answer = msgspec.msgpack.decode(await read(reader), type=Answer)
            finally:
                writer.transport.abort()
        host = host_of(_address(answer.host, 1))
    except (DaemonError, msgspec.MsgspecError, OSError, EOFError, ValueError, ProtocolError) as error:
        log.debug("%s does not tell whether we can be dialled: %r", peer_id(key), error)
        return None
    # What is no address here (a zone may hold anything) must not reach a terminal or a record of ours.
    return msgspec.structs.replace(answer, host=host) if host and set(answer.open) <= set(ports) else None


def judge(
    given: Sequence[Answer], own: Sequence[str], announce: Sequence[str], key: bytes, *, cached: Sequence[Answer] = ()
) -> Reachability:
    """What the answers together mean: of nodes that the user named, and of `cached` ones, which may be anyone's.

    What the user announces is tested where it is the address that was seen, or a name; elsewhere the user is believed.
    """
    believed = _believed(given, cached)
    if not believed:
        return Reachability("unknown", tuple(own))
    hosts = {answer.host for answer in believed}
    open_at = [_address(answer.host, port) for answer in believed for port in answer.open]
    if announce:
        tested = [address for address in announce if not _is_number(address) or host_of(address) in hosts]
        ports = {port_of(address) for address in open_at}
        good = [address for address in tested if port_of(address) in ports]
        if not good and len(tested) < len(announce):
            return Reachability("unknown", tuple(with_peer(a, key) for a in announce if a not in tested))
        open_at = good
    addresses = tuple(with_peer(address, key) for address in dict.fromkeys(open_at))
    return Reachability("reachable" if addresses else "closed", addresses, ", ".join(sorted(hosts)))


def _believed(given: Sequence[Answer], cached: Sequence[Answer]) -> list[Answer]:
    """Those who see us from furthest away count: a neighbour in our own network can dial what the world cannot.

    Where none of these was named by the user, it takes most of them, and two if anyone named has answered: one liar
    among the peers that we met once must not make us announce an address that is not ours.
    """
    if not given and not cached:
        return []
    by_distance: dict[int, list[Answer]] = {}
    for answer in [*given, *cached]:
        by_distance.setdefault(distance(_address(answer.host, 1)), []).append(answer)
    furthest = by_distance[min(by_distance)]
    if named := [answer for answer in furthest if answer in given]:
        return named
    ((host, votes),) = Counter(answer.host for answer in furthest).most_common(1)
    if votes < 2 and given:
        return _believed(given, ())
    return [answer for answer in furthest if answer.host == host]


def _address(host: str, port: int) -> str:
    return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"


def _is_number(address: str) -> bool:
    return address.startswith("/ip")


async def watch(
    daemon: Daemon,
    held: Reachability,
    ask_again: Callable[[], Awaitable[Reachability]],
    changed: Callable[[Reachability], None],
    *,
    look: float = LOOK_EVERY,
    again: float = ASK_EVERY,
) -> None:
    """For ever: every `look` seconds see whether our own addresses have changed, and every `again` seconds, or then, or
    while nobody has known (with growing pauses), ask. `changed` is called when the answer is another, twice the same.
    """
    own, since, pause = await _own(daemon), 0.0, look
    while True:
        await asyncio.sleep(look)
        since += look
        before, own = own, await _own(daemon) or own
        due = pause if held.kind == "unknown" else again
        if since < due and own == before:
            continue
        since, pause = 0.0, min(2 * pause, again)
        with suppress(DaemonError):
            found = await ask_again()
            # One answer may be an accident; a change costs everyone a new order of the owners.
            if found.kind != "unknown" and found != held and await ask_again() == found:
                held = found
                changed(found)


async def _own(daemon: Daemon) -> list[str]:
    try:
        return await daemon.addresses()
    except DaemonError:
        return []
