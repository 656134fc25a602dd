"""What is contributed: tokens since the last contribution that counted, and nothing out of measure."""

from __future__ import annotations

import pytest
import torch

from aggregation.arithmetic import Arithmetic
from aggregation.codecs import Fp32
from aggregation.outer import ChunkState
from protocol.commands import START_AGAIN
from protocol.contributing import TOO_FAR, Contributor, Refused
from protocol.ledger import Ledger
from protocol.merging import Merges, Mix
from protocol.messages import TOKENS_A_STEP, Part
from protocol.schedule import Window
from simulation.swarm import CheapKeys

RUN, ME = b"r" * 32, b"m" * 32
ARITHMETIC = Arithmetic([1], contribution_codec=Fp32(), result_codec=Fp32(), lr=0.5, momentum=0.0)


class Bench:
    def __init__(self) -> None:
        genesis = [ChunkState(torch.zeros(1), torch.zeros(1))]
        keys = CheapKeys(ME)
        self.ledger = Ledger(run=RUN, genesis=genesis, arithmetic=ARITHMETIC, keys=keys, weight_cap=4)
        self.contributor = Contributor(ledger=self.ledger, arithmetic=ARITHMETIC, keys=keys)

    def make(self, due: int, tokens: int, far: float = 1.0) -> int:
        """Contribute parameters that far from the anchor; returns the tokens claimed."""
        local = self.ledger.tip(0).anchor + far
        return self.contributor.make(0, due, local, tokens)[0].tokens

    def close(self, due: int, tokens: int) -> None:
        """Contribute, and let a link name it."""
        made, payload = self.contributor.make(0, due, self.ledger.tip(0).anchor + 1.0, tokens)
        part = Part(made.peer, made.tokens, made.payload, made.signature)
        self.ledger.adopt(*self.ledger.close(0, due, made.parent, [(part, payload)]))
        self.contributor.adopted(0, replaced=False)


def test_tokens_are_those_since_the_last_contribution_that_a_link_names() -> None:
    bench = Bench()
    bench.close(10, 100)
    assert bench.make(20, 250) == 150
    assert bench.make(30, 400) == 300, "the one before was not named"
    with pytest.raises(Refused, match="nothing trained"):
        bench.make(40, 100)


def test_more_tokens_than_can_be_are_not_claimed() -> None:
    bench = Bench()
    bench.close(10, 100)
    assert bench.make(20, 10**12) == 10 * TOKENS_A_STEP


def test_what_is_far_from_a_branch_that_won_starts_again_from_it() -> None:
    bench = Bench()
    for due in range(10, 50, 10):
        bench.close(due, 10 * due)
    assert bench.make(50, 1000, far=3 * TOO_FAR) > 0, "without a lost branch it is our progress"
    bench.contributor.adopted(0, replaced=True)
    assert bench.make(50, 1100, far=TOO_FAR - 1) > 0
    bench.contributor.adopted(0, replaced=True)
    with pytest.raises(Refused, match="starts again") as refused:
        bench.make(50, 1200, far=TOO_FAR + 1)
    assert refused.value.start_again
    assert bench.make(60, 1300, far=TOO_FAR + 1) > 0, "once"


def test_a_peer_that_has_hardly_contributed_does_not_start_again() -> None:
    bench = Bench()
    bench.close(10, 100)
    bench.contributor.adopted(0, replaced=True)
    assert bench.make(20, 200, far=1000.0) > 0


@pytest.mark.parametrize(("mixing", "left"), [(0.5, 0.0), (0.999, 0.0), (1.0, 1.0)])
def test_starting_again_leaves_nothing_of_the_local_parameters(mixing: float, left: float) -> None:
    merges = Merges(overlap=2, late_steps=3, fragment_of=(0,))
    merges.opened(Window(0, 10), own_step=10)
    merges.settled(0, 0, START_AGAIN, True)
    (mix,) = merges.take(11)
    assert isinstance(mix, Mix)
    assert mixing**mix.power == left


def test_chunks_whose_last_contribution_came_too_late_go_first() -> None:
    """An upload for two of four chunks: in two rounds each of them had its turn."""
    contributor, counted = Rotating(), []
    for due in (10, 20, 30, 40):
        order = contributor.order(range(4))
        assert sorted(order) == [0, 1, 2, 3]
        counted.append(order[:2])
        contributor.count(order[:2], due)
    assert counted == [[0, 1], [2, 3], [0, 1], [2, 3]]
    contributor.count([0, 1, 2, 3], 50)
    assert contributor.order(range(4)) == [0, 1, 2, 3], "where all fit it is the chunks' own order"


class Rotating(Contributor):
    """A contributor for four chunks, and the links that name it."""

    def __init__(self) -> None:
        genesis = [ChunkState(torch.zeros(1), torch.zeros(1)) for _ in range(4)]
        arithmetic = Arithmetic([1] * 4, contribution_codec=Fp32(), result_codec=Fp32(), lr=0.5, momentum=0.0)
        keys = CheapKeys(ME)
        self.ledger = Ledger(run=RUN, genesis=genesis, arithmetic=arithmetic, keys=keys, weight_cap=4)
        super().__init__(ledger=self.ledger, arithmetic=arithmetic, keys=keys)

    def count(self, chunks: list[int], due: int) -> None:
        """Links of this due step name us in these chunks."""
        for chunk in chunks:
            made, payload = self.make(chunk, due, self.ledger.tip(chunk).anchor + 1.0, 100 * due)
            part = Part(made.peer, made.tokens, made.payload, made.signature)
            self.ledger.adopt(*self.ledger.close(chunk, due, made.parent, [(part, payload)]))
            self.adopted(chunk, replaced=False)
