"""The report's traffic: what was sent, what the protocol's formula asks for, and what it saved.

Everything counts bytes as sent, so that the swarm's sum counts each byte once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from peer.commands.records import Link, Summary
from peer.commands.report_format import TrafficEntry
from peer.commands.report_windows import Account

DATA_PARALLEL_BYTES_PER_PARAMETER = 2
"""The comparison is with gradients in bf16, the format that synchronous data parallel training sends today."""


def traffic_entry(accounts: Sequence[Account], summaries: Sequence[Summary], parameters: int) -> TrafficEntry:
    """`accounts` and `summaries` are in the same order; `parameters` is the model's number of them."""
    on_wire = sum(summary.traffic.bytes_on_wire for summary in summaries)
    exchange = full_exchange_bytes(parameters, len(summaries))
    data_parallel = round(exchange * sum(summary.inner_steps for summary in summaries))
    sent = sent_by_window(accounts)
    formula = sum(sent.values())
    # What a peer measured is more where it had to send twice; what follows from the links is newer where it was killed.
    peak = max([*sent.values(), *(summary.traffic.peak_window_bytes for summary in summaries)], default=0)
    given = _given(accounts)
    dht = [summary.traffic.dht_bytes for summary in summaries if summary.traffic.dht_bytes is not None]
    return TrafficEntry(
        payload_bytes=sum(summary.traffic.payload_bytes for summary in summaries),
        bytes_on_wire=on_wire,
        formula_bytes=formula,
        overhead=_ratio(on_wire, formula),
        repaired_links=sum((head, one.peer_id) in given for one in accounts for head in one.adopted),
        repair_bytes=sum(summary.traffic.repair_bytes for summary in summaries),
        dht_bytes=sum(dht) if dht else None,
        data_parallel_bytes=data_parallel,
        reduction=_ratio(data_parallel, on_wire),
        peak_window_bytes=peak,
        peak_reduction=_ratio(exchange, peak),
    )


def full_exchange_bytes(parameters: int, num_peers: int) -> float:
    """What one peer sends in one step of synchronous data parallel training: a ring all-reduce of all gradients."""
    if num_peers == 0:
        return 0.0
    return 2 * (num_peers - 1) / num_peers * DATA_PARALLEL_BYTES_PER_PARAMETER * parameters


def sent_by_window(accounts: Sequence[Account]) -> Counter[tuple[str, int, int]]:
    """Packed bytes that each peer had to send for each window, by (peer id, fragment, due step).

    A contributor sends its contribution to the owner, unless it is the owner; the owner sends the result to everyone
    who adopted it, but for those to whom it came as a repair. The sum over all is the formula of docs/report.md.
    """
    sent: Counter[tuple[str, int, int]] = Counter()
    given = _given(accounts)
    for link in _all_links(accounts).values():
        takers = [one.peer_id for one in accounts if link.head in one.adopted and one.peer_id != link.owner]
        receivers = sum((link.head, taker) not in given for taker in takers)
        sent[link.owner, link.fragment, link.due] += receivers * link.payload_bytes
        for part in link.contributors:
            if part.peer != link.owner:
                sent[part.peer, link.fragment, link.due] += _contribution_bytes(accounts, link, part.peer)
    return sent


def _given(accounts: Sequence[Account]) -> set[tuple[str, str]]:
    """Head and receiver of every link that came, or came as well, as a repair."""
    return {gift for one in accounts for gift in one.gave}


def _all_links(accounts: Sequence[Account]) -> dict[str, Link]:
    return {head: link for one in accounts for head, link in one.adopted.items()}


def _contribution_bytes(accounts: Sequence[Account], link: Link, peer_id: str) -> int:
    """Size of a contribution: as its sender recorded it, else as anyone's of the same chunk, else the result's."""
    place = (link.chunk, link.due)
    known = {one.peer_id: one.contributed[place].payload_bytes for one in accounts if place in one.contributed}
    return known.get(peer_id, next(iter(known.values()), link.payload_bytes))


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
