"""How often a host is asked."""

from __future__ import annotations

from indexer.spaces.pace import Pace


def test_quiet_waits_grow_to_a_minute() -> None:
    """While nothing happens the waits grow from a second to a minute, and stay there."""
    pace = Pace(rng=lambda: 0.0)
    waits = [pace.quiet() for _ in range(20)]
    assert waits[0] == 1.0
    assert waits == sorted(waits)
    assert waits[-2:] == [60.0, 60.0]


def test_what_happens_brings_them_back() -> None:
    """After a poll that brought something the next one comes soon."""
    pace = Pace(rng=lambda: 0.0)
    for _ in range(20):
        pace.quiet()
    assert pace.busy() == 1.0
    assert pace.quiet() == 1.0


def test_jitter_stays_within_the_bounds() -> None:
    """Chance shortens a wait by a quarter at most, and never below a second."""
    pace = Pace(rng=lambda: 0.999)
    waits = [pace.quiet() for _ in range(20)]
    assert waits[0] == 1.0
    assert 45.0 < waits[-1] < 45.1


def test_host_has_the_last_word() -> None:
    """After a failure the wait is at least what the host asked for."""
    pace = Pace(rng=lambda: 0.0)
    assert pace.failed(700.0) == 700.0
    assert pace.failed() == 1.5
    assert pace.failed(0.5) == 2.25
