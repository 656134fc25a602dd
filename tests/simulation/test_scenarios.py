"""Each promise by a run of its own: see simulation/scenarios.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[], None]) -> None:
    scenario()
