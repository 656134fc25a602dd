"""The public face: a model and an optimizer become a peer of a swarm.

    with potluck.join(model, optimizer, manifest=manifest, tokens_per_step=1024) as peer:
        while not peer.finished:
            loss = ...
            loss.backward()
            optimizer.step()        # the hook does the rest
            optimizer.zero_grad()

The hook runs after each optimizer step, in the training thread: it snapshots fragments that are due and mixes anchors
that have come. It never waits for the network, except where the manifest asks for τ = 0 (at most `merge_wait`) and in
lock-step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from peer.keeping import snapshot_folder
from peer.manifest_file import read_manifest
from peer.member import Peer
from peer.network import Network
from peer.parameters import ModuleParameters, Parameters
from peer.sealing import Patterns, check, layout_of, seal
from peer.settings import Settings, from_environment
from peer.snapshots import Kept
from protocol.manifest import Manifest, sealed

log = logging.getLogger(__name__)


def start(
    network: Network,
    manifest: Manifest,
    parameters: Parameters,
    optimizer: torch.optim.Optimizer,
    *,
    tokens_per_step: int,
    kept: Kept | None = None,
) -> Peer:
    """A peer on a network that is up already, with a sealed manifest that fits the model and a folder of no other run
    (`SnapshotFolder.check_run`)."""
    return Peer(network, manifest, parameters, optimizer, tokens_per_step=tokens_per_step, kept=kept)


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    tokens_per_step: int,
    manifest: Manifest | str | Path | None = None,
    run: str | None = None,
    settings: Settings | None = None,
    parameters: Parameters | None = None,
    patterns: Patterns = (),
    kept: Kept | None = None,
    notice: Callable[[str], None] = log.info,
) -> Peer:
    """Join a run with a model of your own. Returns a context manager; see this module's first lines.

    `manifest` is a manifest or the path of its TOML file; without one it is asked for at `settings.join` (`run` names
    it if there are several), for as long as nobody there has it. An unsealed manifest is sealed with this model.
    `tokens_per_step` weighs this peer's contributions. `parameters` reads and writes a model that is not one module in
    one process. `patterns`, one list of globs over parameter names for each fragment, cuts the model by hand; all peers
    of the run must give the same. `kept`, an object with `state_dict` and `load_state_dict`, is what your loop wants
    back after a restart, such as its place in the data. Raises UserError for anything that does not fit the run,
    NetworkFailed if the network cannot be started.
    """
    settings = settings or from_environment()
    known = read_manifest(Path(manifest)) if isinstance(manifest, str | Path) else manifest
    if known:
        known = _sealed_for(known, model, patterns)  # before any process is started
    network = Network(settings, notice)
    try:
        found = known or _sealed_for(network.find_manifest(run), model, patterns)
        parameters = parameters or ModuleParameters(model, layout_of(found, model, patterns))
        snapshot_folder(settings, found).check_run()
        return start(network, found, parameters, optimizer, tokens_per_step=tokens_per_step, kept=kept)
    except BaseException:
        network.close()
        raise


def _sealed_for(manifest: Manifest, model: nn.Module, patterns: Patterns) -> Manifest:
    """The manifest, sealed if it was not; UserError unless `model` is the one that it fixes."""
    manifest = manifest if sealed(manifest) else seal(manifest, None, model, patterns)
    check(manifest, model, None, patterns)
    return manifest
