"""docs/compression.md says of each compression what it measures and which parameters it has, and leaves none out."""

import re
from pathlib import Path

import pytest
import torch

from simulation.lab.compression import COMPRESSIONS, compression

PAGE = (Path(__file__).parents[4] / "docs" / "compression.md").read_text(encoding="utf-8")
MEASURED = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([\d.]+) \| ([\d.]+) \|[^|]+\|$", PAGE, re.MULTILINE)
PARAMETERS = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_every_compression_is_in_the_table() -> None:
    assert sorted(name for name, _, _ in MEASURED) == sorted(COMPRESSIONS)


@pytest.mark.parametrize(("name", "bits", "error"), MEASURED)
def test_the_table_says_what_is_measured(name: str, bits: str, error: str) -> None:
    delta = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    sent = compression(name).compress(delta, memory={}, generator=torch.Generator().manual_seed(1))
    digits = len(bits.partition(".")[2])
    assert sent.bits / delta.numel() == pytest.approx(float(bits), abs=0.51 * 10**-digits)
    assert float((sent.values - delta).norm() / delta.norm()) == pytest.approx(float(error), abs=0.006)


@pytest.mark.parametrize("name", [name for name, row in COMPRESSIONS.items() if row.first])
def test_every_parameter_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="with a KEY of") as refusal:
        compression(f"{name}:no-such-key=1")
    known = str(refusal.value).rpartition(" of ")[2].split(", ")
    (described,) = [text for names, text in PARAMETERS if f"`{name}`" in names]
    assert [key for key in known if f"`{key}`" not in described] == []
    assert described.startswith(f"`{COMPRESSIONS[name].first}`")
