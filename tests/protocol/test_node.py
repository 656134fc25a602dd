"""A node in a swarm on the virtual network: hostile frames cost a counter, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aggregation.codecs import codec
from protocol.commands import Send
from protocol.errors import ProtocolError
from protocol.messages import (
    FINISHED,
    LEAVING,
    TOKENS_A_STEP,
    TRAINING,
    VERSION,
    Contribution,
    Heads,
    Hello,
    Link,
    LinkMessage,
    Message,
    Open,
    Parent,
    Part,
    Pull,
    Records,
    StateMessage,
    Status,
    close_text,
    contribution_text,
    decode,
    encode,
    link_head,
    sha256,
)
from protocol.node import Node
from protocol.presence import Presence
from protocol.presence import encode as encode_record
from protocol.signature import Ed25519Keys
from simulation.network import Weather
from simulation.scenarios import CALM, links, when
from simulation.swarm import EPOCH, PRESENCE_LIFE, RUN, CheapKeys, SimulatedPeer, Swarm

STRANGER = b"s" * 32


def swarm_at(step: int, seed: int = 11) -> Swarm:
    swarm = Swarm(CALM, seed=seed)
    swarm.clock.run(when(CALM, step))
    return swarm


def memory(swarm: Swarm, index: int = 0) -> bytes:
    """A digest of what a hostile frame must not change: state, windows, roster, notices, wishes."""
    node = swarm.peers[index].node
    words: list[bytes] = [node.ledger.digest()]
    for chain in node.ledger.chains:
        words += [node.ledger._arithmetic.dump(chain.base), *(e.head for e in (*chain.kept, *chain.aside))]
        words += sorted(chain.early)
    shape = (
        node.step,
        sorted(node.windows.outbound),
        [(key, sorted(one.received)) for key, one in sorted(node.windows.gathering.items())],
        sorted(node.roster.neighbours),
        sorted(node.pace.noticed),
        sorted(node.repair._pulling),
        list(node.repair._wanted),
        sorted(node.pace.opened.items()),
    )
    return sha256(*words, repr(shape).encode())


def attack(swarm: Swarm, header: bytes, bulk: bytes = b"", sender: int = 1) -> None:
    """Hand one frame to peer 0: it must be refused and leave no trace."""
    node, now = swarm.peers[0].node, swarm.clock.now
    node.handle_timer(now)
    node.take()
    before = memory(swarm)
    with pytest.raises(ProtocolError):
        node.receive(swarm.keys[sender], header, bulk, now=now, wall=now)
    assert memory(swarm) == before
    assert node.take() == []


MakeContribution = Callable[..., tuple[Contribution, bytes]]


@pytest.fixture
def contribution(build_contribution: Callable[..., Contribution]) -> MakeContribution:
    """A contribution that peer `sender` might make now to chunk 0, validly signed with the changes in it."""

    def make(swarm: Swarm, sender: int = 1, **changes: object) -> tuple[Contribution, bytes]:
        peer = swarm.peers[sender]
        tip = peer.node.ledger.tip(0)
        bulk = peer.arithmetic.contribution(0, tip, peer.theta[0])
        right = {"chunk": 0, "due": 24, "parent": peer.node.ledger.parent(0, tip), "tokens": 1200, "peer": peer.key}
        made = build_contribution(**(right | {"payload": sha256(bulk)} | changes))
        signature = CheapKeys(made.peer).sign(contribution_text(RUN, made))
        return msgspec.structs.replace(made, signature=signature), bulk

    return make


def test_an_honest_contribution_is_taken(contribution: MakeContribution) -> None:
    swarm = swarm_at(22)
    message, bulk = contribution(swarm)
    now = swarm.clock.now
    swarm.peers[0].node.receive(swarm.keys[1], encode(message), bulk, now=now, wall=now)
    assert (0, 24) in swarm.peers[0].node.windows.gathering


def test_bad_contributions(contribution: MakeContribution) -> None:
    swarm = swarm_at(22)
    good, bulk = contribution(swarm)
    for changes in (
        {"chunk": 4},
        {"chunk": 1 << 23},
        {"due": 25},
        {"due": 0},
        {"due": 60},
        {"due": 1 << 39},
        {"peer": STRANGER},
        {"payload": bytes(32)},
    ):
        attack(swarm, encode(contribution(swarm, **changes)[0]), bulk)
    attack(swarm, encode(msgspec.structs.replace(good, signature=bytes(64))), bulk)
    attack(swarm, encode(contribution(swarm, tokens=12 * TOKENS_A_STEP + 1)[0]), bulk)
    for bad in (b"", bulk[:-1], bulk + b"\0", bytes(len(bulk) - 1) + b"\x08", bulk[::-1]):
        attack(swarm, encode(contribution(swarm, payload=sha256(bad))[0]), bad)
    fields = msgspec.msgpack.decode(encode(good))
    for tokens in (0, -1, -(1 << 62), (1 << 40) + 1, 1 << 63):
        fields[4] = tokens
        attack(swarm, msgspec.msgpack.encode(fields), bulk)


def test_a_contribution_that_misstates_its_parent(contribution: MakeContribution) -> None:
    swarm = swarm_at(22)
    parent = contribution(swarm)[0].parent
    for change in ({"weight": 1}, {"cumulative": 1 << 61}, {"depth": 9}, {"due": 24}, {"span": 3}):
        lie = msgspec.structs.replace(parent, **change)
        message, bulk = contribution(swarm, parent=lie)
        attack(swarm, encode(message), bulk)


def test_not_finite_payloads(contribution: MakeContribution) -> None:
    plan = replace(CALM, contribution_codec="fp32", result_codec="fp32")
    swarm = Swarm(plan, seed=1)
    swarm.clock.run(when(plan, 22))
    for value in (float("nan"), float("inf"), float("-inf"), 3e38):
        bad = torch.full((plan.elements,), value).numpy().tobytes()
        attack(swarm, encode(contribution(swarm, payload=sha256(bad))[0]), bad)
        link = links(swarm.peers[1], 0)[-1]
        attack(swarm, encode(signed(msgspec.structs.replace(link, result=sha256(bad)))), bad)


def signed(link: Link, owner: bytes = STRANGER) -> LinkMessage:
    return LinkMessage(link, owner, CheapKeys(owner).sign(close_text(link_head(RUN, link))))


def test_bad_links_do_not_even_move_the_step() -> None:
    swarm = swarm_at(22)
    entry = swarm.peers[1].node.ledger.recent(0, 1)[0]
    link, bulk = entry.message.link, entry.payload
    attack(swarm, encode(msgspec.structs.replace(entry.message, signature=bytes(64))), bulk)
    for changes in ({"chunk": 7}, {"due": 13}, {"due": 1 << 39}, {"weight": 1}, {"parts": link.parts[::-1]}):
        attack(swarm, encode(signed(msgspec.structs.replace(link, **changes))), bulk)
    ahead = {"due": 24, "span": 12, "parent": entry.head, "depth": 2}
    for lie in ({"cumulative": 1 << 61}, {"cumulative": link.weight}, {"depth": 3, "cumulative": 2 * link.weight}):
        attack(swarm, encode(signed(msgspec.structs.replace(link, **(ahead | lie)))), bulk)
    state = StateMessage(link, entry.message.owner, entry.message.signature)
    attack(swarm, encode(state), bulk)
    attack(swarm, encode(state), bytes(8 * CALM.elements) + bulk)


def test_windows_far_ahead_are_refused_from_anyone() -> None:
    swarm = swarm_at(22)
    link = links(swarm.peers[1], 0)[-1]
    bulk = swarm.peers[1].node.ledger.recent(0, 1)[0].payload
    attack(swarm, encode(Open(0, 60)))
    attack(swarm, encode(signed(msgspec.structs.replace(link, due=60, span=60))), bulk)


def test_frames_that_do_not_belong() -> None:
    swarm = swarm_at(22)
    attack(swarm, encode(Open(9, 24)))
    attack(swarm, encode(Open(0, 23)))
    attack(swarm, encode(Open(0, 24)), b"bulk")
    attack(swarm, encode(Heads(())))
    attack(swarm, encode(Pull(9, ())))
    attack(swarm, encode(Hello(2, b"")))
    attack(swarm, encode(Hello(1, b"garbage")))
    attack(swarm, b"")
    attack(swarm, b"\x93\x05" * 100)


def test_another_runs_messages_are_refused(contribution: MakeContribution) -> None:
    swarm = swarm_at(22)
    good, bulk = contribution(swarm)
    foreign = CheapKeys(good.peer).sign(contribution_text(sha256(b"another run"), good))
    attack(swarm, encode(msgspec.structs.replace(good, signature=foreign)), bulk)
    entry = swarm.peers[1].node.ledger.recent(0, 1)[0]
    head = link_head(sha256(b"another run"), entry.message.link)
    forged = CheapKeys(STRANGER).sign(close_text(head))
    attack(swarm, encode(LinkMessage(entry.message.link, STRANGER, forged)), entry.payload)


def test_replays_change_nothing() -> None:
    """Every frame of a healthy run, sent once more at its end to everyone."""
    swarm = Swarm(replace(CALM, steps=30), seed=5)
    frames: list[tuple[bytes, bytes, bytes]] = []
    send = swarm.network.send

    def recorded(source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
        frames.append((source, header, bulk))
        send(source, to, header, bulk)

    swarm.network.send = recorded  # type: ignore[method-assign]
    swarm.clock.run(40.0)
    swarm.network.send = send  # type: ignore[method-assign]
    heads, taken = swarm.heads(), [len(peer.mixes) for peer in swarm.peers]
    assert len(heads) == 1 and len(frames) > 100
    random.Random(1).shuffle(frames)
    for number, (source, header, bulk) in enumerate(frames):
        for to in swarm.keys:
            send(source, to, header, bulk)
        if number % 50 == 0:  # so many at once would be more than the network may carry
            swarm.clock.run(swarm.clock.now + 0.5)
    swarm.clock.run(swarm.clock.now + 20.0)
    assert swarm.heads() == heads
    assert [len(peer.mixes) for peer in swarm.peers] == taken


def is_refused(header: bytes) -> bool:
    try:
        decode(header)
    except ProtocolError:
        return True
    return False


garbage = st.one_of(
    st.binary(max_size=80),
    st.builds(lambda body, tag: bytes([0x93, tag]) + body, st.binary(max_size=80), st.integers(0, 12)),
).filter(is_refused)


@settings(max_examples=5, phases=[Phase.generate])
@given(st.lists(st.tuples(garbage, st.binary(max_size=300)), min_size=20, max_size=60))
def test_garbage_to_everyone_all_the_time_disturbs_nobody(frames: list[tuple[bytes, bytes]]) -> None:
    swarm = Swarm(replace(CALM, steps=40), seed=1)
    for index, (header, bulk) in enumerate(frames):
        for source, to in zip(swarm.keys, [*swarm.keys[1:], swarm.keys[0]], strict=True):
            swarm.clock.at(0.5 * index, lambda s=source, t=to, h=header, b=bulk: deliver(swarm, s, t, h, b))  # type: ignore[misc]
    swarm.clock.run(40.0)
    assert len(swarm.heads()) == 1
    assert [len(link.parts) for link in links(swarm.peers[0], 0)] == [4, 4, 4]
    assert not any(peer.missed for peer in swarm.peers)
    assert [peer.refused for peer in swarm.peers] == [len(frames)] * 4


def deliver(swarm: Swarm, source: bytes, to: bytes, header: bytes, bulk: bytes) -> None:
    for peer in swarm.peers:
        if peer.key == to:
            peer._deliver(source, header, bulk)


def test_enormous_claims_of_a_member_move_nobody_far(contribution: MakeContribution) -> None:
    """The most tokens that can be count as four times the median, and a made-up branch counts nothing."""
    swarm = swarm_at(22)
    lie = Parent(bytes(32), bytes(32), 5, 12, 12, 1 << 60, 1 << 61)
    message, bulk = contribution(swarm, sender=3, parent=lie, tokens=12 * TOKENS_A_STEP)
    for peer in swarm.peers:
        swarm.network.send(swarm.keys[3], peer.key, encode(message), bulk)
    swarm.clock.run(when(CALM, 57))
    for link in links(swarm.peers[0], 0):
        assert link.cumulative < 100_000
    assert [link.due for link in links(swarm.peers[0], 0)] == [12, 24, 36, 48]


def test_a_peer_whose_parameters_are_not_finite_does_not_contribute() -> None:
    swarm = swarm_at(22)
    swarm.peers[2].theta[0][0] = float("nan")
    swarm.clock.run(when(CALM, 40))
    assert any(one.reason == "our parameters are not finite" for one in swarm.peers[2].missed)
    assert all(len(link.parts) == 3 for link in links(swarm.peers[0], 0)[1:])
    assert bool(swarm.peers[0].node.ledger.tip(0).anchor.isfinite().all())


def test_a_contribution_without_training_is_not_sent() -> None:
    swarm = swarm_at(22)
    peer = swarm.peers[0]
    window = CALM.schedule.opening(24)[0]
    peer.node.open(window, peer.theta[:2], tokens=1200, now=swarm.clock.now)
    assert "nothing trained" in {getattr(one, "reason", "") for one in peer.node.take()}


def test_a_stranger_closes_no_window(build_link: Callable[..., Link]) -> None:
    swarm = swarm_at(23)
    node, now = swarm.peers[0].node, swarm.clock.now
    tip, arithmetic = node.ledger.tip(0), swarm.peers[0].arithmetic
    parent, before = node.ledger.parent(0, tip), node.ledger.digest()
    payload = arithmetic.mean(0, [(1, arithmetic.contribution(0, tip, tip.anchor + 5.0))])
    part = Part(STRANGER, 1 << 40, bytes(32), bytes(64))
    link = build_link(
        chunk=0, due=24, span=24 - parent.due, parent=parent.head, state=parent.state, depth=parent.depth + 1,
        parts=(part,), weight=1 << 40, cumulative=parent.cumulative + (1 << 40), result=sha256(payload),
    )  # fmt: skip
    signature = CheapKeys(STRANGER).sign(close_text(link_head(RUN, link)))
    state = arithmetic.dump(tip) + payload
    for message, bulk in (
        (LinkMessage(link, STRANGER, signature), payload),
        (StateMessage(link, STRANGER, signature), state),
    ):
        for source in (STRANGER, swarm.keys[1]):
            with pytest.raises(ProtocolError, match="owns nothing"):
                node.receive(source, encode(message), bulk, now=now, wall=now)
    assert node.ledger.digest() == before


def test_a_link_of_an_owner_that_is_forgotten_is_taken_when_asked_for() -> None:
    swarm = swarm_at(23)
    ahead = swarm_at(30)
    entry = ahead.peers[1].node.ledger.chains[0].newest
    node, now = swarm.peers[0].node, swarm.clock.now
    assert entry is not None and entry.message.link.due == 24 and entry.message.owner != node.roster.key
    del node.roster.neighbours[entry.message.owner]
    donor = next(key for key in node.roster.neighbours if key != node.roster.key)
    frame = encode(entry.message)
    with pytest.raises(ProtocolError, match="owns nothing"):
        node.receive(donor, frame, entry.payload, now=now, wall=now)
    node.repair.want(donor, 0, (node.ledger.chains[0].head,), now)
    node.receive(donor, frame, entry.payload, now=now, wall=now)
    assert node.ledger.chains[0].due == 24


def test_all_finished_needs_everyones_final_heads() -> None:
    swarm = swarm_at(22)
    node = swarm.peers[0].node
    assert not node.all_finished()
    for key in swarm.keys[1:]:
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    assert node.all_finished()
    node.roster.say(swarm.keys[1], Status(84, FINISHED, bytes(32)))
    assert not node.all_finished()
    node.roster.lose(swarm.keys[1])
    assert not node.all_finished(), "it may only be frozen"
    node.roster.say(swarm.keys[1], Status(84, LEAVING, bytes(32)))
    assert node.all_finished()


def test_what_a_leaving_peer_owns_moves_with_its_word() -> None:
    """Our contribution is on its way to an owner that says that it leaves: the next owner gets it, and once."""
    swarm = swarm_at(24)
    node = swarm.peers[0].node
    while not (mine := [out for out in node.windows.outbound.values() if out.owners[out.cursor] != node.roster.key]):
        swarm.clock.run(swarm.clock.now + 0.001)
    out, now = mine[0], swarm.clock.now
    owner, following = out.owners[out.cursor], out.owners[out.cursor + 1]
    node.take()
    for phase, moved in ((TRAINING, 0), (LEAVING, 1), (LEAVING, 0)):
        node.receive(owner, encode(Status(24, phase, bytes(32))), b"", now=now, wall=now)
        sent = [c for c in node.take() if isinstance(c, Send) and c.message == out.contribution and c.to == following]
        assert len(sent) == moved


def test_a_lost_trainer_is_waited_for_until_its_record_expires() -> None:
    swarm = swarm_at(22)
    node = swarm.peers[0].node
    for key in swarm.keys[2:]:
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    node.roster.lose(swarm.keys[1])
    assert not node.all_finished()
    node.roster.neighbours[swarm.keys[1]].expires = 0.0
    node.handle_timer(swarm.peers[0].now + 1.0)
    assert node.all_finished() and node.agreed(), "one of four went without a word"


def test_a_lost_trainer_whose_process_is_gone_is_not_waited_for() -> None:
    swarm = swarm_at(22)
    node = swarm.peers[0].node
    for key in swarm.keys[1:]:
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    node.roster.say(swarm.keys[1], Status(84, TRAINING, bytes(32)))
    node.roster.gone = {swarm.keys[1]}
    assert not node.all_finished(), "it speaks to us"
    node.roster.lose(swarm.keys[1])
    assert node.all_finished() and node.agreed(), "one of four was killed"
    for key in swarm.keys[2:]:
        node.roster.lose(key)
        node.roster.say(key, Status(84, TRAINING, bytes(32)))
        node.roster.gone.add(key)
    assert node.all_finished() and not node.agreed(), "whoever refuses us, we may be the ones who were cut off"


def test_who_only_said_that_it_trains_is_not_waited_for() -> None:
    swarm = swarm_at(22)
    node, now = swarm.peers[0].node, swarm.clock.now
    for key in swarm.keys[1:]:
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    node.roster.learn(fresh_record(STRANGER), now=now, wall=1.0)
    node.roster.say(STRANGER, Status(84, TRAINING, bytes(32)))
    assert not node.all_finished(), "it is here"
    node.roster.lose(STRANGER)
    assert node.all_finished(), "no link names it: it took no part"


def test_who_ends_alone_does_not_call_it_agreed() -> None:
    swarm = swarm_at(22)
    node, now = swarm.peers[0].node, swarm.peers[0].now
    for key in swarm.keys[1:]:
        node.roster.lose(key)
        node.roster.neighbours[key].expires = 0.0
    node.handle_timer(now + 1.0)
    assert node.all_finished(), "nobody is left to serve"
    assert not node.agreed()
    record = fresh_record(swarm.keys[1])
    node.roster.learn(record, now=now, wall=1.0)
    node.roster.say(swarm.keys[1], Status(84, FINISHED, node.ledger.digest()))
    assert not node.agreed(), "two of four are gone"
    node.roster.learn(fresh_record(swarm.keys[2]), now=now, wall=1.0)
    node.roster.say(swarm.keys[2], Status(84, FINISHED, node.ledger.digest()))
    assert node.agreed()


def test_who_comes_back_misses_those_whom_its_links_name_until_it_meets_them() -> None:
    swarm = swarm_at(22)
    node, now = swarm.peers[0].node, swarm.peers[0].now
    assert node.companions() == set(swarm.keys[1:])
    for key in swarm.keys[1:]:
        node.roster.lose(key)
        del node.roster.neighbours[key]
    assert node.agreed(), "it knows of nobody else"
    node.resume(22, 2200, node.marks(), now)
    assert node.all_finished() and not node.agreed()
    for key in swarm.keys[2:]:
        node.roster.learn(fresh_record(key), now=now, wall=1.0)
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    assert node.agreed(), "three of four are here"
    node.roster.learn(fresh_record(swarm.keys[1]), now=now, wall=1.0)
    node.roster.lose(swarm.keys[1])
    assert not node.all_finished(), "a link named it, so it may only be frozen"


def fresh_record(key: bytes) -> Presence:
    return Presence(1, RUN, key, (), "train", True, 0, 1.0, 1e9)


def test_who_is_alone_from_the_start_agrees_with_itself() -> None:
    swarm = Swarm(replace(CALM, peers=1), seed=1)
    assert swarm.peers[0].node.agreed()


def test_a_bad_record_does_not_cost_us_the_others() -> None:
    swarm = swarm_at(10)
    node, now = swarm.peers[0].node, swarm.clock.now
    keys = [Ed25519Keys(bytes([n]) * 32) for n in (1, 2)]
    good, foreign = [
        encode_record(Presence(1, run, key.key, (), "train", True, 0, 0.0, 1e3), key.sign)
        for key, run in zip(keys, (RUN, b"x" * 32), strict=True)
    ]
    node.learn([foreign, b"garbage", good], now=now, wall=1.0)
    assert keys[0].key in node.roster.neighbours and keys[1].key not in node.roster.neighbours
    with pytest.raises(ProtocolError, match="another run"):
        node.learn([foreign], now=now, wall=1.0)


def test_renewed_records_go_round_without_the_dht(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two peers that cannot hear each other for longer than a record lives stay in each other's roster."""
    monkeypatch.setattr(SimulatedPeer, "_publish", lambda self: None)
    swarm = Swarm(replace(CALM, peers=5, steps=120), seed=11)
    swarm.network.cut(swarm.keys[0], swarm.keys[1], 1e6)
    swarm.clock.run(2 * PRESENCE_LIFE)
    for one, other in ((0, 1), (1, 0)):
        roster, now = swarm.peers[one].node.roster, swarm.peers[one].now
        assert roster.is_lost(swarm.keys[other])
        assert roster.neighbours[swarm.keys[other]].expires > now + PRESENCE_LIFE / 3


