"""Student's t against the tables."""

import pytest

from simulation.lab.entries.student import chance, upper_tail

TABLE = [(1, 6.314, 0.05), (2, 2.920, 0.05), (2, 9.925, 0.005), (3, 2.353, 0.05), (7, 1.895, 0.05), (10, 2.764, 0.01)]


@pytest.mark.parametrize(("degrees", "t", "probability"), TABLE)
def test_the_tail_is_that_of_the_tables(degrees: int, t: float, probability: float) -> None:
    assert upper_tail(t, degrees) == pytest.approx(probability, rel=0.002)
    assert upper_tail(-t, degrees) == pytest.approx(1 - probability, rel=0.002)


def test_chance_is_about_how_far_below_zero_the_mean_is() -> None:
    """Mean −1, standard error 0.5774 / √3 · … = 1 / √3: t = −√3 of two degrees of freedom."""
    assert chance([-2.0, -1.0, 0.0]) == pytest.approx(upper_tail(3**0.5, 2))
    assert chance([2.0, 1.0, 0.0]) == pytest.approx(1 - upper_tail(3**0.5, 2))
    assert chance([-1.0] * 3) == 0.0 and chance([1.0] * 3) == 1.0 and chance([0.0] * 3) == 0.5
