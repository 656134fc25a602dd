"""Questions that the paper leaves open, and some that it does not ask."""

from __future__ import annotations

from dataclasses import replace

from simulation.lab.entries.entry import Case, Entry, Scale
from simulation.lab.entries.judging import Claim, best, best_for_bytes, judged
from simulation.lab.entries.paper import compared
from simulation.lab.methods import METHODS, method
from simulation.lab.recipe import Away


def _methods(scale: Scale) -> list[Case]:
    """Four replicas, so that pairs are not everyone. One alone reads a quarter of what they read."""
    alone = Case("one replica alone", method("data-parallel", scale.base(replicas=1)))
    return [alone, *(Case(name, method(name, scale.base(replicas=4))) for name in METHODS)]


def _random_subsets(scale: Scale) -> list[Case]:
    base = scale.base()
    cases = [Case("streaming", base), Case("fedavg", method("fedavg", base))]
    for name in ("sparta", "wash"):
        subset = method(name, base)
        cases += [Case(f"{name}, {100 * share:g}%", replace(subset, share=share)) for share in (0.005, 0.05, 0.5)]
    return cases


def _alpha(scale: Scale) -> list[Case]:
    tau = min(5, scale.sync_every - 1)
    alphas = (0.0, 0.25, 0.5, 0.75, 0.9)
    return [Case(f"α={a:g}", scale.base(overlap=(tau,), mixing=(a,)), a) for a in alphas]


def _annealed(scale: Scale) -> list[Case]:
    tau = min(5, scale.sync_every - 1)
    pairs = ((0.5, 0.5), (0.0, 0.0), (0.9, 0.0), (0.5, 0.0), (0.0, 0.5), (0.0, 0.9))
    return [Case(f"α {a:g} to {b:g}", scale.base(overlap=(tau,), mixing=(a, b))) for a, b in pairs]


def _alpha_tau_lr(scale: Scale) -> list[Case]:
    return [
        Case(f"α={a:g} τ={t} lr={lr:g}", scale.base(mixing=(a,), overlap=(t,), outer_lr=lr), t, f"α={a:g} lr={lr:g}")
        for a in (0.0, 0.5)
        for lr in (0.4, 0.8)
        for t in (1, 5, 10)
        if t < scale.sync_every
    ]


def _outer_lr(scale: Scale) -> list[Case]:
    plain = [
        Case(f"lr={lr:g} μ={mu:g}", scale.base(outer_lr=lr, outer_momentum=mu), lr, f"μ={mu:g}")
        for mu in (0.0, 0.5, 0.9)
        for lr in (0.2, 0.4, 0.7, 1.0)
    ]
    count = scale.base().fragments
    tilted = [1.0 + 0.5 * (2 * index / max(1, count - 1) - 1) for index in range(count)]
    return [
        *plain,
        Case("lr rising with the fragment", scale.base(lr_of_fragment=tuple(tilted))),
        Case("lr falling with the fragment", scale.base(lr_of_fragment=tuple(reversed(tilted)))),
        Case("adam lr=0.01", scale.base(outer="adam", outer_lr=0.01)),
    ]


