"""Faults of a local swarm, as flags say them."""

import re
from typing import Any

import pytest

from peer.commands.fault_flags import parse_faults
from peer.commands.faults import Faults, Freeze, Join, Kill, Leave, Partition, Restart, Slow
from peer.links.shape import LinkShape
from peer.links.table import ENTRY
from protocol.errors import UserError


def parse(**flags: Any) -> Faults:
    return parse_faults(num_peers=4, steps=200, **flags)


def refused(words: str, **flags: Any) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        parse(**flags)


def test_all_kinds_and_repeated() -> None:
    faults = parse(
        kill=("2@60", "0@200"),
        freeze=("1@60:20", "1@100:0.5"),
        slow=("3:4",),
        leave=("1@150",),
        restart=("3@70", "3@90:2.5", "0@20"),
        join=("3@30",),
        partition=("0,1|2,3@60:20", "3|0,1,2@100:1"),
    )
    assert faults.kills == (Kill(2, 60), Kill(0, 200))
    assert faults.freezes == (Freeze(1, 60, 20.0), Freeze(1, 100, 0.5))
    assert faults.slows == (Slow(3, 4.0),)
    assert faults.leaves == (Leave(1, 150),)
    assert faults.restarts == (Restart(3, 70, 0.0), Restart(3, 90, 2.5), Restart(0, 20, 0.0))
    assert faults.joins == (Join(3, 30),) and faults.join_of(3) == Join(3, 30) and faults.join_of(0) is None
    assert faults.partitions == (Partition(((0, 1), (2, 3)), 60, 20.0), Partition(((3,), (0, 1, 2)), 100, 1.0))
    assert (faults.slowdown(3), faults.slowdown(0)) == (4.0, 1.0)
    assert [fault.step for fault in faults.events()] == [20, 30, 60, 60, 60, 70, 90, 100, 100, 150, 200]
    assert [fault.kind for fault in faults.of_peer(0)] == ["restart", "kill"]
    assert faults.need_proxies and not parse(kill=("2@60",)).need_proxies


def test_links() -> None:
    faults = parse(bandwidth=("all:100", "3:20"), latency=("2:25",), loss=("3:0.5",))
    fast = LinkShape(mbit=100)
    assert faults.links == (fast, fast, LinkShape(mbit=100, latency=0.025), LinkShape(mbit=20, loss=0.005))
    assert faults.need_proxies
    assert parse(latency=("all:0",)).links == ()


def test_who_is_in_which_group() -> None:
    (partition,) = parse(partition=("1|2@60:20",)).partitions
    assert [partition.group_of(node) for node in (ENTRY, 0, 1, 2, 3)] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("text", ["", "2", "2@", "@60", "2@60:3", "-1@60", "2@6.5", " 2@60", "a@b", "2@60\n"])
@pytest.mark.parametrize("flag", ["kill", "leave", "join"])
def test_a_peer_and_step_that_cannot_be_read(flag: str, text: str) -> None:
    refused(f"--{flag} = {text!r}: must be PEER@STEP, like 2@60", **{flag: (text,)})


@pytest.mark.parametrize("text", ["", "1@60", "1@60:", "1@60:-2", "1@60:x", "1:60@2", "1@60:1e3"])
def test_a_freeze_that_cannot_be_read(text: str) -> None:
    refused(f"--freeze = {text!r}: must be PEER@STEP:SECONDS, like 1@60:20", freeze=(text,))


@pytest.mark.parametrize("text", ["", "1", "1@60:", "1@60:-2", "1@x"])
def test_a_restart_that_cannot_be_read(text: str) -> None:
    refused(f"--restart = {text!r}: must be PEER@STEP or PEER@STEP:SECONDS, like 2@60:10", restart=(text,))


@pytest.mark.parametrize("text", ["", "3", "3:", "3@4", "3:x", "3:-4", "all:2"])
def test_a_slow_that_cannot_be_read(text: str) -> None:
    refused(f"--slow = {text!r}: must be PEER:FACTOR, like 3:4", slow=(text,))


