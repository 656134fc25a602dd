"""What a local swarm starts: which processes, with which command lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.commands.faults import Faults


@dataclass(frozen=True, kw_only=True)
class SwarmPlan:
    """What to start. The manifest is a file, so that all processes read the same."""

    out: Path
    manifest: Path
    num_peers: int
    data: str | None = None
    lockstep: bool = False
    local_only: bool = False
    snapshot_every: int | None = None
    snapshots_kept: int | None = None
    faults: Faults = field(default_factory=Faults)

    def folder(self, peer: int) -> Path:
        """Where a peer keeps everything."""
        return self.out / f"peer-{peer}"

    def bootstrap_arguments(self, link: Sequence[str] = ()) -> list[str]:
        """The command line of the entry node. `link` are its flags if it is behind a proxy."""
        identity = self.out / "bootstrap" / "identity"
        flags = ["--manifest", str(self.manifest), "--identity", str(identity)]
        return ["bootstrap", "--json", *flags, *(link or ("--listen", "/ip4/127.0.0.1/tcp/0"))]

    def peer_arguments(self, peer: int, join: Sequence[str], link: Sequence[str] = ()) -> list[str]:
        """The command line of a peer. `link` are its flags if it is behind a proxy."""
        flags = ["--manifest", str(self.manifest), "--out", str(self.folder(peer)), "--name", f"peer-{peer}"]
        flags += ["--threads", "1", "--device", "cpu", "--slowdown", str(self.faults.slowdown(peer))]
        flags += ["--data", self.data] if self.data else []
        for flag, value in (("--snapshot-every", self.snapshot_every), ("--snapshots-kept", self.snapshots_kept)):
            flags += [flag, str(value)] if value is not None else []
        flags += ["--lockstep"] if self.lockstep else []
        flags += ["--local-only"] if self.local_only else ["--join", *join]
        return ["peer", "--json", *flags, *link]
