"""What a peer says about itself while it trains: rows for people or programs, and `summary.json` for the report.

The summary is written whole every two seconds, so a peer that is killed leaves its last one behind. A disk that is full
costs summaries, and one notice.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Any, Final, Self

from aggregation.codecs import codec
from aggregation.fragments import Layout
from peer import clock
from peer.console import Console, PeerRow
from peer.disk import DiskTrouble, write_atomically
from peer.lives import earlier_lives, together
from peer.member import Peer
from peer.metrics import MetricsLog
from peer.output import write_line
from peer.quantities import announce_needs
from peer.record import WindowCounts
from peer.sealing import chunks_of
from peer.settings import Settings
from peer.training import StepResult
from protocol.manifest import Manifest, run_id, schedule_of

ROW_EVERY: Final = 0.2
SUMMARY_EVERY: Final = 2.0
METRICS_EVERY: Final = 10
"""Inner steps."""


FEWEST_ROUNDS: Final = 3
"""With fewer in a run, a peer says so."""


class Progress:
    """One peer's voice. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._console = None if settings.json else Console()
        self.disk = DiskTrouble(settings.out, self.notice, self._incomplete)
        """Told of every file of this peer that could not be written."""
        self._rows = self._summaries = 0.0
        self._peer: Peer | None = None
        self._tokens = 0
        self._train_losses: list[float] = []
        self._began = 0.0
        self._model: dict[str, Any] = {}
        self._earlier: dict[str, Any] = {}
        self._run = ""
        self.loss_start = math.nan
        """Nats per token on the held-out bytes before the first step."""
        self._ending: dict[str, Any] = {"exit": "running", "outer_digest": None, "loss_end": None, "local": None}

    def notice(self, text: str) -> None:
        """A sentence for the user."""
        if self._console:
            self._console.event(text)
        else:
            self._line(event="notice", text=text)

    def _incomplete(self) -> None:
        """Lines are lost: who reads the files later (`potluck swarm`) must know, even if we are killed."""
        if not self._console:
            self._line(event="incomplete")

    def needs(self, manifest: Manifest, layout: Layout) -> None:
        """Before anything big is allocated: what this will take."""
        text = _needs(manifest, layout, alone=self._settings.local_only)
        if self._console:
            self._console.event(text)
        else:
            self._line(event="needs", text=text)

    def begin(self, manifest: Manifest, layout: Layout, peer: Peer | None, loss: float) -> None:
        """Before the first step: say who we are."""
        self._peer, self.loss_start = peer, loss
        self._began = clock.monotonic()
        self._model = _model(manifest, layout)
        self._run = run_id(manifest).hex()
        self._earlier = earlier_lives(self._settings.out / "summary.json", self._run)
        addresses = list(peer.outer.addresses) if peer else []
        if self._console:
            if peer:
                self._console.event(f"This peer is {peer.peer_id}.")
                if addresses:
                    self._console.event(f"Others can join through it too: --join {addresses[0]}")
        else:
            daemon = peer.network.daemon.pid if peer else None
            name = peer.peer_id if peer else self._settings.name
            self._line(event="start", peer_id=name, pid=os.getpid(), daemon_pid=daemon, addresses=addresses)
        self._write_summary()

    def step(self, swarm: Any, result: StepResult, metrics: MetricsLog) -> None:
        """After an inner step."""
        now = clock.monotonic()
        self._tokens += result.tokens
        if math.isfinite(result.loss):
            self._train_losses = [*self._train_losses[:1], result.loss]
        if swarm.own_step % METRICS_EVERY == 1:
            values = {"train/loss": result.loss, "train/grad_norm": result.grad_norm, "train/tokens": self._tokens}
            metrics.write(swarm.own_step, values)
        if now >= self._rows + ROW_EVERY or swarm.finished:
            self._rows = now
            self._row(swarm, result.loss)
        if now >= self._summaries + SUMMARY_EVERY:
            self._summaries = now
            self._write_summary()

    def _row(self, swarm: Any, loss: float) -> None:
        counts = self._counts()
        sent, received = self._bytes()
        row = PeerRow(
            peer=self._settings.name,
            step=getattr(swarm, "step", swarm.own_step),
            loss=loss,
            tokens_per_second=self._tokens / max(self._seconds()["total"] or 0.0, 1e-3),
            merged=counts.merged,
            late=counts.late,
            skipped=counts.skipped,
            bytes_sent=sent,
            bytes_received=received,
            utilization=self._utilization(),
        )
        if self._console:
            self._console.update(row)
        else:
            values = {name: getattr(row, name) for name in PeerRow.__dataclass_fields__ if name != "peer"}
            values["loss"] = _finite(loss)
            self._line(event="row", inner_step=swarm.own_step, **values)

    def end(self, local: float | None, outer: float | None, digest: bytes | None, *, finished: bool) -> None:
        """The run is over for this peer. `local` and `outer` are losses on the held-out bytes, None if not known."""
        self._ending = {
            "exit": "finished" if finished else "failed",
            "outer_digest": digest.hex() if digest else None,
            "loss_end": outer,
            "local": local,
        }
        self._write_summary()
        if self._console and local is not None:
            gap = f" The outer parameters have {outer:.3f}." if outer is not None and digest else ""
            text = f"Held-out loss {self.loss_start:.3f} at the start, {local:.3f} now (nats per token).{gap}"
            self._console.event(text)
        elif not self._console:
            self._line(event="end", exit=self._ending["exit"], outer_digest=self._ending["outer_digest"])

    # What the report reads

    def summary(self) -> dict[str, Any]:
        """This peer's entry (docs/report.md), over all its lives in this folder."""
        peer = self._peer
        counts, (sent, received) = self._counts(), self._bytes()
        losses = self._train_losses
        summary = {
            "peer_id": peer.peer_id if peer else self._settings.name,
            "run": self._run,
            "exit": self._ending["exit"],
            "inner_steps": peer.own_step if peer else self._tokens // max(1, self._step_tokens()),
            "tokens": peer.tokens if peer else self._tokens,
            "train_loss_first": losses[0] if losses else None,
            "train_loss_last": losses[-1] if losses else None,
            "windows": {name: getattr(counts, name) for name in WindowCounts.__dataclass_fields__},
            "bytes_sent": sent,
            "bytes_received": received,
            "seconds": self._seconds(),
            "utilization": self._utilization(),
            "outer_digest": self._ending["outer_digest"],
            "record_lost": peer.record.lost if peer else 0,
            "joined": self._joined(),
            "evaluation": {
                "outer_loss_start": _finite(self.loss_start),
                "outer_loss_end": _finite(self._ending["loss_end"]),
                "local_loss_end": _finite(self._ending["local"]),
            },
            "traffic": self._traffic(),
            "model": self._model,
        }
        return together(self._earlier, summary)

    def _joined(self) -> dict[str, Any] | None:
        """How a newcomer came in; None for who was there from the start."""
        peer = self._peer
        if not peer or not peer.joined:
            return None
        first = peer.outer.first_contribution
        return {"seconds": first - peer.network.started if first else None, **asdict(peer.joined)}

    def _step_tokens(self) -> int:
        return self._settings.batch * int(self._model.get("sequence", 1))

    def _seconds(self) -> dict[str, float | None]:
        if not self._peer:
            total = clock.monotonic() - self._began if self._began else 0.0
            return {"total": total, "training": total, "waiting": 0.0, "wait_max": 0.0, "merge_wait": None, "hook": 0.0}
        times = self._peer.times
        total = times.total  # once: it reads the clock
        return {
            "total": total,
            "training": total - times.waiting,
            "waiting": times.waiting,
            "wait_max": times.wait_max,
            "merge_wait": max(times.allowed, self._peer.merge_wait),
            "hook": times.hook,
        }

    def _utilization(self) -> float:
        """The share of the time since the first step in which training did not wait for the network."""
        seconds = self._seconds()
        total, training = seconds["total"] or 0.0, seconds["training"] or 0.0
        return training / total if total > 0 else 1.0

    def _counts(self) -> WindowCounts:
        if not self._peer:
            return WindowCounts()
        over = self._ending["exit"] != "running"
        return self._peer.record.counts(None if over else self._peer.own_step)

    def _bytes(self) -> tuple[int, int]:
        if not self._peer:
            return 0, 0
        traffic = self._peer.outer.transport.traffic
        return traffic.written.total(), traffic.read.total()

    def _traffic(self) -> dict[str, int]:
        if not self._peer:
            return {"payload_bytes": 0, "bytes_on_wire": 0, "repair_bytes": 0, "dht_bytes": 0, "peak_window_bytes": 0}
        outer = self._peer.outer
        written = outer.transport.traffic.written
        return {
            "payload_bytes": outer.window_bytes.total,
            "bytes_on_wire": written.total() - written["repair"],
            "repair_bytes": written["repair"],
            "dht_bytes": outer.dht_bytes,
            "peak_window_bytes": outer.window_bytes.peak,
        }

    def _write_summary(self) -> None:
        text = json.dumps(self.summary(), indent=1, allow_nan=False)
        try:
            write_atomically(self._settings.out / "summary.json", text)
        except OSError as error:
            self.disk(error)

    def release(self) -> None:
        """The process is about to end without a last word: leave the terminal as it was."""
        if self._console:
            self._console.release()

    def _line(self, **values: Any) -> None:
        """One JSON line on stdout. A reader that is gone means that nobody waits for us: stop."""
        write_line(sys.stdout, json.dumps(values))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ending["exit"] == "running" and self._model:
            self._ending["exit"] = "failed"
            self._write_summary()
        if self._console:
            self._console.close()


