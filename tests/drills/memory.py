"""Resident memory of a process, sampled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> float:
    """What a process takes now, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


@dataclass(slots=True)
class Samples:
    """Memory in MB over the progress of whatever counts, in the order taken."""

    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def peak(self) -> float:
        """The highest."""
        return max(memory for _, memory in self.points)

    def slope(self) -> float:
        """MB for each unit of progress: the line that fits best."""
        count = len(self.points)
        mean_at = sum(at for at, _ in self.points) / count
        mean_of = sum(of for _, of in self.points) / count
        spread = sum((at - mean_at) ** 2 for at, _ in self.points)
        return sum((at - mean_at) * (of - mean_of) for at, of in self.points) / spread if spread else 0.0


@asynccontextmanager
async def sampled(pid: int, *, every: float = 0.05) -> AsyncIterator[Samples]:
    """Samples of a process's memory over time, taken while the block runs."""
    samples = Samples()
    clock = asyncio.get_running_loop().time

    async def take() -> None:
        while True:
            samples.points.append((clock(), resident(pid)))
            await asyncio.sleep(every)

    task = asyncio.ensure_future(take())
    try:
        yield samples
    finally:
        task.cancel()
