"""The numbers of docs/scaling.md: its first table has what is measured, and the second is worked out from that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import floor, log10

DAY = 86_400  # s
LOADS = (("the network today, at its peak", 1), ("ten times that", 10), ("a hundred times that", 100))
BUSIER = 1_000_000


def parameters(text: str) -> dict[str, float]:
    """The measured values, by the letter that stands for each in the first column of the first table."""
    return {
        letter: float(value.replace(",", "")) for letter, value in re.findall(r"^\| `(\w)` \| ([\d.,]+) ", text, re.M)
    }


def derived(p: dict[str, float]) -> Iterator[str]:
    """The lines of the second table: for each load what it takes of processors, network and disk."""
    for name, times in LOADS:
        events = p["E"] * times
        yield _line(name, events, events * p["R"] / 100, p)
    busier = p["N"] * BUSIER / DAY
    yield _line("today, but the namespace a million times busier", p["E"] + busier, busier, p)


def _line(name: str, events: float, relevant: float, p: dict[str, float]) -> str:
    cells = (
        events,
        relevant,
        events / p["D"] + relevant * p["P"] / 1e6,
        relevant * p["S"] / 1e6,
        events * p["F"] * 8 / 1e6,
        relevant * DAY * p["B"] / 1e9,
    )
    return f"| {name} | {' | '.join(map(short, cells))} |"


def short(value: float) -> str:
    """Two digits that count: more would say more than is known."""
    digits = 1 - floor(log10(value))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"
