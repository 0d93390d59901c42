"""How waits grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indexer.sources.backoff import Backoff


def test_the_limit_doubles_up_to_the_cap_and_starts_over() -> None:
    """Half a second at first, a minute at most, and half a second again after a reset."""
    backoff = Backoff(rng=lambda: 1.0)
    assert [backoff.next() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    backoff.reset()
    assert backoff.next() == 0.5


@given(st.lists(st.floats(min_value=0, max_value=1, exclude_max=True), min_size=1, max_size=50))
def test_jitter_is_full(numbers: list[float]) -> None:
    """Each wait is the random number's share of the limit, down to nothing."""
    drawn = iter(numbers)
    backoff = Backoff(first=1.0, cap=4.0, rng=lambda: next(drawn))
    limits = [1.0, 2.0, *[4.0] * 50]
    assert [backoff.next() for _ in numbers] == [n * limit for n, limit in zip(numbers, limits, strict=False)]
