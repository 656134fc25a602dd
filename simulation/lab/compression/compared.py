"""What the lab's entries on compression compare: for each entry, which compression goes up and which comes back.

Data alone. An entry makes a recipe of each case, equal in everything else.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One row of an entry."""

    label: str
    up: str = "none"
    """The compression of contributions; `combine_for` says how the owner combines them."""
    down: str = "none"
    """The compression of results, with the owner's own memory."""
    per_tensor: bool = False
    """Every parameter in its own shape, which matrix methods need, instead of the flat fragment."""
    rounds: float = 1.0
    """Times the usual H: fewer bits, more often."""


def _up(*names: str) -> tuple[Case, ...]:
    return tuple(Case(name, up=name) for name in names)


def _both(*names: str) -> tuple[Case, ...]:
    return tuple(Case(f"{name} both ways", up=name, down=name) for name in names)


def _matrices(*names: str) -> tuple[Case, ...]:
    return tuple(Case(name, up=name, per_tensor=True) for name in names)


def _places(name: str) -> tuple[Case, ...]:
    """One compression both ways, with error feedback nowhere, at one end, and at both."""
    return (
        Case(f"{name}, no feedback", up=name, down=name),
        Case(f"{name}, at the sender", up=f"{name}+ef", down=name),
        Case(f"{name}, at the owner", up=name, down=f"{name}+ef"),
        Case(f"{name}, at both", up=f"{name}+ef", down=f"{name}+ef"),
    )


COMPARED: dict[str, tuple[Case, ...]] = {
    # Values dropped against fewer bits a value, one way as in the paper: as many bytes as e3m0 (an eighth of the
    # values, or 9.5% with a bitmap), then half of fp32's.
    "fig11": (
        *_up("none", "bf16", "int8", "e3m0"),
        *_up("fed-dropout:0.874", "dare:0.874", "top-k:0.0947", "ties:0.0947"),
        *_up("fed-dropout:0.5", "dare:0.5", "top-k:0.469", "ties:0.469"),
    ),
    "low-rank": (
        *_matrices("none", "e3m0", "power-sgd:1", "power-sgd:4", "power-sgd:8", "power-sgd:4,warm=false"),
        *_matrices("power-sgd-4bit:4", "power-sgd-4bit:8", "cocktail", "sparse-loco"),
    ),
    "rounding": (
        *_up("none", "e3m0", "e3m0:rounding=stochastic", "e3m0+ef", "e3m0:rounding=stochastic+ef"),
        *_up("int4", "int4:rounding=stochastic", "nf4", "nf4:rounding=stochastic"),
        *_both("e3m0", "e3m0:rounding=stochastic"),
    ),
    "block-size": (
        *_up("none", "e3m0:16", "e3m0:64", "e3m0:256"),
        *_up("int4:64", "int4:256", "int4:4096", "nf4:64", "nf4:512", "nf4:4096"),
        *_up("two-bit:64+ef", "two-bit:256+ef", "two-bit:4096+ef"),
    ),
    "error-feedback": (
        Case("none"),
        *_places("e3m0"),
        *_places("two-bit"),
        *_places("sign"),
        *_up("two-bit+ef:0.95", "sign+ef:0.95", "top-k:0.05", "top-k:0.05+ef", "random-k:0.05", "random-k:0.05+ef"),
    ),
    "results-bits": (
        Case("none"),
        *(
            Case(f"e3m0 up, {down} down", up="e3m0", down=down)
            for down in ("none", "bf16", "int8", "e3m0", "three-bit+ef", "two-bit+ef", "sign+ef")
        ),
        *_both("int8", "int3+ef", "e2m0+ef", "three-bit+ef", "int2+ef", "two-bit+ef", "sign+ef", "sparse-loco"),
    ),
    # 4.03 bits a value each way, then as many in a round of the usual length.
    "equal-bytes": (
        *_both("none", "e3m0", "e3m0+ef", "e2m1", "e2m1+ef", "nf4", "nf4+ef", "int4:512", "int4:512+ef"),
        Case("e3m0 up, int8 down, 3H/2", up="e3m0", down="int8", rounds=1.5),
        Case("two-bit:512+ef both ways, H/2", up="two-bit:512+ef", down="two-bit:512+ef", rounds=0.5),
        Case("sign:1024+ef both ways, H/4", up="sign:1024+ef", down="sign:1024+ef", rounds=0.25),
    ),
}
