"""The outer thread: every call has a deadline, nothing is left behind, and garbage manifests are no manifests."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from peer.network import Network, NetworkFailed, matching
from peer.sealing import seal
from peer.settings import Settings
from protocol.errors import UserError
from protocol.manifest import changed, encode, run_id

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


def test_calls_have_deadlines_and_an_end(tmp_path: Path, nothing_left: None) -> None:
    network = Network(Settings(out=tmp_path), print)

    async def fails() -> None:
        raise TimeoutError("a timeout of its own")

    try:
        with pytest.raises(NetworkFailed, match=r"did not answer within 0\.2 s"):
            network.call(asyncio.sleep(30), 0.2)
        with pytest.raises(TimeoutError, match="a timeout of its own"):
            network.call(fails())
        asked = iter([False, True, True])
        with pytest.raises(NetworkFailed, match="stopped"):
            network.call(asyncio.sleep(30), 20.0, lambda: next(asked))
        assert network.call(asyncio.sleep(0, "done")) == "done"
    finally:
        network.close()
    network.close()
    with pytest.raises(NetworkFailed, match="closed"):
        network.call(asyncio.sleep(0))
    assert not network.post(print)


def test_a_notice_that_cannot_be_shown_breaks_nothing(tmp_path: Path, nothing_left: None) -> None:
    def no_reader(text: str) -> None:
        raise BrokenPipeError

    network = Network(Settings(out=tmp_path), no_reader)
    network.notice("hello")
    network.close()


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, nothing_left: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with pytest.raises(UserError):
            Network(Settings(out=tmp_path / "taken", listen=listen), print)
    # Right in form, so the daemon runs before the mistake is found.
    with pytest.raises(UserError):
        Network(Settings(out=tmp_path / "wrong", join=("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWBAD",)), print)


def test_looking_for_a_manifest_ends_when_told_to(tmp_path: Path, nothing_left: None) -> None:
    network = Network(Settings(out=tmp_path), print)
    try:
        with pytest.raises(UserError, match="join: needs an address"):
            network.find_manifest(None)
    finally:
        network.close()
    unreachable = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWBUJifCTgaxAUrcM9JysqCcS4CS8tiYH5hExbdWCAoNwb"
    network = Network(Settings(out=tmp_path, join=(unreachable,)), print)
    try:
        end = time.monotonic() + 0.5
        with pytest.raises(NetworkFailed, match="stopped"):
            network.find_manifest(None, lambda: time.monotonic() > end)
        assert time.monotonic() < end + 5
    finally:
        network.close()


def test_a_run_that_is_not_there_is_a_mistake_once_others_are(
    tmp_path: Path, small: Any, blocks: Any, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing there yet we wait and say so; a wrong name ends as soon as it is known to be wrong."""
    monkeypatch.setattr("peer.network.TELL_FIRST", 0.0)
    monkeypatch.setattr("peer.network.NO_SUCH_RUN", 1.0)
    manifest = seal(small(run__name="dinner"), None, blocks())
    entry, notices = Network(Settings(out=tmp_path / "entry"), print), []
    try:
        join = tuple(entry.call(entry.daemon.addresses()))
        seeker = Network(Settings(out=tmp_path / "seeker", join=join[:1]), notices.append)
        try:
            with pytest.raises(NetworkFailed, match="stopped"):
                seeker.find_manifest("lunch", lambda: len(notices) > 0)
            assert notices[0].startswith(f"No run is published at {join[0]} yet; still asking. A run comes with")

            async def publish() -> None:
                entry.rendezvous.publish_manifest("dinner", encode(manifest))

            entry.call(publish())
            with pytest.raises(UserError) as error:
                seeker.find_manifest("lunch")
            short = run_id(manifest).hex()[:12]
            assert str(error.value) == f"run = 'lunch': is no run here; here are: dinner ({short})"
            assert seeker.find_manifest("dinner") == manifest
        finally:
            seeker.close()
    finally:
        entry.close()


def test_which_manifests_match(small: Any, blocks: Any) -> None:
    one, two = (seal(small(run__name=name), None, blocks()) for name in ("one", "two"))
    everything = [encode(one), b"garbage", encode(two), encode(one), encode(changed(one, {"model.layout": ""}))]
    assert matching(everything, None) == matching(everything, "") == [one, two]
    assert matching(everything, "two") == [two]
    assert matching(everything, run_id(one).hex()[:12].upper()) == [one]
    assert matching(everything, "three") == []
