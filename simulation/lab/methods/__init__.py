"""Every method of training that the lab compares, one line each. docs/lab.md has the same table for readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from protocol.errors import UserError
from simulation.lab.methods.agreed import Agreed
from simulation.lab.methods.delayed import Delayed
from simulation.lab.methods.delayed_nesterov import Arrivals
from simulation.lab.methods.exchange import Exchange, Setting
from simulation.lab.methods.noloco import Pairs
from simulation.lab.methods.outer import OUTER
from simulation.lab.methods.subsets import Subsets
from simulation.lab.recipe import Recipe

EVERY_STEP = "every-step"
"""`Recipe.exchange` of data-parallel training: one model that reads the batches of all replicas."""

EXCHANGES: dict[str, Callable[[Setting], Exchange]] = {
    "agreed": Agreed,
    "delayed": Delayed,
    "eager": partial(Delayed, eager=True),
    "pairs": Pairs,
    "arrivals": Arrivals,
    "average-subsets": Subsets,
    "shuffle-subsets": partial(Subsets, shuffle=True),
}
"""By the name in `Recipe.exchange`."""


@dataclass(frozen=True)
class Method:
    """A method is what it changes in a recipe."""

    what: str
    source: str
    """The arXiv number of its paper."""
    changes: dict[str, object]

    def of(self, recipe: Recipe) -> Recipe:
        """That recipe, by this method."""
        return replace(recipe, **self.changes)  # type: ignore[arg-type]


_WHOLE: dict[str, object] = {"fragments": 1, "sizes": (), "offsets": (), "overlap": (0,), "mixing": (0.0,)}
"""The whole model at once, and nothing goes on until it is merged."""
_EXACT: dict[str, object] = {"up": "none", "down": "none"}
_MEAN: dict[str, object] = {"outer": "nesterov", "outer_lr": 1.0, "outer_momentum": 0.0}
"""The outer parameters are the replicas' mean."""

METHODS: dict[str, Method] = {
    "data-parallel": Method("gradients are averaged at every step", "–", {"exchange": EVERY_STEP}),
    "local-sgd": Method("replicas take H steps of SGD, then the mean of all", "1805.09767", {
        **_WHOLE, **_EXACT, **_MEAN, "inner": "sgd", "inner_lr": 0.5}),
    "fedavg": Method("replicas take H steps, then the mean of all", "1602.05629", {**_WHOLE, **_EXACT, **_MEAN}),
    "fedopt-sgd": Method("an outer SGD step by the mean Δ", "2003.00295", {
        **_WHOLE, **_EXACT, **_MEAN, "outer_lr": 0.7}),
    "fedopt-adam": Method("an outer Adam step by the mean Δ", "2003.00295", {
        **_WHOLE, **_EXACT, "outer": "adam", "outer_lr": 0.01}),
    "diloco": Method("an outer Nesterov step by the mean Δ", "2311.08105", {**_WHOLE, **_EXACT}),
    "streaming": Method("fragment by fragment, overlapped, mixed, in 4 bits", "2501.18512", {}),
    "fedpart": Method("only the fragment that is due next trains", "2501.18512", {"freezing": True}),
    "noloco": Method("random pairs average Δ and pull their anchors together", "2506.10911", {
        **_WHOLE, **_EXACT, "exchange": "pairs", "outer_momentum": 0.5, "outer_lr": 0.7}),
    "delayed-nesterov": Method("contributions one by one, momentum once in M", "2401.09135", {
        **_WHOLE, **_EXACT, "exchange": "arrivals"}),
    "delayed": Method("DiLoCo, its results a whole round late", "2502.12996", {
        **_WHOLE, **_EXACT, "exchange": "delayed"}),
    "eager": Method("the same, a replica's own Δ being fresh", "2502.12996", {
        **_WHOLE, **_EXACT, "exchange": "eager"}),
    "sparse-loco": Method("the greatest values in two bits, no momentum", "2508.15706", {
        **_WHOLE, "up": "sparse-loco", "down": "none", "gather": True, "outer_lr": 1.0, "outer_momentum": 0.0}),
    "sparta": Method("a random share of the values is averaged, often", "openreview stFPf3gzq1", {
        **_WHOLE, **_EXACT, "exchange": "average-subsets", "share": 0.05, "sync_every": 1}),
    "wash": Method("a random share of the values is shuffled, often", "2405.17517", {
        **_WHOLE, **_EXACT, "exchange": "shuffle-subsets", "share": 0.05, "sync_every": 1}),
}  # fmt: skip
"""By name."""


def method(name: str, recipe: Recipe) -> Recipe:
    """The recipe by that method; UserError for a name that is none."""
    if name not in METHODS:
        raise UserError.field("method", name, f"must be one of {', '.join(METHODS)}")
    return METHODS[name].of(recipe)


def exchange(setting: Setting) -> Exchange:
    """The exchange that the recipe names; UserError for a name that is none."""
    name, outer = setting.recipe.exchange, setting.recipe.outer
    if name not in EXCHANGES:
        raise UserError.field("recipe.exchange", name, f"must be one of {', '.join(EXCHANGES)}, {EVERY_STEP}")
    if outer not in OUTER:
        raise UserError.field("recipe.outer", outer, f"must be one of {', '.join(OUTER)}")
    return EXCHANGES[name](setting)
