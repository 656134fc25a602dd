"""The ablations of Streaming DiLoCo (arXiv 2501.18512) as entries, at whatever size the lab is run.

What the paper calls DiLoCo and Data-Parallel is `methods.METHODS`. Tolerances are the paper's own where it gives some.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simulation.lab.compression.compared import COMPARED
from simulation.lab.entries.entry import Case, Entry, Scale
from simulation.lab.entries.judging import Bound, Claim, judged
from simulation.lab.methods import method
from simulation.lab.recipe import Recipe

EXACT = {"up": "none", "down": "none"}
OVERLAPS = (0, 1, 2, 5, 10, 20)
ROUNDS = (5, 10, 20, 30, 60, 120)


def compared(name: str, scale: Scale, **changes: object) -> list[Case]:
    """The cases of an entry on compression: the usual recipe with one compression each way."""
    base = scale.base(**changes)
    rounds = {case: max(2, round(base.sync_every * case.rounds)) for case in COMPARED[name]}
    return [
        Case(
            case.label,
            replace(base, up=case.up, down=case.down, per_tensor=case.per_tensor, sync_every=rounds[case]),
        )
        for case in COMPARED[name]
        if scale.fits(rounds[case])
    ]


def _table3(scale: Scale) -> list[Case]:
    return [Case("streaming", scale.base(settle=False))]


def _replicas(scale: Scale, counts: Iterable[int], rounds: int, total: int) -> list[Case]:
    """`total` samples a step over all replicas."""
    return [
        Case(
            f"M={count} H={rounds}", scale.base(replicas=count, batch=max(1, total // count), sync_every=rounds), count
        )
        for count in counts
        if count <= scale.most_replicas
    ]


def _table6(scale: Scale) -> list[Case]:
    """The labels say which of the two rounds it is, whatever its length."""
    rounds = {"short": scale.sync_every, "long": 3 * scale.sync_every}
    return [
        replace(case, label=f"M={case.x:g} {name}", curve=f"H={h}")
        for name, h in rounds.items()
        if scale.fits(h)
        for case in _replicas(scale, (2, 4), h, 2 * scale.batch)
    ]


def _table7(scale: Scale) -> list[Case]:
    cases = []
    for name, steps in (("short", scale.steps), ("long", 3 * scale.steps)):
        base = scale.base(steps=steps)
        cases += [Case(f"data-parallel, {name}", method("data-parallel", base), steps, "data-parallel")]
        for count in (2, 4):
            batch = max(1, 2 * scale.batch // count)
            cases += [Case(f"M={count}, {name}", replace(base, replicas=count, batch=batch), steps, f"M={count}")]
    return cases


def _fig5(scale: Scale) -> list[Case]:
    base, longer = scale.base(), 3 * scale.sync_every
    cases = [
        Case("data-parallel", method("data-parallel", base)),
        Case("diloco", method("diloco", base)),
        Case("streaming", base),
    ]
    return [*cases, Case("streaming, 3H", replace(base, sync_every=longer))] if scale.fits(longer) else cases


def _fig6(scale: Scale) -> list[Case]:
    sizes = [size for size in range(1, scale.layers + 1) if scale.layers % size == 0 and size <= 6]
    return [
        Case(f"{size} layers, {pattern}", scale.base(fragments=scale.layers // size, pattern=pattern, **EXACT),
             size, pattern)
        for pattern in ("strided", "sequential")
        for size in sizes
        if not (pattern == "sequential" and size in (1, scale.layers))
    ]  # fmt: skip


def _fig8(scale: Scale) -> list[Case]:
    return [
        Case(f"τ={tau} α={alpha:g}", scale.base(overlap=(tau,), mixing=(alpha,)), tau, f"α={alpha:g}")
        for alpha in (0.0, 0.5)
        for tau in OVERLAPS
        if tau < scale.sync_every and (tau or alpha == 0)
    ]


def _fig10(scale: Scale) -> list[Case]:
    return [
        Case(f"τ=1 and {tau}", scale.base(overlap=(1, tau)), tau)
        for tau in (1, 2, 3, 5, 7, 10)
        if tau < scale.sync_every
    ]


def _fig12(scale: Scale) -> list[Case]:
    counts = (1, 2, 4, 8, 16, 32)
    same_global = _replicas(scale, counts, scale.sync_every, 8 * scale.batch)
    cases = [replace(case, label=f"M={case.x:g}, global batch", curve="global") for case in same_global]
    for count in counts:
        steps = 2 * scale.steps // count
        if count <= scale.most_replicas and scale.fits(scale.sync_every, steps):
            recipe = scale.base(replicas=count, steps=steps)
            cases.append(Case(f"M={count}, local batch", recipe, count, "local"))
    return cases


def _fig13(scale: Scale) -> list[Case]:
    def cases(name: str, base: Recipe) -> list[Case]:
        fitting = [rounds for rounds in ROUNDS if scale.fits(rounds)]
        return [Case(f"{name}, H={h}", method(name, replace(base, sync_every=h)), h, name) for h in fitting]

    return cases("diloco", scale.base()) + cases("streaming", scale.base())


def _cosines(scale: Scale) -> list[Case]:
    return [Case("streaming", scale.base(**EXACT))]


def _fedpart(scale: Scale) -> list[Case]:
    return [Case("streaming", scale.base()), Case("frozen", method("fedpart", scale.base()))]


PAPER = (
    Entry("table3", "Which parameters to evaluate", "Outer parameters 2.67, the average of replicas 2.68, the first "
          "replica 2.77: evaluate the outer parameters.", _table3, judged(
              Claim("streaming", "streaming", what="average", what_high="first"),
              Claim("streaming", "streaming", within=0.005, what="loss", what_high="average")),
          columns=("loss", "average", "first")),
    Entry("table6", "Twice the replicas at the same global batch", "M = 4 instead of 2 costs 0.02 to 0.07, at H = 30 "
          "as at H = 100.", _table6, judged(
              Claim("M=2 short", "M=4 short"), Claim("M=4 short", "M=2 short", within=0.02),
              Claim("M=2 long", "M=4 long"), Claim("M=4 long", "M=2 long", within=0.02)), x_label="replicas"),
    Entry("table7", "Overtraining", "At many tokens Streaming DiLoCo matches Data-Parallel: 2.45 and 2.45 with two "
          "replicas, 2.47 with four.", _table7, judged(
              Claim("M=2, long", "data-parallel, long", within=0.005),
              Claim("M=4, long", "data-parallel, long", within=0.01)),
          columns=("loss", "bits_up"), x_label="steps"),
    Entry("fig5", "Data-Parallel, DiLoCo, Streaming DiLoCo", "All three end within 0.01 of each other from 1B on, and "
          "within 0.03 at 35M (of 3.5); longer rounds cost 0.01 to 0.03.", _fig5, judged(
              Claim("diloco", "data-parallel", within=0.01), Claim("streaming", "diloco", within=0.005),
              Claim("diloco", "streaming", within=0.005),
              Claim("streaming", "streaming, 3H")), columns=("loss", "bits_up", "peak_bits")),
    Entry("fig6", "Layers of a fragment", "One layer a fragment costs about 2% (2.73 against 2.67), three are as good "
          "as more; strided is slightly better than sequential.", _fig6, judged(
              Claim("3 layers, strided", "1 layers, strided"),
              Claim("3 layers, strided", "6 layers, strided", within=0.005),
              Claim("3 layers, strided", "3 layers, sequential")), columns=("loss", "peak_bits"), x_label="layers"),
    Entry("fig8", "Overlap τ and mixing α", "Up to τ = 10 overlapping costs less than 0.2%, with α = 0 as with 0.5.",
          _fig8, judged(
              Claim("τ=10 α=0", "τ=0 α=0", within=0.002), Claim("τ=10 α=0.5", "τ=0 α=0", within=0.002)),
          x_label="τ"),
    Entry("fig10", "Uneven τ", "With τ = 1 for one replica, up to 5 for the other costs little; 10 costs more.",
          _fig10, judged(Claim("τ=1 and 5", "τ=1 and 1", within=0.002), Claim("τ=1 and 1", "τ=1 and 10")),
          x_label="τ of the second replica"),
    Entry("fig11", "Fewer bits or fewer values", "Four bits (E3M0) cost nothing; dropping values (FedDropout, DARE, "
          "Top-K, TIES) costs, most of all at random.", lambda scale: compared("fig11", scale), judged(
              Claim("e3m0", "none", within=0.001), Claim("e3m0", "fed-dropout:0.5"), Claim("e3m0", "dare:0.5"),
              Claim("e3m0", "top-k:0.469"), Claim("e3m0", "ties:0.469"), Claim("e3m0", "top-k:0.0947"),
              Claim("top-k:0.469", "fed-dropout:0.5")), columns=("loss", "bits_up")),
    Entry("fig12", "Number of replicas", "More replicas cost a little, at a constant global batch (a) and at a "
          "constant local one with fewer steps (b).", _fig12, judged(
              Claim("M=2, global batch", "M=4, global batch"), Claim("M=4, global batch", "M=8, global batch"),
              Claim("M=2, local batch", "M=4, local batch"), Claim("M=4, local batch", "M=8, local batch")),
          x_label="replicas", log_x=True),
    Entry("fig13", "Length of a round", "H below 10 and above 100 hurts; Streaming DiLoCo bears short rounds better "
          "than DiLoCo.", _fig13, judged(
              Claim("streaming, H=5", "diloco, H=5"), Claim("streaming, H=30", "streaming, H=5"),
              Claim("streaming, H=30", "streaming, H=120")), x_label="H", log_x=True),
    Entry("fig17", "Cosine similarity of outer gradients", "Replicas' Δ are nearly orthogonal: 0.1 at the start, 0 for "
          "most of the run, −0.1 at the end.", _cosines, judged(
              Claim("streaming", "streaming", what="cosine end", what_high="cosine start"),
              Bound("streaming", "cosine all", 0.1, above=-0.1), Bound("streaming", "cosine end", 0.0)),
          columns=("loss", "cosine start", "cosine all", "cosine end"), plot="cosine"),
    Entry("fig18", "Cosine similarity by layer", "The first layer's Δ agree much more than those of all other layers.",
          _cosines, judged(Claim("streaming", "streaming", what="cosine others", what_high="cosine 0")),
          columns=("loss", "cosine embedding", "cosine 0", "cosine others"), plot="cosine"),
    Entry("fedpart", "Freezing what is not due (section 3.3.1)", "Training only the fragment that is due next costs "
          "20%: 3.2145 against 2.6749.", _fedpart, judged(Claim("streaming", "frozen"))),
)  # fmt: skip