def _finite(value: float | None) -> float | None:
    """The value; None where JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None


def _model(manifest: Manifest, layout: Layout) -> dict[str, Any]:
    offsets = schedule_of(manifest).offsets
    return {
        "parameters": layout.numel,
        "fragments": [
            {"index": f.index, "parameters": f.numel, "offset": offsets[f.index], "names": list(f.names)}
            for f in layout.fragments
        ],
        "chunks": len(chunks_of(manifest, layout)),
        "sequence": manifest.data.sequence,
    }


def _needs(manifest: Manifest, layout: Layout, *, alone: bool) -> str:
    section, peers = manifest.codec, max(2, manifest.run.start_peers)
    codecs = [codec(name, section.block) for name in (section.contributions, section.results)]
    packed = sum(one.packed_bytes(chunk.numel) for chunk in chunks_of(manifest, layout) for one in codecs)
    a_round = 0 if alone else packed * (peers - 1) // peers
    text = announce_needs(
        parameters=layout.numel,
        largest_fragment=max(fragment.numel for fragment in layout.fragments),
        sent_per_round=a_round,
        received_per_round=a_round,
    )
    return text if alone else "\n".join([text, *_few_rounds(manifest)])


def _few_rounds(manifest: Manifest) -> Iterator[str]:
    """A warning where a run is hardly longer than a round: its peers would train apart, and nothing would say so."""
    steps, rounds = manifest.run.steps, manifest.schedule.sync_every
    times = max(0, steps - manifest.schedule.overlap) // rounds
    if times < FEWEST_ROUNDS:
        often = "never" if not times else "once" if times == 1 else f"{times} times"
        yield f"In {steps} steps each fragment is averaged {often}: schedule.sync_every = {rounds} is for longer runs."
