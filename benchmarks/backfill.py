"""Reading a whole repository as a repair does, against ``libipld.decode_car`` of the same file.

Ours reads from disk: one pass notes where each block begins, the tree is walked where it can
hold our records, and these are decoded and validated. The peer reads the file into memory and decodes all of it, and
checks nothing. Each reads in a process of its own, so that its peak of memory is its own. The smallest repository is
read many times and the median counts: what a process loads once is not what a repository costs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import libipld

from benchmarks.consumer import peak
from benchmarks.snapshot_memory import LETTA, OURS, write
from benchmarks.table import Row, Table
from indexer.reading import Reading
from indexer.snapshot import open_snapshot

SIZES = (("10 kB", 26, 20), ("10 MB", 28_000, OURS), ("500 MB", 1_420_000, OURS))  # records, and ours among them
SMALL, OFTEN = 1 << 20, 101  # up to how many bytes a file is read how often
FLOOR, MEMORY = 2.0, 200.0


def read_indexer(path: Path) -> int:
    """The number of our records, each decoded and validated."""
    with path.open("rb") as file:
        reading = Reading(open_snapshot(file), {})
        reading.take((LETTA,), quota_rows=1_000_000, quota_bytes=10 << 30)
        return sum(change.record is not None for change in reading.changes)


def read_libipld(path: Path) -> int:
    """The number of blocks, each decoded."""
    return len(libipld.decode_car(path.read_bytes())[1])


READERS = {"indexer": read_indexer, "libipld": read_libipld}


def read(who: str, path: Path, least: int) -> dict[str, float]:
    """A reading in a process of its own, which finds at ``least`` so many: seconds, and MB resident at its peak."""
    words = [sys.executable, "-m", "benchmarks.backfill", who, str(path), str(least)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    outcome: dict[str, float] = json.loads(done.stdout)
    return outcome


def measure(table: Table, folder: Path, rounds: int, scale: float) -> None:
    """Every size; the largest in fewer rounds."""
    for name, records, mine in SIZES:
        count = max(mine + 1, int(records * scale)) if records > 1_000 else records
        path = folder / "repository.car"
        with path.open("w+b") as file:
            write(file, count, mine)
        big = name == "500 MB"
        ours, theirs = [], []
        for _ in range(min(rounds, 3) if big else rounds):
            theirs.append(read("libipld", path, count))
            ours.append(read("indexer", path, mine))
        rates = [[1 / one["seconds"] for one in outcomes] for outcomes in (ours, theirs)]
        note = f"{path.stat().st_size / 1e6:,.2f} MB, {mine} of {count:,} records ours"
        row = Row(f"backfill, {name}", "/s", rates[0], "decode_car", rates[1], FLOOR if big else None, note=note)
        table.add(row)
        if big:
            peaks = [[one["peak"] for one in outcomes] for outcomes in (ours, theirs)]
            table.add(Row(f"backfill, {name}, peak", "MB", peaks[0], "decode_car", peaks[1], ceiling=MEMORY))
        path.unlink()


def timed(who: str, path: Path, least: int) -> float:
    """Seconds that one reading takes."""
    started = time.monotonic()
    found = READERS[who](path)
    seconds = time.monotonic() - started
    assert found >= least
    return seconds


def main() -> None:
    """Read, and print what it took."""
    who, path, least = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    times = OFTEN if path.stat().st_size <= SMALL else 1
    seconds = statistics.median(timed(who, path, least) for _ in range(times))
    print(json.dumps({"seconds": seconds, "peak": peak()}))


if __name__ == "__main__":
    main()
