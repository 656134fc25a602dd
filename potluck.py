"""potluck's public face: train a model in a swarm from your own loop.

`join` makes a model and an optimizer a peer; `Manifest` holds what all peers of a run share; `Settings` what is this
machine's own business. See docs/api.md.
"""

from __future__ import annotations

from aggregation.initial import initialize
from peer.joining import join
from peer.member import Peer
from peer.network import NetworkFailed
from peer.parameters import ModuleParameters, Parameters
from peer.settings import Settings
from protocol.errors import UserError
from protocol.manifest import Manifest

__all__ = [
    "Manifest",
    "ModuleParameters",
    "NetworkFailed",
    "Parameters",
    "Peer",
    "Settings",
    "UserError",
    "initialize",
    "join",
]
