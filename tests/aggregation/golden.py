"""Golden bytes of everything that peers must compute alike.

`python tests/aggregation/golden.py` prints them as JSON, computed with one thread and with two, under whatever
ATEN_CPU_CAPABILITY says; test_golden.py compares that with golden.json. A change of these bytes is a change of the
protocol: peers of the old and the new version would not agree. If it is meant: `… golden.py --regenerate` in the
repository's root.
"""

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import codec
from aggregation.fragments import partition
from aggregation.initial import initialize, normal, parameters_digest
from aggregation.outer import ChunkState, accumulate, merge, outer_gradient, outer_step, state_digest

FILE = Path(__file__).with_name("golden.json")
# Above torch's grain of 32,768 elements a thread, so that two threads share the work, and no multiple of any vector
# width.
NUMEL = 100_003


def model() -> nn.Module:
    blocks = nn.ModuleList(nn.TransformerEncoderLayer(48, 4, 96) for _ in range(4))
    return nn.ModuleDict({"embedding": nn.Embedding(64, 48), "blocks": blocks, "norm": nn.LayerNorm(48)})


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def values(tensor: Tensor) -> str:
    return sha(tensor.contiguous().view(torch.uint8).numpy().tobytes())


@cache
def heavy_tailed(name: str, std: float) -> Tensor:
    """A product of bell-shaped values: some nearly zero, some far out, as outer gradients are."""
    return normal(11, name, (NUMEL,), std) * normal(12, name, (NUMEL,), 1.0)


def initial() -> dict[str, str]:
    module = model()
    initialize(module, 3, {"blocks.0.linear2.weight": 0.005})
    layout = partition(module, fragments=2)
    return {
        "normal": values(normal(7, "blocks.0.weight", (700, 801), 0.02)),
        "normal head": normal(7, "blocks.0.weight", (4,), 0.02).numpy().tobytes().hex(),
        "parameters": parameters_digest(module).hex(),
        "layout": layout.digest().hex(),
        "chunks": sha(repr([(c.fragment, c.start, c.stop) for c in layout.chunks(4096)]).encode()),
    }


def codecs() -> dict[str, str]:
    delta = heavy_tailed("delta", 1e-3)
    result = {}
    for name, block in (("e3m0", 256), ("e3m0", 64), ("fp32", 256)):
        chosen = codec(name, block)
        payload = chosen.encode(delta)
        result[f"{name}/{block}"] = sha(payload)
        result[f"{name}/{block} decoded"] = values(chosen.decode(payload, NUMEL))
    result["e3m0 head"] = codec("e3m0").encode(delta[:9]).hex()
    return result


def outer() -> dict[str, str]:
    state = ChunkState(heavy_tailed("anchor", 0.02), torch.zeros(NUMEL))
    result = {}
    for step in range(3):
        deltas = [(100 * peer + 7, heavy_tailed(f"delta {step} {peer}", 1e-3)) for peer in range(3)]
        mean = accumulate(deltas)
        state = outer_step(state, mean, lr=0.4, momentum=0.9)
        result[f"mean {step}"], result[f"state {step}"] = values(mean), state_digest(state).hex()
    local = heavy_tailed("local", 0.02)
    result["outer gradient"] = values(outer_gradient(state.anchor, local))
    for alpha in (0.0, 0.3, 0.5, 0.729, 1.0):
        result[f"merge {alpha}"] = values(merge(local, state.anchor, alpha))
    result["merge bf16"] = values(merge(local.to(torch.bfloat16), state.anchor, 0.3))
    return result


def rounds() -> dict[str, str]:
    """Two whole rounds of four peers, for each pair of codecs."""
    result = {}
    for names in (("e3m0", "e3m0"), ("e3m0", "fp32"), ("fp32", "fp32")):
        sent, made = map(codec, names)
        ours = Arithmetic([NUMEL], contribution_codec=sent, result_codec=made, lr=0.4, momentum=0.9)
        state = ours.load(0, ours.dump(ChunkState(heavy_tailed("anchor", 0.02), torch.zeros(NUMEL))))
        for step in range(2):
            local = [state.anchor + heavy_tailed(f"local {step} {peer}", 1e-3) for peer in range(4)]
            packed = [(3 + peer, ours.contribution(0, state, theta)) for peer, theta in enumerate(local)]
            state = ours.apply(0, state, ours.mean(0, packed))
        result["-".join(names)] = ours.digest(state).hex()
    return result


def compute(num_threads: int) -> dict[str, dict[str, str]]:
    torch.set_num_threads(num_threads)
    return {"initial": initial(), "codecs": codecs(), "outer": outer(), "rounds": rounds()}


def main() -> None:
    if sys.argv[1:] == ["--regenerate"]:
        FILE.write_text(json.dumps(compute(1), indent=1) + "\n")
        return
    capability = torch.backends.cpu.get_cpu_capability()
    print(json.dumps({"capability": capability, "1": compute(1), "2": compute(2)}))


if __name__ == "__main__":
    main()
