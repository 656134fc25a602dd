"""`potluck peer`: our own trainer, a user of the public face like any other program.

Finds the run, builds the model that its manifest names, trains it on text, says how it goes, and leaves behind
`manifest.toml`, `metrics.jsonl`, `record.jsonl` and `summary.json` (docs/report.md) in the output folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NoReturn

import torch

from aggregation.fragments import Layout
from bootstrap.addresses import is_loopback
from peer import clock
from peer.data import PACKAGED, Batches, Corpus, load_corpus
from peer.evaluation import evaluate
from peer.exit_codes import DONE, FAILED, after
from peer.joining import start
from peer.keeping import snapshot_folder
from peer.member import Peer
from peer.metrics import MetricsLog
from peer.models import Decoder
from peer.network import Network, NetworkFailed, names_of
from peer.newcomer import warm_up
from peer.parameters import ModuleParameters
from peer.progress import Progress
from peer.sealing import build_model, check, planned_layout, seal
from peer.settings import Settings
from peer.signals import ending, handled
from peer.training import InnerConfig, inner_config, make_optimizer, resolve_device, set_threads, train_step
from protocol.errors import UserError
from protocol.manifest import Manifest, sealed
from protocol.manifest_toml import dumps
from protocol.messages import sha256

log = logging.getLogger(__name__)

NOT_FINITE_LIMIT: Final = 20
"""Steps in a row without a finite loss, after which training is given up."""
EVALUATION_TOKENS: Final = 16_384


class Stopper:
    """Set by Ctrl-C, SIGTERM and a closed terminal: the loop ends at its next step, and the peer says goodbye.

    A second signal ends the process at once.
    """

    def __init__(self, last: Callable[[], None] = lambda: None) -> None:
        """`last` is called before a process that does not say goodbye is gone."""
        self._event = threading.Event()
        self._last = last
        self.signal = 0
        """The first signal that came; 0 for none."""

    def __call__(self) -> bool:
        return self._event.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep, unless stopped."""
        self._event.wait(seconds)

    def installed(self) -> AbstractContextManager[None]:
        """Handle the signals while the context lasts."""
        return handled(ending(), self._take)

    def _take(self, number: int, frame: object) -> None:
        if self._event.is_set():
            self._end_at_once(number)
        self.signal = number
        self._event.set()

    def _end_at_once(self, number: int) -> NoReturn:
        """No goodbye, no clean-up. p2pd notices by itself that we are gone."""
        with contextlib.suppress(Exception):
            self._last()
        os._exit(after(number))


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained: the same with and without a swarm."""

    manifest: Manifest
    model: Decoder
    corpus: Corpus
    layout: Layout
    device: torch.device

    @property
    def inner(self) -> InnerConfig:
        """The inner optimizer's numbers, all from the manifest."""
        return inner_config(self.manifest)

    def loss(self) -> float:
        """Nats per token of the model as it is now, on the held-out bytes."""
        sequence = self.manifest.data.sequence
        return evaluate(self.model, self.corpus.validation, sequence=sequence, max_tokens=EVALUATION_TOKENS)


class Reading:
    """A peer's place in its data. What a snapshot keeps of our loop, so that a restart reads on where it was."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.seat = 0
        self.samples = 0
        """Given to training so far from this seat. Samples, not batches: the next life's batch may be another."""

    def next(self, seat: int) -> int:
        """The position of the next batch of this seat, from 0. It counts as read."""
        if seat != self.seat:
            self.seat, self.samples = seat, 0
        position = -(-self.samples // self._batch)
        self.samples = (position + 1) * self._batch
        return position

    def state_dict(self) -> dict[str, int]:
        """See Kept."""
        return {"seat": self.seat, "samples": self.samples}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """See Kept."""
        self.seat, self.samples = state_dict["seat"], state_dict["samples"]


class Alone:
    """`--local-only`: the same training with no swarm and no outer optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int, seat: int) -> None:
        self.own_step = 0
        self.seat = seat
        self._steps = steps
        optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *_: object) -> None:
        self.own_step += 1

    @property
    def finished(self) -> bool:
        return self.own_step >= self._steps


def run_peer(settings: Settings, *, manifest: Manifest | None, run: str | None, data: str | None) -> int:
    """Train as one peer until the run ends or a signal comes; returns the exit code (peer/exit_codes.py).

    UserError for anything that does not fit the run.
    """
    progress = Progress(settings)
    stop = Stopper(progress.release)
    with progress, stop.installed():
        set_threads(settings.threads)
        try:
            if settings.local_only:
                code = _train_alone(settings, manifest, data, progress, stop)
            else:
                code = _train_in_swarm(settings, manifest, run, data, progress, stop)
        except NetworkFailed as error:
            code = FAILED
            progress.notice(f"Stopped: {error}" if not stop() else "Stopped, before this peer had begun.")
        return after(stop.signal) if code == FAILED and stop() else code


def check_text(manifest: Manifest, data: str | None, join: Sequence[str], *, fetched: bool) -> None:
    """UserError for a text that a stranger's manifest must not choose, or that peers elsewhere cannot have."""
    name = manifest.data.name
    if fetched and data is None and name not in PACKAGED:
        raise UserError(f"--data: say where you have the run's text ({name}); it comes with no package")
    elsewhere = [address for address in join if not is_loopback(address)]
    if (name if data is None else data) == "stdlib" and elsewhere:
        raise UserError("--data = 'stdlib': is for swarms on one machine; it differs between versions of Python")


def _prepare(settings: Settings, manifest: Manifest, data: str | None, progress: Progress) -> Job:
    """Say what the run needs, load the text and build the model; UserError if they are not the run's."""
    progress.needs(manifest, planned_layout(manifest))
    corpus = load_corpus(manifest.data.name if data is None else data)
    device = resolve_device(settings.device)
    model = build_model(manifest)
    if manifest.data.sequence > model.config.context:
        right = f"must be at most the context of the model ({model.config.context})"
        raise UserError.field("data.sequence", manifest.data.sequence, right)
    manifest = manifest if sealed(manifest) else seal(manifest, corpus, model)
    layout = check(manifest, model, corpus)
    snapshot_folder(settings, manifest).check_run()
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "manifest.toml").write_text(dumps(manifest))
    return Job(manifest, model.to(device), corpus, layout, device)


