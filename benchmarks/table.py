"""The table of a run: each figure beside its peer's, the ratio of the two, and the limit the ratio has to keep."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from indexer import __version__

WIDTHS = (40, 24, 32, 7, 8, 3)
HEADINGS = ("", "ours (spread)", "peer (spread)", "ratio", "limit", "n")


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of the values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def short(number: float) -> str:
    """A number with three digits that count."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


@dataclass(slots=True)
class Row:
    """One figure: ours and a peer's, a value a round, in ``unit``.

    The ratio is ours divided by the peer's, round by round where both have as many, and its median is what ``at_least``
    and ``at_most`` limit; ``excess``: the difference instead of the ratio. ``ceiling`` limits our own median.
    """

    name: str
    unit: str
    ours: Sequence[float]
    peer_name: str = ""
    peer: Sequence[float] = ()
    at_least: float | None = None
    at_most: float | None = None
    ceiling: float | None = None
    excess: bool = False
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ours to the peer's, by round."""
        if not self.ours or not self.peer:
            return []
        pairs = list(zip(self.ours, self.peer, strict=False))
        if self.excess:
            return [mine - other for mine, other in pairs]
        return [mine / other for mine, other in pairs]

    @property
    def limit(self) -> str:
        """The limit in words."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f"< {self.ceiling:g}" if self.ceiling is not None else ""

    @property
    def kept(self) -> bool | None:
        """Whether the limit is kept; None where there is none or it could not be measured."""
        if self.ceiling is not None:
            return statistics.median(self.ours) < self.ceiling
        ratios = self.ratios
        if not ratios or (self.at_least is None and self.at_most is None):
            return None
        ratio = statistics.median(ratios)
        return ratio >= self.at_least if self.at_least is not None else ratio <= (self.at_most or 0)


def spread(values: Sequence[float]) -> str:
    """Median, and least and greatest in brackets."""
    if not values:
        return "-"
    if len(values) == 1:
        return short(values[0])
    return f"{short(statistics.median(values))} ({short(min(values))}..{short(max(values))})"


@dataclass(slots=True)
class Table:
    """All rows of a run."""

    machine: dict[str, object]
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Take a row in, and show it at once."""
        self.rows.append(row)
        print(self.line(row), flush=True)

    def line(self, row: Row) -> str:
        """One row as text."""
        ratios = row.ratios
        ratio = short(statistics.median(ratios)) if ratios else ""
        if row.excess and ratio:
            ratio = f"+{ratio}"
        verdict = {True: " ok", False: " MISSED", None: ""}[row.kept]
        peer = f"{spread(row.peer)} {row.peer_name}" if row.peer else row.peer_name
        cells = (f"{row.name}, {row.unit}", spread(row.ours), peer, ratio, row.limit, str(len(row.ours)))
        text = " ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()
        return f"{text}{verdict}{f'  {row.note}' if row.note else ''}"

    def lines(self) -> list[str]:
        """The whole table, the machine first."""
        heading = " ".join(cell.ljust(width) for cell, width in zip(HEADINGS, WIDTHS, strict=True)).rstrip()
        facts = "; ".join(f"{name} {value}" for name, value in self.machine.items())
        return [facts, heading, *map(self.line, self.rows)]

    def save(self, path: Path) -> None:
        """Write the rows, every round of them, as JSON."""
        rows = [asdict(row) | {"ratios": row.ratios, "kept": row.kept} for row in self.rows]
        path.write_text(json.dumps({"machine": self.machine, "rows": rows}, indent=1) + "\n")


def machine(postgres: str) -> dict[str, object]:
    """What a figure has to be read with."""
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "?")
    memory = next((int(line.split()[1]) >> 20 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "letta-indexer": __version__,
        "cores": os.cpu_count(),
        "processor": model,
        "memory": f"{memory} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "PostgreSQL": postgres,
        "load at the start": " ".join(f"{one:.1f}" for one in os.getloadavg()),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
