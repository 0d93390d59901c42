"""Reading a whole repository as a repair does, against ``libipld.decode_car`` of the same file.

Ours reads from disk: one pass notes where each block begins, the tree is walked where it can
hold our records, and these are decoded and validated. The peer reads the file into memory and decodes all of it, and
checks nothing. Each reads in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
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

SIZES = (("30 kB", 65), ("10 MB", 28_000), ("500 MB", 1_420_000))  # records, ours among them: the least have that size
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


def read(who: str, path: Path) -> dict[str, float]:
    """One reading in a process of its own: seconds, and MB of resident memory at its peak."""
    words = [sys.executable, "-m", "benchmarks.backfill", who, str(path)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    outcome: dict[str, float] = json.loads(done.stdout)
    return outcome


def measure(table: Table, folder: Path, rounds: int, scale: float) -> None:
    """Every size; the largest in fewer rounds."""
    for name, records in SIZES:
        count = max(OURS + 1, int(records * scale)) if records > 1_000 else records
        path = folder / "repository.car"
        with path.open("w+b") as file:
            write(file, count)
        big = name == "500 MB"
        ours, theirs = [], []
        for _ in range(min(rounds, 3) if big else rounds):
            theirs.append(read("libipld", path))
            ours.append(read("indexer", path))
        rates = [[1 / one["seconds"] for one in outcomes] for outcomes in (ours, theirs)]
        note = f"{path.stat().st_size / 1e6:,.2f} MB, {OURS} of {count:,} records ours"
        row = Row(f"backfill, {name}", "/s", rates[0], "decode_car", rates[1], FLOOR if big else None, note=note)
        table.add(row)
        if big:
            peaks = [[one["peak"] for one in outcomes] for outcomes in (ours, theirs)]
            table.add(Row(f"backfill, {name}, peak", "MB", peaks[0], "decode_car", peaks[1], ceiling=MEMORY))
        path.unlink()


def main() -> None:
    """Read once and print what it took."""
    who, path = sys.argv[1], Path(sys.argv[2])
    started = time.monotonic()
    found = READERS[who](path)
    seconds = time.monotonic() - started
    assert found >= OURS
    print(json.dumps({"seconds": seconds, "peak": peak()}))


if __name__ == "__main__":
    main()
