"""Snapshots on disk: whole or not there, damage found wherever it is, the one before used."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from peer.snapshot_files import INDEX, Damaged, Index, SnapshotFolder, encode_index, read_index, verified
from protocol.errors import UserError

RUN = bytes(range(32))


def index(step: int, run: bytes = RUN) -> Index:
    return Index(
        potluck="1.0", run=run.hex(), peer="ab" * 32, step=step, own_step=step, tokens=64 * step, from_step=0, seat=1,
        mixed=(0, 6), opened=((0, 6, 6),), marks=(0, 0), optimizer={"class": "SGD", "lr": 0.05}, loop=None,
    )  # fmt: skip


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "parameters": {"weight": torch.full((4, 4), float(step))},
        "outer": {"result.0": torch.arange(9, dtype=torch.uint8)},
        "optimizer": {},
    }


def folder(path: Path, kept: int = 3, run: bytes = RUN) -> SnapshotFolder:
    return SnapshotFolder(path / "snapshots", run=run, kept=kept)


def write(path: Path, *steps: int, kept: int = 3) -> SnapshotFolder:
    made = folder(path, kept)
    for step in steps:
        made.write(tensors(step), "[run]\n", index(step))
    return made


def steps(made: SnapshotFolder) -> tuple[list[int], list[str]]:
    """Of the good ones, newest first, and what was said."""
    said: list[str] = []
    return [snapshot.index.step for snapshot in made.good(said.append)], said


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    made = write(tmp_path, 12)
    (snapshot,) = made.good(pytest.fail)
    assert snapshot.path.name == "00000012"
    assert snapshot.index.opened == ((0, 6, 6),) and snapshot.index.optimizer == {"class": "SGD", "lr": 0.05}
    assert torch.equal(snapshot.tensors("parameters")["weight"], torch.full((4, 4), 12.0))
    assert snapshot.tensors("optimizer") == {}
    assert sorted(os.listdir(made.path)) == ["00000012"]
    assert sorted(snapshot.index.files) == [
        "manifest.toml", "optimizer.safetensors", "outer.safetensors", "parameters.safetensors",
    ]  # fmt: skip


def test_a_snapshot_outlives_its_files(tmp_path: Path) -> None:
    made = write(tmp_path, 12)
    (snapshot,) = made.good(pytest.fail)
    loaded = snapshot.tensors("parameters")
    (snapshot.path / "parameters.safetensors").write_bytes(b"")
    shutil.rmtree(made.path)
    assert torch.equal(loaded["weight"], torch.full((4, 4), 12.0))


def test_the_newest_stay(tmp_path: Path) -> None:
    made = write(tmp_path, 6, 12, 18, 24, kept=2)
    assert steps(made) == ([24, 18], [])
    made.write(tensors(30), "", index(100_000_000))  # more digits than the others
    assert steps(made) == ([100_000_000, 24], [])


def test_a_step_reached_again_is_written_again(tmp_path: Path) -> None:
    made = write(tmp_path, 6, 12)
    again = tensors(12)
    again["parameters"]["weight"] += 1
    made.write(again, "", index(12))
    assert steps(made) == ([12, 6], [])
    (newest, _) = made.good(pytest.fail)
    assert newest.tensors("parameters")["weight"][0, 0] == 13


def places(path: Path) -> Iterator[tuple[Path, int]]:
    """Every byte of the index, and some of each other file, its ends among them."""
    chance = random.Random(0)
    for file in sorted(path.iterdir()):
        size = file.stat().st_size
        some = {0, 1, size // 2, size - 1, *(chance.randrange(size) for _ in range(20))}
        for position in range(size) if file.name == INDEX else sorted(some):
            yield file, position


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    made = write(tmp_path, 12)
    path = made.path / "00000012"
    chance = random.Random(1)
    for file, position in places(path):
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[position] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(Damaged):
            verified(path)
        file.write_bytes(whole)
    verified(path)


def test_a_cut_anywhere_is_found(tmp_path: Path) -> None:
    made = write(tmp_path, 12)
    path = made.path / "00000012"
    for file, position in places(path):
        whole = file.read_bytes()
        file.write_bytes(whole[:position])
        with pytest.raises(Damaged):
            verified(path)
        file.write_bytes(whole + b" ")
        with pytest.raises(Damaged):
            verified(path)
        file.write_bytes(whole)
    verified(path)


@pytest.mark.parametrize("name", [INDEX, "manifest.toml", "parameters.safetensors", "outer.safetensors"])
def test_the_one_before_is_used_with_one_line(tmp_path: Path, name: str) -> None:
    made = write(tmp_path, 6, 12)
    (made.path / "00000012" / name).unlink()
    found, said = steps(made)
    assert found == [6]
    (line,) = said
    assert "00000012 is passed over" in line and f"{name} is missing" in line


def test_a_deleted_or_emptied_folder_is_no_snapshot(tmp_path: Path) -> None:
    made = write(tmp_path, 6)
    shutil.rmtree(made.path / "00000006")
    (made.path / "00000012").mkdir()
    (made.path / "notes").mkdir()
    found, said = steps(made)
    assert found == [] and len(said) == 1
    assert steps(folder(tmp_path / "nowhere")) == ([], [])


def test_rubbish_of_earlier_lives_is_removed_and_nothing_else(tmp_path: Path) -> None:
    made = write(tmp_path, 6)
    for name in (".part-12345678", ".old-12345678", "mine"):
        (made.path / name).mkdir()
        (made.path / name / "parameters.safetensors").write_bytes(b"half")
    made.clean()
    assert sorted(os.listdir(made.path)) == ["00000006", "mine"]
    folder(tmp_path / "nowhere").clean()


def test_what_was_not_replaced_yet_is_put_back(tmp_path: Path) -> None:
    """A kill between the two renames, and one after them."""
    made = write(tmp_path, 6)
    (made.path / "00000006").rename(made.path / ".old-00000006-1a2b3c4d")
    made.clean()
    assert steps(made) == ([6], []) and sorted(os.listdir(made.path)) == ["00000006"]
    shutil.copytree(made.path / "00000006", made.path / ".old-00000006-1a2b3c4d")
    made.clean()
    assert sorted(os.listdir(made.path)) == ["00000006"]


@pytest.mark.parametrize("kept", [1, 2])
def test_damaged_ones_of_later_steps_push_no_good_one_out(tmp_path: Path, kept: int) -> None:
    """All that a restart found was damaged, so it began again; until it has passed them they are the oldest."""
    made = write(tmp_path, 280, 300, kept=kept)
    for path in made.path.iterdir():
        (path / INDEX).write_bytes(b"?")
    for step in (100, 120):
        assert made.write(tensors(step), "", index(step)).exists()
        assert steps(made)[0][0] == step
    assert sorted(os.listdir(made.path)) == ["00000100", "00000120"][-kept:]


def test_another_run_s_snapshots_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 6)
    other = folder(tmp_path, run=bytes(32))
    with pytest.raises(UserError, match=r"out = .*holds snapshots of another run \(000102030405\); this one is 000000"):
        other.check_run()
    folder(tmp_path).check_run()
    (tmp_path / "snapshots" / "00000006" / INDEX).write_bytes(b"?")
    other.check_run()  # nobody can tell whose it was


def test_another_format_is_passed_over(tmp_path: Path) -> None:
    made = write(tmp_path, 6, 12)
    file = made.path / "00000012" / INDEX
    import msgspec

    newer = msgspec.structs.replace(read_index(file.parent), snapshot=2)
    file.write_bytes(encode_index(newer))
    found, (line,) = steps(made)
    assert found == [6] and "format 2" in line


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    made = write(tmp_path, 6)
    file = made.path / "00000006" / INDEX
    import msgspec

    whole = read_index(file.parent)
    outside = {**whole.files, "../../secret": whole.files["manifest.toml"]}
    file.write_bytes(encode_index(msgspec.structs.replace(whole, files=outside)))
    with pytest.raises(Damaged, match="elsewhere"):
        verified(file.parent)


@pytest.mark.parametrize("stop", ["manifest.toml", "parameters", "outer", "rename"])
def test_what_fails_in_the_middle_leaves_what_was_there(
    tmp_path: Path, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write(tmp_path, 6)

    def failing(name: str) -> None:
        if stop in name:
            raise OSError(28, "No space left on device")

    from peer import snapshot_files

    save, text, rename = snapshot_files._save, Path.write_text, Path.rename
    monkeypatch.setattr(snapshot_files, "_save", lambda group, path: (failing(path.name), save(group, path)))
    monkeypatch.setattr(Path, "write_text", lambda path, *a, **k: (failing(path.name), text(path, *a, **k))[1])
    monkeypatch.setattr(Path, "rename", lambda path, target: (failing("rename"), rename(path, target))[1])
    with pytest.raises(OSError):
        made.write(tensors(12), "", index(12))
    monkeypatch.undo()
    assert sorted(os.listdir(made.path)) == ["00000006"]
    assert steps(made) == ([6], [])


def test_a_replacement_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write(tmp_path, 6, kept=1)
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name.startswith(".part-"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError):
        made.write(tensors(7), "", index(6))
    monkeypatch.undo()
    assert steps(made) == ([6], []) and sorted(os.listdir(made.path)) == ["00000006"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    made = write(small_disk, 6)
    large = tensors(12)
    large["parameters"]["weight"] = torch.zeros(100_000)
    with pytest.raises(OSError, match="No space left on device"):
        made.write(large, "", index(12))
    assert steps(made) == ([6], [])
    assert sorted(os.listdir(made.path)) == ["00000006"]
    made.write(tensors(18), "", index(18))
    assert steps(made) == ([18, 6], [])


def test_a_folder_that_cannot_be_written(small_disk: Path) -> None:
    made = write(small_disk, 6)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only"):
        made.write(tensors(12), "", index(12))
    assert steps(made) == ([6], [])
