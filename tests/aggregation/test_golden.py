"""The golden bytes are the same for every instruction set that this CPU has, with one thread and with two.

ATEN_CPU_CAPABILITY is read when torch is loaded, hence one process for each instruction set.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ORDER = ["DEFAULT", "AVX2", "AVX512"]


@pytest.mark.parametrize("capability", ORDER)
def test_golden_bytes(capability: str) -> None:
    best = torch.backends.cpu.get_cpu_capability()
    if capability != "DEFAULT" and (best not in ORDER or ORDER.index(best) < ORDER.index(capability)):
        pytest.skip(f"torch uses {best} on this CPU")
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability.lower(), "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "golden.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    computed = json.loads(done.stdout)
    golden = json.loads((HERE / "golden.json").read_text())
    assert computed["capability"] == capability or capability == "DEFAULT"
    assert computed["1"] == golden
    assert computed["2"] == golden
