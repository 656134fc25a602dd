"""One account of a peer out of those of its lives: what it did is summed, how it ended is the last life's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import msgspec

from peer.commands.records import Evaluation, PeerTraffic, Seconds, Summary, WindowCounts


def together(lives: Sequence[Summary], peer_id: str) -> Summary:
    """The lives of one peer, in order, as one. `peer_id` is that of a peer that wrote nothing."""
    return reduce(_and_then, lives) if lives else Summary(peer_id=peer_id)


def _and_then(one: Summary, other: Summary) -> Summary:
    seconds = _seconds(one.seconds, other.seconds)
    return msgspec.structs.replace(
        other,
        inner_steps=one.inner_steps + other.inner_steps,
        tokens=one.tokens + other.tokens,
        train_loss_first=other.train_loss_first if one.train_loss_first is None else one.train_loss_first,
        train_loss_last=one.train_loss_last if other.train_loss_last is None else other.train_loss_last,
        windows=_windows(one.windows, other.windows),
        bytes_sent=one.bytes_sent + other.bytes_sent,
        bytes_received=one.bytes_received + other.bytes_received,
        seconds=seconds,
        utilization=seconds.training / seconds.total if seconds.total else other.utilization,
        evaluation=Evaluation(one.evaluation.outer_loss_start, other.evaluation.outer_loss_end),
        traffic=_traffic(one.traffic, other.traffic),
    )


def _windows(one: WindowCounts, other: WindowCounts) -> WindowCounts:
    return WindowCounts(
        opened=one.opened + other.opened,
        merged=one.merged + other.merged,
        late=one.late + other.late,
        skipped=one.skipped + other.skipped,
    )


def _seconds(one: Seconds, other: Seconds) -> Seconds:
    return Seconds(
        total=one.total + other.total,
        training=one.training + other.training,
        waiting=one.waiting + other.waiting,
        wait_max=max(one.wait_max, other.wait_max),
        merge_wait=_most((one.merge_wait, other.merge_wait)),
    )


def _traffic(one: PeerTraffic, other: PeerTraffic) -> PeerTraffic:
    dht = [traffic.dht_bytes for traffic in (one, other) if traffic.dht_bytes is not None]
    return PeerTraffic(
        payload_bytes=one.payload_bytes + other.payload_bytes,
        bytes_on_wire=one.bytes_on_wire + other.bytes_on_wire,
        repair_bytes=one.repair_bytes + other.repair_bytes,
        dht_bytes=sum(dht) if dht else None,
        peak_window_bytes=max(one.peak_window_bytes, other.peak_window_bytes),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
