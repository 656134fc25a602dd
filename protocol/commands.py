"""What the state machines command: frames to send, and what is to be written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.messages import Contribution, LinkMessage, Message
from protocol.schedule import Window

START_AGAIN: Final = 1 << 30
"""As `Settled.links`: mix so often that nothing is left of the local parameters (but with α = 1)."""


@dataclass(frozen=True, slots=True)
class Send:
    """Command: a frame to a peer (possibly ourselves)."""

    to: bytes
    message: Message
    bulk: bytes = b""
    repair: bool = False
    """Whether this is repair traffic: lowest priority, counted apart."""


@dataclass(frozen=True, slots=True)
class Close:
    """Command: adopt this link of ours and send it to everyone live and to `also`."""

    message: LinkMessage
    payload: bytes
    also: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Contributed:
    """Command: write down that this contribution of ours is on its way."""

    contribution: Contribution
    payload: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """Command: write down that this chunk's window ended without a link that we know of, and why."""

    chunk: int
    due: int
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Command: the chunk's anchor moved; hand the newest one to the trainer.

    `mix` is False for a link that only replaced its sibling: the anchor moves, the parameters do not. A `due` of 0 is
    that of no window: mixed at once.
    """

    chunk: int
    due: int
    links: int
    mix: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """Command: the trainer should open this window at its next step boundary."""

    window: Window


@dataclass(frozen=True, slots=True)
class Retry:
    """Command: the trainer should hand over another snapshot for this window at its next step boundary.

    For the chunks that nobody has closed; the node knows which.
    """

    window: Window
