"""What drills share: the day they have indexed, and their line of figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.drills.drill import Drill, Drills, size
from tests.drills.figures import NAME
from tests.drills.traffic import Day, lived

STEPS = size(2_000, 60_000)


@pytest.fixture(scope="session")
def day() -> Day:
    """A day of a simulated network, lived through once for all drills of the session."""
    return lived(seed=6, steps=STEPS)


@pytest.fixture
def drill(record_property: Callable[[str, object], None]) -> Drills:
    """A new drill of this name, whose figures are listed at the end of the session."""

    def begin(name: str) -> Drill:
        return Drill(name, lambda line: record_property(NAME, line))

    return begin
