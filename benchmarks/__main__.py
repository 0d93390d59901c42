"""Measure, print the table, keep it as JSON: ``python -m benchmarks [--full] [--rounds N] [--scale X] [PART…]``.

Parts: drain, memory, index, latency, backfill, freshness, startup; all of them without a name. ``--full`` takes as many
rounds for the long rows as for the short ones. ``--scale 0.01`` is for trying whether it works, not for figures.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks import backfill, drain, freshness, index, latency, startup
from benchmarks.load import drain_capture
from benchmarks.parts import Server
from benchmarks.table import Table, machine

PARTS = ("drain", "memory", "index", "latency", "backfill", "freshness", "startup")
ROUNDS = 7
FEW = 3  # rounds of rows that take over ten seconds each


async def measure(parts: list[str], rounds: int, few: int, scale: float, folder: Path) -> Table:
    """Every part asked for, on a server of the run's own."""
    server = Server()
    await server.start()
    try:
        table = Table(machine(await server.version()))
        if "drain" in parts:
            await drain.measure(table, server, folder, rounds, scale)
        if "memory" in parts:
            await drain.measure_memory(table, server, folder, few, scale)
        if "index" in parts:
            await index.measure(table, server, rounds, scale)
        if "latency" in parts:
            await latency.measure(table, server, folder, few, scale)
        if "backfill" in parts:
            backfill.measure(table, folder, rounds, scale)
        if "freshness" in parts:
            await freshness.measure(table, server, rounds, scale)
        if "startup" in parts:
            await startup.measure(table, server, drain_capture(folder, 1_000, 0.0), folder, rounds)
        table.machine["load at the end"] = " ".join(f"{one:.1f}" for one in os.getloadavg())
        return table
    finally:
        await server.stop()


def main() -> None:
    """Read the arguments, measure, and print the whole table last."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--full", action="store_true", help="as many rounds for the long rows as for the short ones")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each load: 1 for figures")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results.json"))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; those there are: {', '.join(PARTS)}")
    few = given.rounds if given.full else min(FEW, given.rounds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="letta-bench-") as folder:
        work = measure(given.parts or list(PARTS), given.rounds, few, given.scale, Path(folder))
        table = uvloop.run(work)
    table.machine["minutes"] = round((time.monotonic() - began) / 60, 1)
    table.save(given.json)
    print("\n" + "\n".join(table.lines()))


if __name__ == "__main__":
    main()
