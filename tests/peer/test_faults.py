"""Faults of a local swarm, as flags say them."""

import pytest

from peer.commands.fault_flags import parse_faults
from peer.commands.faults import Faults, Freeze, Kill, Slow
from protocol.errors import UserError


def parse(kill: tuple[str, ...] = (), freeze: tuple[str, ...] = (), slow: tuple[str, ...] = ()) -> Faults:
    return parse_faults(kill=kill, freeze=freeze, slow=slow, num_peers=4, steps=200)


def test_all_kinds_and_repeated() -> None:
    faults = parse(kill=("2@60", "0@200"), freeze=("1@60:20", "1@100:0.5"), slow=("3:4",))
    assert faults.kills == (Kill(2, 60), Kill(0, 200))
    assert faults.freezes == (Freeze(1, 60, 20.0), Freeze(1, 100, 0.5))
    assert faults.slows == (Slow(3, 4.0),)
    assert (faults.slowdown(3), faults.slowdown(0)) == (4.0, 1.0)


@pytest.mark.parametrize("text", ["", "2", "2@", "@60", "2@60:3", "-1@60", "2@6.5", " 2@60", "a@b", "2@60\n"])
def test_a_kill_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match=r"--kill = .*must be PEER@STEP, like 2@60"):
        parse(kill=(text,))


@pytest.mark.parametrize("text", ["", "1@60", "1@60:", "1@60:-2", "1@60:x", "1:60@2", "1@60:1e3"])
def test_a_freeze_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match=r"--freeze = .*must be PEER@STEP:SECONDS, like 1@60:20"):
        parse(freeze=(text,))


@pytest.mark.parametrize("text", ["", "3", "3:", "3@4", "3:x", "3:-4"])
def test_a_slow_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match=r"--slow = .*must be PEER:FACTOR, like 3:4"):
        parse(slow=(text,))


def test_what_the_run_does_not_have() -> None:
    with pytest.raises(UserError, match=r"--kill = '4@60': peers count from 0, so PEER must be at most 3"):
        parse(kill=("4@60",))
    with pytest.raises(UserError, match=r"--freeze = '9@60:1': peers count from 0"):
        parse(freeze=("9@60:1",))
    with pytest.raises(UserError, match=r"--kill = '1@201': STEP must be from 1 to the run's last step \(200\)"):
        parse(kill=("1@201",))
    with pytest.raises(UserError, match=r"--freeze = '1@0:1': STEP must be from 1"):
        parse(freeze=("1@0:1",))
    with pytest.raises(UserError, match=r"--freeze = '1@9:0': SECONDS must be above 0"):
        parse(freeze=("1@9:0",))
    with pytest.raises(UserError, match=r"--slow = '1:0.5': FACTOR must be at least 1"):
        parse(slow=("1:0.5",))


def test_nobody_is_killed_or_slowed_down_twice() -> None:
    with pytest.raises(UserError, match=r"--kill = 2: is given twice"):
        parse(kill=("2@60", "2@70"))
    with pytest.raises(UserError, match=r"--slow = 3: is given twice"):
        parse(slow=("3:4", "3:5"))
