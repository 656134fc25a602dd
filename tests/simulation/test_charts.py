"""Charts: files that a browser opens, the same bytes each time, and a clear word where one cannot be drawn."""

import builtins
import xml.etree.ElementTree
from pathlib import Path

import pytest

from protocol.errors import UserError
from simulation.charts import Chart, Series, check_plot, save_charts

CURVES = (Series("data-parallel", (1.0, 10.0, 100.0), (0.1, 0.4, 0.9)), Series("diloco", (1.0, 10.0), (0.5, 0.9)))
CHART = Chart("1B", "Gbit/s", "compute utilization", CURVES, log_x=True, note="no latency")
BAND = Chart("loss", "step", "nats", (Series("four seeds", (0.0, 1.0), (3.0, 2.0), spread=(0.1, 0.2), dashed=True),))


def test_an_svg_names_its_axes_and_curves(tmp_path: Path) -> None:
    save_charts(tmp_path / "plan.svg", [CHART, BAND])
    text = (tmp_path / "plan.svg").read_text()
    xml.etree.ElementTree.fromstring(text)
    for words in ("1B", "Gbit/s", "compute utilization", "data-parallel", "diloco", "no latency", "four seeds"):
        assert words in text


def test_the_same_charts_give_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.SVG"):
        save_charts(tmp_path / name, [CHART, BAND])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.SVG").read_bytes()


def test_a_png(tmp_path: Path) -> None:
    save_charts(tmp_path / "plan.png", [CHART])
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "right"), [("plan.jpg", "must end in .svg or .png"), ("nowhere/plan.svg", "does not exist")]
)
def test_where_no_chart_can_go(tmp_path: Path, name: str, right: str) -> None:
    with pytest.raises(UserError, match=r"--plot = .*" + right):
        check_plot(tmp_path / name)
    with pytest.raises(UserError, match="--plot"):
        save_charts(tmp_path / name, [CHART])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="extra 'plots'"):
        save_charts(tmp_path / "plan.svg", [CHART])


def test_a_chart_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "chart.svg"
    folder.mkdir()
    with pytest.raises(UserError, match="is a directory, must be a file"):
        check_plot(folder)
    pytest.importorskip("matplotlib")
    full = tmp_path / "full.svg"
    full.symlink_to("/dev/full")
    with pytest.raises(UserError, match="cannot be written: No space left"):
        save_charts(full, [Chart("a", "b", "c", [])])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["chart.svg", "full.svg"]