def _train_alone(
    settings: Settings, manifest: Manifest | None, data: str | None, progress: Progress, stop: Stopper
) -> int:
    if manifest is None:
        raise UserError("--local-only needs --manifest: there is nobody to ask for one")
    job = _prepare(settings, manifest, data, progress)
    progress.begin(job.manifest, job.layout, None, job.loss())
    optimizer = make_optimizer(job.model, job.inner)
    # Nobody gives out seats: one that follows from our name, so that several who train alone read different text.
    seat = int.from_bytes(sha256(settings.name.encode())[:2], "little")
    alone = Alone(optimizer, job.manifest.run.steps, seat)
    loss = _loop(job, optimizer, alone, Reading(settings.batch), settings, progress, stop)
    progress.end(loss, loss, None, finished=loss is not None)
    return FAILED if loss is None else DONE


def _train_in_swarm(
    settings: Settings,
    manifest: Manifest | None,
    run: str | None,
    data: str | None,
    progress: Progress,
    stop: Stopper,
) -> int:
    network = Network(settings, progress.notice, disk=progress.disk)
    peer: Peer | None = None
    try:
        found = manifest or network.find_manifest(run, stop)
        check_text(found, data, settings.join, fetched=manifest is None)
        job = _prepare(settings, found, data, progress)
        if manifest and settings.join and (others := network.other_runs(job.manifest)):
            progress.notice(
                f"Nobody at these addresses has published the run {names_of([job.manifest])}; there is: "
                f"{names_of(others)}. Starting a run of its own "
                "from the manifest given. Leave --manifest out to join theirs."
            )
        optimizer = make_optimizer(job.model, job.inner)
        tokens = settings.batch * job.manifest.data.sequence
        parameters = ModuleParameters(job.model, job.layout)
        reading = Reading(settings.batch)
        peer = start(network, job.manifest, parameters, optimizer, tokens_per_step=tokens, kept=reading)
        progress.begin(job.manifest, job.layout, peer, job.loss())
        peer.gather(stop)
        local = _loop(job, optimizer, peer, reading, settings, progress, stop)
        done = local is not None and _finish(job, peer, local, progress, stop)
        if not done:
            progress.end(None, None, None, finished=False)
            if stop():
                progress.notice(f"Stopped at step {peer.step}; the swarm goes on without this peer.")
        return DONE if done else FAILED
    finally:
        try:
            if peer:
                peer.close()
        finally:
            network.close()


def _finish(job: Job, peer: Peer, local: float, progress: Progress, stop: Stopper) -> bool:
    """Serve until the others have what we have, then evaluate the outer parameters. False if stopped before.

    `local` is the held-out loss of our own parameters.
    """
    agreed = peer.linger(stop)
    if stop():
        return False
    if not agreed and not peer.alone:
        progress.notice("Not every peer reported the final heads in time.")
    digest = peer.write_outer(ModuleParameters(job.model, job.layout)) if not peer.alone else None
    progress.end(local, job.loss() if digest else None, digest, finished=True)  # alone, they are not the swarm's
    return True


def _loop(
    job: Job,
    optimizer: torch.optim.Optimizer,
    swarm: Peer | Alone,
    reading: Reading,
    settings: Settings,
    progress: Progress,
    stop: Stopper,
) -> float | None:
    """Train until the run ends, and return the held-out loss then; None if it was stopped before."""
    sequence, config = job.manifest.data.sequence, job.inner
    seed, batches = job.manifest.run.seed, dict[int, Batches]()
    not_finite = 0
    if isinstance(swarm, Peer):
        swarm.begin()
    with MetricsLog(settings.out / "metrics.jsonl", trouble=progress.disk) as metrics:
        metrics.write(0, {"val/loss": progress.loss_start})
        while not swarm.finished and not stop():
            began = clock.monotonic()
            if (seat := swarm.seat) not in batches:
                batches = {seat: Batches(job.corpus, seed=seed, seat=seat, batch=settings.batch, sequence=sequence)}
            batch = batches[seat].at(reading.next(seat))
            result = train_step(job.model, optimizer, batch, config, _rate_step(swarm), warm_up=_warm_up(swarm))
            not_finite = not_finite + 1 if result.skipped else 0
            if not_finite >= NOT_FINITE_LIMIT:
                progress.notice(f"The loss was not finite for {NOT_FINITE_LIMIT} steps in a row: giving up.")
                return None
            progress.step(swarm, result, metrics)
            if settings.slowdown > 1:
                stop.pause((clock.monotonic() - began) * (settings.slowdown - 1))
        if not swarm.finished:
            return None
        loss = job.loss()
        metrics.write(swarm.own_step, {"val/loss": loss})
    return loss


def _warm_up(swarm: Peer | Alone) -> float:
    """A newcomer's optimizer is fresh in a run that is not."""
    return warm_up(swarm.own_step) if isinstance(swarm, Peer) and swarm.joined else 1.0


def _rate_step(swarm: Peer | Alone) -> int:
    """The learning rate follows the swarm step, which all peers share, not how fast this machine is."""
    return swarm.step if isinstance(swarm, Peer) else swarm.own_step