def _fragment_size(scale: Scale) -> list[Case]:
    even = [size for size in range(1, scale.layers // 2 + 1) if scale.layers % size == 0]
    cases = [Case(f"{n} layers each", scale.base(sizes=(n,) * (scale.layers // n)), n) for n in even]
    if scale.layers > 2:
        head, tail = 1, scale.layers - 1
        cases += [
            Case(f"mixed, {head} then {tail}", scale.base(sizes=(head, tail))),
            Case(f"mixed, {tail} then {head}", scale.base(sizes=(tail, head))),
        ]
    return cases


def _sync_every(scale: Scale) -> list[Case]:
    rounds = [h for h in (5, 10, 20, 50, 100, 200, 500, 1000) if scale.fits(h)]
    return [Case(f"H={h}", scale.base(sync_every=h), h) for h in rounds]


def _adaptive(scale: Scale) -> list[Case]:
    """In the same time: a static schedule waits for the slow replica, so that all take half the steps."""
    four = scale.base(replicas=4)
    half = max(2 * scale.sync_every + 2, scale.steps // 2)
    return [
        Case("static, all wait", replace(four, steps=half)),
        Case("adaptive", replace(four, speeds=(1.0, 1.0, 1.0, 0.5))),
        Case("without the slow one", replace(four, replicas=3)),
        Case("delayed Nesterov", method("delayed-nesterov", replace(four, speeds=(1.0, 1.0, 1.0, 0.5)))),
        Case("all at full speed", four),
    ]


def _shards(scale: Scale) -> list[Case]:
    four = scale.base(replicas=4)
    own = replace(four, shards="own")
    return [
        Case("streaming, shared text", four),
        Case("streaming, own parts", own),
        Case("fedavg, own parts", method("fedavg", own)),
        Case("data-parallel, own parts", method("data-parallel", own)),
    ]


def _skips(scale: Scale) -> list[Case]:
    four = scale.base(replicas=4)
    cases = [Case("nothing lost", four)]
    for rate in (0.1, 0.25, 0.5):
        for unit, chunk in (("chunk", 4096), ("window", 0)):
            cases += [
                Case(f"{100 * rate:g}% of contributions, by {unit}", replace(four, drop=rate, chunk=chunk), rate,
                     f"contributions, by {unit}"),
                Case(f"{100 * rate:g}% of merges, by {unit}", replace(four, skip=rate, chunk=chunk), rate,
                     f"merges, by {unit}"),
            ]  # fmt: skip
    return cases


def _stress(scale: Scale) -> list[Case]:
    four, third = scale.base(replicas=4), max(1, scale.steps // 3)
    until = min(scale.steps, third + 2 * scale.sync_every)
    return [
        Case("nothing happens", four),
        Case("one dies after a third", replace(four, away=(Away(3, third, scale.steps, trains=False),))),
        Case("one is cut off for 2H", replace(four, away=(Away(3, third, until),))),
        Case("half is cut off for 2H", replace(four, away=(Away(2, third, until), Away(3, third, until)))),
        Case("one is ten times slower", replace(four, speeds=(1.0, 1.0, 1.0, 0.1))),
        Case("three from the start", replace(four, replicas=3)),
    ]


def _token_weighting(scale: Scale) -> list[Case]:
    return [
        Case(f"{name}, {how}", scale.base(replicas=4, speeds=speeds, weighting=how))
        for name, speeds in (("one at half", (1.0, 1.0, 1.0, 0.5)), ("1, ½, ¼, ⅛", (1.0, 0.5, 0.25, 0.125)))
        for how in ("tokens", "equal")
    ]


def _first_rounds(scale: Scale) -> list[Case]:
    base, short = method("diloco", scale.base()), max(2, scale.sync_every // 4)
    start = max(short + 1, scale.steps // 4)
    grows, quick = replace(base, momentum_rounds=4), replace(base, short_steps=start, short_sync_every=short)
    return [
        Case("as ever", base),
        Case("momentum grows over 4 rounds", grows),
        Case("H/4 in the first quarter", quick),
        Case("both", replace(quick, momentum_rounds=4)),
        Case("plain mean", replace(base, outer_lr=1.0, outer_momentum=0.0)),
        Case("H/4 all along", replace(base, sync_every=short)),
    ]


def _outer_rounds(scale: Scale) -> list[Case]:
    """The same outer numbers in runs of three lengths; each run's inner rate decays over its own length."""
    lengths = {"short": scale.steps // 16, "middle": scale.steps // 4, "long": scale.steps}
    return [
        Case(
            f"{name}, lr={lr:g} μ={mu:g}",
            scale.base(steps=steps, outer_lr=lr, outer_momentum=mu),
            steps // scale.sync_every,
            f"lr={lr:g} μ={mu:g}",
        )
        for name, steps in lengths.items()
        if scale.fits(scale.sync_every, steps)
        for lr, mu in ((0.4, 0.9), (0.4, 0.5), (0.7, 0.5), (1.0, 0.0))
    ]


def _asked(name: str) -> Entry:
    title, statement = {
        "low-rank": ("Low rank", "Is PowerSGD, or with 4 bits CocktailSGD, better than E3M0 for its bits?"),
        "rounding": ("Nearest or stochastic rounding", "Does unbiased rounding help, alone or with error feedback?"),
        "block-size": ("Values under one scale", "Which block size is best for its bits?"),
        "error-feedback": ("Error feedback", "At the sender, at the owner, at both, or at neither?"),
        "results-bits": ("Bits on the way back", "Do 8 bits back help, and how few are enough both ways?"),
        "equal-bytes": ("At equal bytes", "Which four bits both ways are best?"),
    }[name]
    return Entry(
        name,
        title,
        statement,
        lambda scale: compared(name, scale),
        best_for_bytes,
        columns=("loss", "bits_up", "bits_down"),
    )


QUESTIONS = (
    Entry("methods", "All methods side by side", "Where does each method end after the same steps?", _methods, best,
          columns=("loss", "first", "bits_up")),
    Entry("random-subsets", "Random subsets of the parameters", "Are WASH and SPARTA an alternative to outer steps?",
          _random_subsets, best, columns=("loss", "first", "bits_up")),
    _asked("low-rank"),
    Entry("alpha", "Mixing α", "Which α is best at τ = 5?", _alpha, best, x_label="α"),
    Entry("alpha-annealed", "An α that changes", "Is an α that falls or rises over the run better than a constant one?",
          _annealed, best),
    Entry("alpha-tau-lr", "α, τ and the outer rate", "Does α halve the outer learning rate, and should it be doubled?",
          _alpha_tau_lr, best, x_label="τ"),
    Entry("outer-lr", "Outer rate, momentum, rate by fragment", "Which outer numbers are best at this length?",
          _outer_lr, best, columns=("loss", "norm ratio", "norm 0", "norm 1"), x_label="outer lr"),
    Entry("outer-rounds", "Outer numbers for short and long runs", "After how many rounds do the paper's outer numbers "
          "beat a plain mean?", _outer_rounds, judged(
              Claim("long, lr=0.4 μ=0.9", "long, lr=0.4 μ=0.5"), Claim("long, lr=0.4 μ=0.9", "long, lr=1 μ=0")),
          x_label="rounds", log_x=True, longer=4),
    Entry("fragment-size", "One layer to half the depth, and mixed", "How small may a fragment be?", _fragment_size,
          best, columns=("loss", "peak_bits", "norm ratio"), x_label="layers"),
    Entry("sync-every", "H from 5 to 1,000", "How long may a round be?", _sync_every, best, columns=("loss", "bits_up"),
          x_label="H", log_x=True, longer=3),
    Entry("adaptive", "One of four at half speed", "Is it better to wait, to take what there is, or to do without?",
          _adaptive, judged(Claim("adaptive", "static, all wait"), Claim("adaptive", "without the slow one"))),
    Entry("shards-differ", "Shards that differ in distribution", "What does it cost if each replica reads other books?",
          _shards, judged(Claim("streaming, own parts", "streaming, shared text", within=0.01)),
          columns=("loss", "first", "cosine all")),
    Entry("skips", "Losses by chunk and by window", "Is it better to lose chunks or whole windows, and how many?",
          _skips, judged(Claim("25% of contributions, by chunk", "nothing lost", within=0.005),
                         Claim("25% of merges, by chunk", "nothing lost", within=0.005),
                         Claim("25% of contributions, by chunk", "25% of contributions, by window"),
                         Claim("25% of merges, by chunk", "25% of merges, by window")), x_label="share lost"),
    Entry("stress", "A death, a partition, a straggler", "What do they cost?", _stress, judged(
        Claim("one dies after a third", "three from the start", within=0.005),
        Claim("one is cut off for 2H", "nothing happens", within=0.005),
        Claim("half is cut off for 2H", "nothing happens", within=0.005),
        Claim("one is ten times slower", "three from the start", within=0.005)), evaluations=48),
    _asked("rounding"),
    _asked("block-size"),
    _asked("error-feedback"),
    _asked("results-bits"),
    _asked("equal-bytes"),
    Entry("token-weighting", "Weights by tokens", "Does weighting by tokens help with uneven speeds?", _token_weighting,
          judged(Claim("one at half, tokens", "one at half, equal"), Claim("1, ½, ¼, ⅛, tokens", "1, ½, ¼, ⅛, equal"))),
    Entry("first-rounds", "The slow first rounds", "Does a growing momentum or a short H at the start shorten them?",
          _first_rounds, best_for_bytes, columns=("loss", "early", "bits_up")),
)  # fmt: skip
