"""`potluck peer`: from flags, environment and manifest to a running peer."""

from __future__ import annotations

from typing import Any

from peer.commands.options import PeerOptions
from peer.commands.places import usable_folder
from peer.manifest_file import read_manifest
from peer.settings import Settings, from_environment, host_name
from protocol.errors import UserError


def run_volunteer(options: PeerOptions) -> int:
    """Run one peer until its run ends; the exit code. UserError for flags that are not right."""
    settings = peer_settings(options)
    manifest = read_manifest(options.manifest) if options.manifest else None
    if settings.local_only and manifest is None:
        raise UserError("--local-only: nobody to fetch a manifest from; needs --manifest")
    if not settings.local_only and not settings.join:
        raise UserError("--join: needs the address of a bootstrap server or peer, as `potluck bootstrap` prints it")

    from peer.data import require_text
    from peer.trainer import run_peer

    if options.data is not None:
        require_text(options.data)
    usable_folder("--out", settings.out)
    return run_peer(settings, manifest=manifest, run=options.run, data=options.data)


def peer_settings(options: PeerOptions) -> Settings:
    """Flags over POTLUCK_* variables over defaults. Without a name, a peer is known by its machine's."""
    flags: dict[str, Any] = {
        "name": options.name,
        "out": options.out,
        "batch": options.batch,
        "threads": options.threads,
        "device": options.device,
        "upload_mbit": options.upload,
        "give_mbit": options.give,
        "merge_wait": options.merge_wait,
        "linger": options.linger,
        "snapshot_every": options.snapshot_every,
        "snapshots_kept": options.snapshots_kept,
        "listen": options.listen,
        "announce": options.announce,
        "json": options.json,
        "lockstep": options.lockstep,
        "slowdown": options.slowdown,
        "local_only": options.local_only,
        "join": options.join or None,
    }
    return from_environment(flags, name=host_name())