def test_a_renewed_record_is_told_to_two_and_once_and_not_every_moment() -> None:
    swarm = Swarm(replace(CALM, peers=6), seed=11)
    swarm.clock.run(1.0)
    node, now = swarm.peers[2].node, swarm.peers[2].now
    node.take()
    record = swarm.peers[0].identity.record(EPOCH + 5.0, PRESENCE_LIFE)
    hello = encode(Hello(VERSION, record))
    soon = encode(Hello(VERSION, swarm.peers[0].identity.record(EPOCH + 5.5, PRESENCE_LIFE)))
    for frame, told in ((hello, [swarm.keys[3], swarm.keys[4]]), (hello, []), (soon, [])):
        node.receive(swarm.keys[0], frame, b"", now=now, wall=EPOCH + 5.0)
        sent = [one for one in node.take() if isinstance(one, Send) and isinstance(one.message, Records)]
        assert [one.to for one in sent] == told
        assert all(isinstance(one.message, Records) and one.message.records == (record,) for one in sent)


def test_nobody_is_finished_while_a_window_of_its_own_is_open() -> None:
    swarm = swarm_at(22)
    node, now = swarm.peers[0].node, swarm.clock.now
    node.open(CALM.schedule.opening(24)[0], swarm.peers[0].theta[:2], tokens=2400, now=now)
    node.set_phase(FINISHED, now)
    for key in swarm.keys[1:]:
        node.roster.say(key, Status(84, FINISHED, node.ledger.digest()))
    assert phases_told(node, now + 1.0) == {TRAINING}, "its last contribution counts, so it is waited for"
    assert not node.all_finished()
    node.windows.outbound.clear()
    node.windows.gathering.clear()
    assert phases_told(node, now + 2.0) == {FINISHED}
    assert node.all_finished()


def phases_told(node: Node, now: float) -> set[int]:
    node.take()
    node.handle_timer(now)
    sent = [command.message for command in node.take() if isinstance(command, Send)]
    return {message.phase for message in sent if isinstance(message, Status)}


def test_a_swarm_of_one_is_a_swarm() -> None:
    swarm = Swarm(replace(CALM, peers=1, weather=Weather()), seed=1)
    swarm.clock.run(60.0)
    assert [link.due for link in links(swarm.peers[0], 0)] == [12, 24, 36, 48, 60, 72]


def test_messages_are_small_beside_payloads(contribution: MakeContribution) -> None:
    message: Message = contribution(swarm_at(22))[0]
    assert len(encode(message)) < 400
    assert codec("e3m0").packed_bytes(1 << 20) > 1000 * len(encode(message))
