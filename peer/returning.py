"""A peer that comes back when its run may be over elsewhere (docs/protocol.md, section 9a).

Training on alone would end in a model that nobody else has. So it looks for last words in the DHT of peers that its own
links name; if there are any, it looks for someone who still has the run's last state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bootstrap.rendezvous import Rendezvous
from peer import clock
from peer.network import CALL_TIMEOUT, Network, NetworkFailed
from peer.outer import Outer
from protocol.farewell import Farewell
from protocol.roster import Neighbour
from protocol.schedule import Schedule

LOOK_EVERY: Final = 0.1
LOOK_TIMEOUT: Final = 10.0
"""Longest wait, in seconds, for news of a run under way at the addresses that we join."""


class RunOver(NetworkFailed):
    """The run has finished without this peer, and nobody who has its last state is here."""


class Returning:
    """Asks once. All coroutines run in the outer thread."""

    def __init__(self, outer: Outer, rendezvous: Rendezvous) -> None:
        self._outer = outer
        self._rendezvous = rendezvous

    async def words(self, seconds: float) -> Farewell | None:
        """The last words of a peer that has finished the run and that our own links name; None if there are none, or
        nobody answers within `seconds`. Anyone can make a key and say that the run is over: such words do not count.
        """
        named = self._outer.node.companions()
        said = [word for word in await self._goodbyes(seconds) if word.key in named]
        for word in said:
            self._outer.node.roster.vanished.pop(word.key, None)  # it did not go without a word
        return max(said, key=lambda word: word.step, default=None)

    async def said_by_anyone(self, seconds: float) -> bool:
        """Whether anyone says to have finished this run lately. For a sentence to the user, and no more."""
        return bool(await self._goodbyes(seconds))

    async def _goodbyes(self, seconds: float) -> list[Farewell]:
        end = clock.monotonic() + seconds
        while not self._rendezvous.asked and clock.monotonic() < end:
            await asyncio.sleep(LOOK_EVERY)
        if not self._rendezvous.joined.is_set():
            return []
        node = self._outer.node
        found = await self._rendezvous.find_farewells(node.ledger.run)
        return [word for word in found if word.finished and word.key != node.roster.key]

    async def company(self) -> bool:
        """Whether someone is here that has said where it is, and trains or holds what others trained."""
        return bool(self._here())

    async def only_holders(self, steps: int) -> bool:
        """Whether everyone who is here has come to the run's last swarm step, or owns without training."""
        return all(peer.record.role == "own" or peer.step >= steps for peer in self._here())

    def _here(self) -> list[Neighbour]:
        roster = self._outer.node.roster
        peers = [roster.neighbours[key] for key in roster.live()]
        return [peer for peer in peers if peer.status and peer.record.role in ("train", "own")]

    async def has_last(self, schedule: Schedule) -> bool:
        """Whether we have what everyone has who is here, and links of the run's last windows prove it to be the end."""
        node = self._outer.node
        dues = [(node.fragment_of[chunk], chain.due) for chunk, chain in enumerate(node.ledger.chains) if chain.newest]
        over = any(schedule.next_due(fragment, due) is None for fragment, due in dues)
        heads = node.ledger.digest()
        return over and all(peer.status is not None and peer.status.heads == heads for peer in self._here())


# The training thread's side


def wait_until(
    network: Network,
    holds: Callable[[], Coroutine[Any, Any, bool]],
    seconds: float,
    over: Callable[[], bool],
) -> bool:
    """Until it holds, at most so long, or until `over()`; whether it does. `holds` is asked in the outer thread."""
    end = clock.monotonic() + seconds
    while not (found := network.call(holds())) and clock.monotonic() < end and not over():
        network.call(asyncio.sleep(LOOK_EVERY))
    return found


def holder_of_the_end(
    network: Network, returning: Returning, *, step: int, folder: Path, over: Callable[[], bool]
) -> bool:
    """Whether the run ended while this peer was away, and someone is here who may have its last state.

    RunOver if it did, and nobody comes within the setting `linger`. Our own state is of `step`, and stays in `folder`.
    """
    word = None
    with suppress(NetworkFailed):  # a DHT that does not answer must not keep us from training
        word = network.call(returning.words(LOOK_TIMEOUT), LOOK_TIMEOUT + CALL_TIMEOUT)
    if word is None:
        return False
    seconds = network.settings.linger
    if not network.call(returning.company()):
        network.notice(
            f"Others have finished this run, and this peer was away. Looking for one who still has its last state, "
            f"at most {seconds:g} s."
        )
    here = wait_until(network, returning.company, seconds, over)
    if not here and not over():
        raise RunOver(
            "this run has finished without this peer, and nobody who has its last state is here. Training on alone "
            f"would make another model; the state of step {step} stays in {folder}. To "
            f"get the last one, start this peer again, and within {seconds:g} s one that finished."
        )
    return here
