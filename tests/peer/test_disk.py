"""Files on a disk that fills up, or in a folder that is deleted: lines are lost and counted, and that is all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peer.disk import DiskTrouble, LineFile, write_atomically

LIMITED = """
import resource, sys
from pathlib import Path
from peer.disk import LineFile
errors = []
file = LineFile(Path(sys.argv[1]), errors.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
for number in range(12):
    file.write(f"line {number:03}")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
file.write("the end")
file.close()
print(file.lost, len(errors))
"""


def test_lines_are_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    file = LineFile(path, pytest.fail)
    file.write("one")
    assert path.read_text() == "one\n"
    file.close()
    file.write("two")
    file.close()
    assert path.read_text() == "one\n" and file.lost == 0


def test_a_full_disk_costs_the_lines_that_it_refuses(tmp_path: Path) -> None:
    """The system's own limit stands in for the disk: it too takes half of a line, and then nothing."""
    path = tmp_path / "lines"
    command = [sys.executable, "-c", LIMITED, str(path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split() == ["5", "5"]  # 7 lines of 9 bytes fit into 64
    lines = path.read_text().splitlines()
    assert [line for line in lines if len(line) == 8] == [f"line {number:03}" for number in range(7)]
    assert lines[-1] == "the end" and lines[-2] == "l"  # what was cut spoils nothing after it


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_the_user_hears_of_it_once() -> None:
    notices: list[str] = []
    file = LineFile(Path("/dev/full"), DiskTrouble(Path("out"), notices.append))
    for _ in range(3):
        file.write("line")
    file.close()
    assert file.lost == 3
    assert notices == [
        "Cannot write in out: No space left on device. Training goes on, but what this peer records of it has gaps; "
        "snapshots are tried again, and those before stay."
    ]


def test_lines_and_snapshots_that_one_disk_refuses_are_one_trouble() -> None:
    said: list[str] = []
    trouble = DiskTrouble(Path("out"), said.append, lambda: said.append("incomplete"))
    full = OSError(28, "No space left on device")
    trouble.refused("a snapshot is lost")
    trouble.refused("another one is lost")
    trouble(full)
    trouble(full)
    assert said == ["a snapshot is lost", "incomplete"]
    began = trouble.troubles
    trouble(full)
    trouble.over(began)  # a snapshot of which the disk took the last byte
    trouble.refused("still full")
    assert said[2:] == []
    trouble.over(trouble.troubles)
    trouble(full)  # told once in a life, or a disk on the brink would say it at every line
    trouble.refused("a third one is lost")
    assert said[2:] == ["a third one is lost"]


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    path, errors = tmp_path / "folder" / "lines", []
    file = LineFile(path, errors.append)
    file.write("one")
    shutil.rmtree(path.parent)
    file.write("two")
    file.write("three")
    file.close()
    assert path.read_text() == "two\nthree\n"
    assert len(errors) == 1 and "lines was deleted" in str(errors[0]) and file.lost == 1


def test_a_folder_that_cannot_be_made_costs_lines_until_it_can(tmp_path: Path) -> None:
    errors: list[OSError] = []
    (tmp_path / "folder").write_text("in the way")
    file = LineFile(tmp_path / "folder" / "lines", errors.append)
    file.write("one")
    (tmp_path / "folder").unlink()
    file.write("two")
    file.close()
    assert (tmp_path / "folder" / "lines").read_text() == "two\n"
    assert file.lost == 1 and len(errors) == 2


def test_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"
    write_atomically(path, "one")
    with path.open() as reader:
        write_atomically(path, "two")
        assert reader.read() == "one"
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["summary.json"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_two_processes_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    """Each writes a text of its own many times: all writes succeed, and what is there is one of the texts, whole."""
    code = "import sys; from pathlib import Path; from peer.disk import write_atomically\n"
    code += "for _ in range(300): write_atomically(Path(sys.argv[1]), sys.argv[2] * 20_000)"
    path = tmp_path / "result.json"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            assert path.read_text() in ("a" * 20_000, "b" * 20_000)
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
