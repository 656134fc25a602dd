"""The record: its lines, and the counts that follow from them."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.disk import drop_cut_line
from peer.record import Record, WindowCounts
from protocol.schedule import Window

FRAGMENT_OF = (0, 0, 1)


def record(path: Path) -> Record:
    return Record(path, fragment_of=FRAGMENT_OF, overlap=2, late_steps=3)


def test_counts(tmp_path: Path) -> None:
    made = record(tmp_path / "new" / "record.jsonl")
    made.opened(Window(0, 6), 6)
    made.opened(Window(1, 9), 9)
    made.mixed(0, 6, 0, 1)
    assert made.counts(11) == WindowCounts(opened=2), "one of two chunks, and the other may still come"
    assert made.counts(12) == WindowCounts(opened=2, skipped=1)
    made.mixed(2, 9, 0, 2)
    made.opened(Window(0, 12), 12)
    made.mixed(0, 12, 0, 1)
    made.mixed(1, 12, 1, 1)
    assert made.counts(12) == WindowCounts(opened=3, merged=1, late=1, skipped=1)
    made.opened(Window(0, 18), 18)
    assert made.counts(20) == WindowCounts(opened=4, merged=1, late=1, skipped=1)
    assert made.counts(None) == WindowCounts(opened=4, merged=1, late=1, skipped=2)
    made.mixed(0, 99, 0, 1)  # a window that this peer never opened counts nowhere
    assert made.counts(None).merged == 1
    made.close()


def test_a_window_that_was_mixed_before_it_was_opened_counts_as_merged(tmp_path: Path) -> None:
    made = record(tmp_path / "record.jsonl")
    for chunk in (0, 1):
        made.mixed(chunk, 6, 0, 1)
    made.mixed(2, 3, 0, 1)  # never opened
    made.opened(Window(0, 6), 4)
    assert made.counts(20) == WindowCounts(opened=1, merged=1)
    made.opened(Window(1, 3), 30)
    assert made.counts(None) == WindowCounts(opened=2, merged=1, skipped=1)
    made.close()


def test_lines_are_there_at_once_and_none_comes_after_the_end(tmp_path: Path) -> None:
    made = record(tmp_path / "record.jsonl")
    made.opened(Window(1, 9), 9)
    made.mixed(2, 9, 1, 3)
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert lines == [
        {"kind": "opened", "fragment": 1, "due": 9, "own_step": 9},
        {"kind": "mixed", "chunk": 2, "due": 9, "late": 1, "power": 3},
    ]
    made.close()
    made.write("link", chunk=0)
    made.close()
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 2


def test_two_threads_write_whole_lines(tmp_path: Path) -> None:
    made = record(tmp_path / "record.jsonl")

    def write(name: str) -> None:
        for number in range(300):
            made.write(name, number=number, padding="x" * 200)

    both = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    made.close()
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    for name in ("one", "two"):
        assert [line["number"] for line in lines if line["kind"] == name] == list(range(300))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["merged", "late", "skipped"]), min_size=1, max_size=60))
def test_counts_of_a_long_run_are_exact_and_cost_no_memory(fates: list[str]) -> None:
    made = record(Path("/dev/null"))
    for index, fate in enumerate(fates):
        step = 6 * (index + 1)
        made.opened(Window(1, step), step)
        if fate != "skipped":
            made.mixed(2, step, 1 if fate == "late" else 0, 1)
    made.close()
    counts = made.counts(None)
    assert counts == WindowCounts(len(fates), fates.count("merged"), fates.count("late"), fates.count("skipped"))
    assert len(made._fates) <= 2


def test_a_second_life_goes_on_after_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    first = record(path)
    assert first.begin_life(0, 0) == 1
    first.opened(Window(1, 9), 9)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"mixed","chu')
    second = record(path)
    assert second.begin_life(6, 5) == 2
    second.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.read_bytes().startswith(whole)
    assert lines[2:] == [{"kind": "life", "number": 2, "step": 6, "own_step": 5}]


@given(st.lists(st.integers(0, 200_000), max_size=4), st.integers(0, 200_000))
@settings(max_examples=30, deadline=None)
def test_only_a_cut_line_is_dropped(lengths: list[int], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.jsonl"
        whole = b"".join(b"x" * length + b"\n" for length in lengths)
        path.write_bytes(whole + b"y" * cut)
        drop_cut_line(path)
        assert path.read_bytes() == whole
        drop_cut_line(path.with_name("missing"))
