"""The paper's graph against sums done by hand: two layers, five units of a second each, one link."""

import numpy as np
import pytest

from simulation.planner.graph import Flight, Job, sent_after, simulate
from simulation.planner.timetable import cut, streaming, whole


def wall(job: Job, *seconds: float) -> list[float]:
    return simulate(job, np.array(seconds)).wall.tolist()


def two_layers(*, steps: int, period: int = 1, overlap: int = 0, delay: float = 0.0) -> Job:
    """Units: forward 0, forward 1, activation 1, parameters 1, parameters 0."""
    return Job(layers=2, step_seconds=5.0, timetable=whole(2, period), overlap=overlap, steps=steps, delay=delay)


def test_when_a_gradient_is_there() -> None:
    assert [sent_after(layer, 2) for layer in (0, 1)] == [5, 4]
    # Three layers: f0 f1 f2, a2 p2, a1 p1, p0.
    assert [sent_after(layer, 3) for layer in (0, 1, 2)] == [8, 7, 5]


def test_data_parallel() -> None:
    # Layer 1 leaves at 4 and arrives at 6; layer 0 is there at 5, leaves at 6 and arrives at 8. Forward 0 of the
    # second step waits until 8; its gradients are there at 12 and 13, and arrive at 14 and 16. That is the end.
    assert wall(two_layers(steps=2), 2.0) == [16.0]
    # Half a second: arrivals at 4.5 and 5.5; the second step runs from 5.5 to 10.5, and its last one arrives at 11.
    assert wall(two_layers(steps=2), 0.5) == [11.0]


def test_bandwidths_are_computed_at_once() -> None:
    assert wall(two_layers(steps=2), 2.0, 0.5, 0.0) == [16.0, 11.0, 10.0]


def test_overlap_waits_a_step_later() -> None:
    # Nothing waits in the second step, from 5 to 10. Its gradients, there at 9 and 10, arrive at 11 and 13. The third
    # step's forward 0 waits for what arrived at 8: not at all. It ends at 15, its messages leave at 14 and 16.
    assert wall(two_layers(steps=2, overlap=1), 2.0) == [13.0]
    assert wall(two_layers(steps=3, overlap=1), 2.0) == [18.0]


def test_overlap_that_does_not_hide_all() -> None:
    # 4 s a layer. First step: arrivals at 8 and 12. Second step, from 5 to 10: at 16 and 20. Third: forward 0 waits
    # from 10 to 12, forward 1 for nothing; gradients at 16 and 17, arrivals at 24 and 28.
    assert wall(two_layers(steps=3, overlap=1), 4.0) == [28.0]


def test_diloco_sends_every_h_steps() -> None:
    # Sent in the steps 1 and 3 of 4. As above forward 0 of step 2 waits from 5 to 8; steps 2 and 3 end at 18; layer 1
    # was there at 17 and arrives at 19, layer 0 at 21: step 4 runs from 21 to 26.
    assert wall(two_layers(steps=4, period=2), 2.0) == [26.0]


def test_delay_comes_after_the_link() -> None:
    # As the second case, with every arrival a second later: the second step from 6.5 to 11.5, the last arrival 13.
    assert wall(two_layers(steps=2, delay=1.0), 0.5) == [13.0]
    assert wall(two_layers(steps=1, delay=1.0), 0.5) == [6.5]


def test_streaming_sends_fragment_after_fragment() -> None:
    timetable = streaming(cut(4, 2), 4)
    assert timetable.fragments == ((0, 2), (1, 3))
    assert [timetable.due(step) for step in range(1, 6)] == [[0, 2], [], [1, 3], [], [0, 2]]
    flights: list[Flight] = []
    job = Job(layers=4, step_seconds=11.0, timetable=timetable, steps=3)
    simulate(job, np.array([1.0]), flights)
    # Eleven units: layer 2 has its gradient after f0 f1 f2 f3, a3 p3, a2 p2; layer 0 after all. Forward 0 of the
    # second step waits for a second, so that the third step begins at 23.
    assert [(flight.layer, float(flight.sent[0]), float(flight.arrived[0])) for flight in flights] == [
        (2, 8.0, 9.0),
        (0, 11.0, 12.0),
        (3, 23.0 + 6, 30.0),
        (1, 23.0 + 10, 34.0),
    ]


def test_sequential_fragments_are_neighbours() -> None:
    assert cut(7, 3, "sequential") == ((0, 1, 2), (3, 4, 5), (6,))
    assert cut(7, 3) == ((0, 3, 6), (1, 4), (2, 5))


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_nothing_to_send_costs_nothing(overlap: int) -> None:
    outcome = simulate(two_layers(steps=7, overlap=overlap), np.array([0.0]))
    assert outcome.utilization.tolist() == [1.0] and outcome.exposed.tolist() == [0.0]