@pytest.mark.parametrize("text", ["", "0|1", "0|1@60", "0||1@60:2", "|0@60:2", "0,|1@60:2", "0|1@60:-2", "all|1@60:2"])
def test_a_partition_that_cannot_be_read(text: str) -> None:
    refused(f"--partition = {text!r}: must be PEERS|PEERS@STEP:SECONDS, like 0,1|2,3@60:20", partition=(text,))


@pytest.mark.parametrize("flag", ["bandwidth", "latency", "loss"])
@pytest.mark.parametrize("text", ["", "3", "3:", "3:x", "3:-4", "some:4", "3@4", "1e3:4"])
def test_a_link_that_cannot_be_read(flag: str, text: str) -> None:
    refused(f"--{flag} = {text!r}: must be PEER:", **{flag: (text,)})


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--kill = '4@60': peers count from 0, so PEER must be at most 3", {"kill": ("4@60",)}),
        ("--freeze = '9@60:1': peers count from 0", {"freeze": ("9@60:1",)}),
        ("--join = '4@60': peers count from 0", {"join": ("4@60",)}),
        ("--partition = '0|4@60:1': peers count from 0", {"partition": ("0|4@60:1",)}),
        ("--latency = '4:25': peers count from 0", {"latency": ("4:25",)}),
        ("--kill = '1@201': STEP must be from 1 to the run's last step (200)", {"kill": ("1@201",)}),
        ("--restart = '1@201:3': STEP must be from 1", {"restart": ("1@201:3",)}),
        ("--partition = '0|1@0:1': STEP must be from 1", {"partition": ("0|1@0:1",)}),
        ("--freeze = '1@9:0': SECONDS must be above 0", {"freeze": ("1@9:0",)}),
        ("--partition = '0|1@9:0': SECONDS must be above 0", {"partition": ("0|1@9:0",)}),
        ("--slow = '1:0.5': FACTOR must be at least 1", {"slow": ("1:0.5",)}),
        ("--bandwidth = '1:0': MBIT must be above 0", {"bandwidth": ("1:0",)}),
        ("--loss = '1:51': PERCENT must be at most 50", {"loss": ("1:51",)}),
    ],
)
def test_what_the_run_does_not_have(words: str, flags: dict[str, Any]) -> None:
    refused(words, **flags)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--kill = 2: is given twice", {"kill": ("2@60", "2@70")}),
        ("--slow = 3: is given twice", {"slow": ("3:4", "3:5")}),
        ("--join = 3: is given twice", {"join": ("3@4", "3@5")}),
        ("--latency = 'all:5': is given twice for all", {"latency": ("all:4", "all:5")}),
        ("--latency = '3:5': is given twice for 3", {"latency": ("3:4", "3:5")}),
        ("--partition = '0,1|1@9:5': peer 1 is named twice", {"partition": ("0,1|1@9:5",)}),
        ("--partition = '0,1@9:5': needs at least two groups", {"partition": ("0,1@9:5",)}),
        ("--partition = '…@9': is given twice for this step", {"partition": ("0|1@9:5", "0|2@9:5")}),
        ("--join: names every peer", {"join": ("0@9", "1@9", "2@9", "3@9")}),
        ("--leave = '2@50': is killed too (--kill 2@60)", {"kill": ("2@60",), "leave": ("2@50",)}),
        ("--freeze = '2@60': must be before the peer's end (--kill 2@60)", {"kill": ("2@60",), "freeze": ("2@60:1",)}),
        (
            "--restart = '2@61': must be before the peer's end (--leave 2@60)",
            {"leave": ("2@60",), "restart": ("2@61",)},
        ),
        ("--kill = '2@60': must be after --join 2@60", {"kill": ("2@60",), "join": ("2@60",)}),
    ],
)
def test_what_does_not_go_together(words: str, flags: dict[str, Any]) -> None:
    refused(words, **flags)
