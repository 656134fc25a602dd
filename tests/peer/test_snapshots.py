"""A peer that ends, however it ends, goes on where its newest good snapshot was."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from peer.member import Peer
from peer.snapshot_files import INDEX, SnapshotFolder, read_index, verified
from protocol.manifest import Manifest

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

Small = Callable[..., Manifest]
WIDTH = 16


class Position:
    """What a loop of one's own keeps: here, how many batches it has taken."""

    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "noise": torch.tensor([1.5])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert torch.equal(state_dict["noise"], torch.tensor([1.5]))
        self.batches = state_dict["batches"]


class Life:
    """One process's worth of a peer: model, optimizer and membership are new, the folder is not."""

    def __init__(
        self, folder: Path, manifest: Manifest | None, model: nn.Module, *, join: tuple[str, ...] = (), **settings: Any
    ) -> None:
        self.model, self.notices, self.position = model, list[str](), Position()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        ours = potluck.Settings(out=folder, join=join, linger=2, **settings)
        self.peer: Peer = potluck.join(
            model, self.optimizer, tokens_per_step=64, manifest=manifest, settings=ours, kept=self.position,
            notice=self.notices.append,
        )  # fmt: skip

    def train(self, steps: int = 10**6) -> None:
        for _ in range(steps):
            if self.peer.finished:
                return
            self.position.batches += 1
            batch = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH) * (1 + self.position.batches % 7)
            (self.model(batch) - batch.flip(1)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def digest(self, model: nn.Module) -> bytes:
        return self.peer.write_outer(potluck.ModuleParameters(model, self.peer.layout))

    def leave(self) -> None:
        """In order, as after a signal."""
        self.peer._leave()

    def die(self) -> None:
        """As after kill -9: nothing is said and nothing written."""
        self.peer._keeping.snapshots._interval = 0
        self.peer._leave()

    def flat(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


@pytest.fixture
def lives(tmp_path: Path, blocks: Any, nothing_left: None) -> Iterator[Callable[..., Life]]:
    """`lives(manifest, folder="name")`: one more life in a folder; all are ended at the end."""
    made: list[Life] = []

    def begin(manifest: Manifest | None, folder: str = "peer", **settings: Any) -> Life:
        made.append(Life(tmp_path / folder, manifest, blocks(), **settings))
        return made[-1]

    try:
        yield begin
    finally:
        for life in made:
            life.leave()


def snapshots(folder: Path) -> list[int]:
    """Their steps, oldest first."""
    return sorted(int(path.name) for path in (folder / "snapshots").iterdir() if path.name.isdigit())


def written(life: Life) -> None:
    """Until what is being written is on the disk."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        life.peer.network.call(_nothing())  # what was posted to the outer thread before has been done
        if life.peer._keeping.snapshots.wait(30):
            return
    raise AssertionError("a snapshot takes for ever")


async def _nothing() -> None: ...


def test_a_restart_goes_on_exactly(lives: Any, small: Small, blocks: Any, tmp_path: Path) -> None:
    """In lock-step a run with a restart in it ends with the same bytes as one without: parameters, outer state, place.

    The cut at step 13 is in the middle of a window: opened at 12, to be merged at 14.
    """
    manifest = small(run__steps=32)
    whole = lives(manifest, "whole", lockstep=True)
    whole.train()
    first = lives(manifest, "cut", lockstep=True)
    first.train(13)
    first.leave()
    assert snapshots(tmp_path / "cut")[-1] == 13
    second = lives(manifest, "cut", lockstep=True)
    assert (second.peer.step, second.peer.own_step, second.peer.tokens) == (13, 13, 13 * 64)
    assert second.position.batches == 13
    assert any("Going on from the snapshot of step 13" in text for text in second.notices)
    second.train()
    assert torch.equal(whole.flat(), second.flat())
    assert (second.peer.own_step, second.peer.tokens) == (whole.peer.own_step, whole.peer.tokens) == (32, 32 * 64)
    assert whole.digest(blocks()) == second.digest(blocks())
    lines = [json.loads(line) for line in (tmp_path / "cut" / "record.jsonl").read_text().splitlines()]
    assert [(line["number"], line["step"]) for line in lines if line["kind"] == "life"] == [(1, 0), (2, 13)]


def test_a_kill_costs_the_steps_since_the_last_snapshot(lives: Any, small: Small, tmp_path: Path) -> None:
    first = lives(small(run__steps=100))
    first.train(14)
    written(first)
    identity = first.peer.peer_id
    first.die()
    assert snapshots(tmp_path / "peer")[-1] in (6, 12)
    second = lives(small(run__steps=100))
    assert second.peer.peer_id == identity
    assert second.peer.step == snapshots(tmp_path / "peer")[-1]
    step = second.peer.step
    second.train(3)
    assert second.peer.step >= step + 3


def test_damage_costs_one_line_and_the_one_before_is_used(lives: Any, small: Small, tmp_path: Path) -> None:
    manifest = small(run__steps=100)
    first = lives(manifest)
    for _ in range(3):
        first.train(6)
        written(first)
    first.die()
    path = tmp_path / "peer" / "snapshots"
    assert snapshots(tmp_path / "peer") == [6, 12, 18]
    file = path / "00000018" / "parameters.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    shutil.rmtree(path / "00000012")
    second = lives(manifest)
    assert second.peer.step == 6
    said = [text for text in second.notices if "snapshot" in text]
    assert len(said) == 2
    assert "00000018 is passed over: parameters.safetensors does not have the size" in said[0]
    second.die()
    shutil.rmtree(path)
    third = lives(manifest)
    assert third.peer.step == third.peer.own_step == third.peer.tokens == 0
    assert [text for text in third.notices if "snapshot" in text] == [
        f"No usable snapshot in {path}, though this peer was in this run before. It comes in again as a newcomer does: "
        "with what the others have, if they have begun."
    ]


def test_a_whole_snapshot_with_a_lie_in_it_is_passed_over(lives: Any, small: Small, tmp_path: Path) -> None:
    """Hashes prove that it is what was written; the links prove that it is the swarm's."""
    from safetensors.torch import load_file, save_file

    from peer import snapshot_files

    manifest = small(run__steps=100)
    first = lives(manifest)
    for _ in range(2):
        first.train(6)
        written(first)
    first.train(2)
    first.leave()
    path = tmp_path / "peer" / "snapshots" / "00000014"
    outer = load_file(path / "outer.safetensors")
    outer = {name: tensor.clone() for name, tensor in outer.items()}
    outer["anchor.0"][0] += 1
    save_file(outer, path / "outer.safetensors")
    index = read_index(path)
    import msgspec

    files = {**index.files, "outer.safetensors": snapshot_files._entry(path / "outer.safetensors")}
    (path / INDEX).write_bytes(snapshot_files.encode_index(msgspec.structs.replace(index, files=files)))
    second = lives(manifest)
    assert second.peer.step == 12
    (said,) = [text for text in second.notices if "passed over" in text]
    assert "chunk 0 of outer.safetensors does not prove itself" in said


def test_another_run_s_folder_is_refused_and_left_alone(lives: Any, small: Small, tmp_path: Path) -> None:
    first = lives(small(run__steps=20))
    first.train(8)
    first.leave()
    record = (tmp_path / "peer" / "record.jsonl").read_bytes()
    with pytest.raises(potluck.UserError, match="holds snapshots of another run"):
        lives(small(run__steps=21))
    assert (tmp_path / "peer" / "record.jsonl").read_bytes() == record
    assert snapshots(tmp_path / "peer") == [6, 8]


def test_a_disk_that_takes_nothing_costs_one_line(lives: Any, small: Small, tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "snapshots").write_text("in the way")
    life = lives(small(run__steps=30))
    for _ in range(3):
        life.train(6)
        written(life)
    said = [text for text in life.notices if "could not be written" in text]
    assert len(said) == 1 and "Training goes on" in said[0]
    (tmp_path / "peer" / "snapshots").unlink()
    life.train(6)
    written(life)
    assert snapshots(tmp_path / "peer") == [24]
    shutil.rmtree(tmp_path / "peer" / "snapshots")
    life.train()
    life.leave()
    assert snapshots(tmp_path / "peer")[-1] == 30
    assert len([text for text in life.notices if "could not be written" in text]) == 1


def test_parameters_that_are_not_finite_are_not_kept(lives: Any, small: Small, tmp_path: Path) -> None:
    life = lives(small(run__steps=30))
    life.train(6)
    written(life)
    with torch.no_grad():
        life.model[0].weight.fill_(float("nan"))
    life.leave()
    assert snapshots(tmp_path / "peer") == [6]
    life.train(1)


def test_another_optimizer_starts_afresh_and_says_so(lives: Any, small: Small) -> None:
    first = lives(small(run__steps=30))
    first.train(8)
    first.leave()
    from peer.snapshots import restore_state
    from protocol.manifest import run_id

    folder = SnapshotFolder(first.peer.settings.out / "snapshots", run=run_id(first.peer.manifest), kept=1)
    snapshot = next(folder.good(pytest.fail))
    other, said = torch.optim.SGD(first.model.parameters(), lr=0.5, momentum=0.9), []
    restore_state(snapshot, other, None, said.append)
    assert len(said) == 1 and "it is of AdamW, and this is SGD" in said[0]
    assert other.state_dict()["state"] == {} and other.param_groups[0]["lr"] == 0.5
    fewer = torch.optim.AdamW(list(first.model.parameters())[:2], lr=0.5)
    restore_state(snapshot, fewer, None, said.append)
    assert len(said) == 2 and "starts afresh" in said[1]
    assert fewer.state_dict()["state"] == {}


def test_what_only_its_program_can_keep_is_left_out(lives: Any, small: Small, tmp_path: Path) -> None:
    life = lives(small(run__steps=30))
    life.position.state_dict = lambda: {"file": object()}  # type: ignore[method-assign]
    life.train(7)
    written(life)
    life.train(6)
    life.leave()
    assert len([text for text in life.notices if "state of the loop is not part of snapshots" in text]) == 1
    index = read_index(tmp_path / "peer" / "snapshots" / "00000013")
    assert index.loop is None and index.optimizer is not None


def test_none_are_written_if_none_are_wanted(lives: Any, small: Small, tmp_path: Path) -> None:
    life = lives(small(run__steps=13), snapshot_every=0)
    life.train()
    life.leave()
    assert not (tmp_path / "peer" / "snapshots").exists()


def test_the_outer_parameters_written_into_the_model_are_not_its_own(lives: Any, small: Small, tmp_path: Path) -> None:
    """`linger` takes the last snapshot; what `write_outer` does to the model afterwards is not this peer's θ."""
    life = lives(small(run__steps=13))
    life.train()
    own = life.flat()
    life.peer.linger()
    life.digest(life.model)
    assert not torch.equal(own, life.flat())
    life.leave()
    second = lives(small(run__steps=13))
    assert second.peer.finished
    assert torch.equal(second.flat(), own)


def test_a_last_snapshot_that_failed_is_tried_again(
    lives: Any, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full while the peer lingers, and has room again when it leaves; nothing else has changed."""
    life = lives(small(run__steps=13))
    life.train()

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotFolder, "write", full)
        life.peer.linger()
    assert not list((tmp_path / "peer" / "snapshots").glob("00000013"))
    life.leave()
    assert verified(tmp_path / "peer" / "snapshots" / "00000013").index.step == 13


def test_a_peer_that_comes_back_counts_its_tokens_once(lives: Any, small: Small) -> None:
    """Weight is what was trained since the last contribution that a link names, over the restart too."""
    first = lives(small(run__steps=100), lockstep=True)
    first.train(13)
    first.leave()
    second = lives(small(run__steps=100), lockstep=True)
    second.train(6)  # the window of step 18, six steps after that of step 12
    second.peer.network.call(_nothing())
    chain = second.peer.outer.node.ledger.chains[0]
    assert chain.newest is not None and chain.newest.message.link.due == 18
    assert [part.tokens for part in chain.newest.message.link.parts] == [6 * 64]


def test_one_of_two_comes_back_with_the_same_name_and_is_brought_up_to_date(
    lives: Any, small: Small, blocks: Any
) -> None:
    manifest = small(run__steps=40, run__start_peers=2)
    stays = lives(manifest, "stays", merge_wait=0.5)
    leaves = lives(manifest, "leaves", merge_wait=0.5, join=(stays.peer.addresses[0],))
    for life in (stays, leaves):
        life.peer.gather()
    for _ in range(9):
        stays.train(1)
        leaves.train(1)
    leaves.leave()
    stays.train(9)
    back = lives(manifest, "leaves", merge_wait=0.5, join=(stays.peer.addresses[0],))
    back.peer.gather()
    end = time.monotonic() + 30
    key = back.peer.network.identity.key
    while key not in stays.peer.outer.connected or not back.peer.outer.connected:
        assert time.monotonic() < end
        back.peer.network.call(_nothing())
        time.sleep(0.02)
    assert back.peer.own_step == 9
    while not (stays.peer.finished and back.peer.finished):
        stays.train(1)
        back.train(1)
        time.sleep(0.05)  # real steps take longer than a round trip
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda life: life.peer.linger(), (back, stays)))
    assert stays.digest(blocks()) == back.digest(blocks())
    newest = stays.peer.outer.node.ledger.chains[0].newest
    assert newest is not None and key in {part.peer for part in newest.message.link.parts}


def test_two_peers_have_seats_of_their_own_and_keep_them(lives: Any, small: Small, tmp_path: Path) -> None:
    manifest = small(run__steps=100, run__start_peers=2)
    one = lives(manifest, "one")
    other = lives(manifest, "other", join=(one.peer.addresses[0],))
    for life in (one, other):
        life.peer.gather()
        life.train(2)
    seats = [one.peer.seat, other.peer.seat]
    assert sorted(seats) == [0, 1]
    other.train(5)
    other.leave()
    assert lives(manifest, "other", join=(one.peer.addresses[0],)).peer.seat == seats[1]
