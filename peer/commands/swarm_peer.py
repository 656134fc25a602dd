"""One peer of a local swarm as its parent sees it, over all its lives."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from peer.commands.faults import Restart
from peer.commands.processes import Child
from peer.commands.records import read_summary
from peer.commands.report import Life
from peer.commands.report_format import Exit
from peer.exit_codes import DONE, TERMINATED

_ENDED_WELL: Final = (DONE, TERMINATED, -signal.SIGTERM)
"""Exit codes of a peer that has said that it finished. Our own SIGTERM may reach it while it tidies up."""


@dataclass
class PeerState:
    """What is known of a peer. A life is one process; a restart begins the next one."""

    index: int
    folder: Path
    child: Child | None = None
    """Its process, or the one before if it is to be started again; None until it is started first."""
    peer_id: str = ""
    step: int = 0
    """The swarm step that it last reported, in this life."""
    inner_step: int = 0
    finished: bool = False
    ended_itself: bool = False
    """It said that it ends, finished or not."""
    killed: bool = False
    leaving: bool = False
    frozen: bool = False
    started: bool = False
    """It has told who it is, in this life."""
    incomplete: bool = False
    """It could not write all of its files, by its own words."""
    returning: Restart | None = None
    """Set from the kill until the process is started again."""
    over: bool = False
    """It will not be started again, or never at all."""
    lives: list[Life] = field(default_factory=list)

    def begin_life(self, child: Child) -> None:
        """A process was started."""
        self.child, self.returning = child, None
        self.step = self.inner_step = 0
        self.started = self.finished = self.ended_itself = False
        self.lives.append(Life(since=None))

    @property
    def running(self) -> bool:
        """Whether its process is there, as far as we know, and nobody has killed it."""
        return self.child is not None and self.child.returncode is None and not self.killed and not self.returning

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself at the run's end."""
        if self.child is None or self.child.returncode not in _ENDED_WELL:
            return False
        # A swarm that was stopped has perhaps not read the peer's last line; the summary was written before it.
        summary = None if self.finished else read_summary(self.folder)
        return self.finished or (summary is not None and summary.exit == "finished")

    @property
    def left(self) -> bool:
        """Whether it ended in order when it was told to, by whatever exit code says so."""
        code = self.child.returncode if self.child else None
        return self.leaving and self.ended_itself and code is not None and code >= 0

    @property
    def exit(self) -> Exit:
        """How its last life ended."""
        if self.killed:
            return "killed"
        if self.succeeded:
            return "finished"
        return "left" if self.left else "failed"

    @property
    def whereabouts(self) -> str:
        """Where it is, for whoever wonders why nothing moves."""
        if self.child is None:
            return "was not to be started yet"
        if self.killed:
            return f"was killed at step {self.step}"
        if self.child.returncode is not None:
            return f"ended with exit code {self.child.returncode} at step {self.step}"
        if self.finished:
            return "has finished and serves the others"
        if self.step:
            return f"trains, at step {self.step}"
        return "waits for its first step" if self.started else "has not come up"
