"""How fast a firehose is read: frames a second from a loopback WebSocket to the committed cursor, and in what memory.

The peers read the same bytes from the same sender: ``websockets`` receives and does nothing, the SDK's client parses
each message to its type.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.load import Capture, drain_capture, save_keys
from benchmarks.parts import Server
from benchmarks.processes import SDK_MISSING, consume, has_sdk, sender
from benchmarks.table import Row, Table

SHARES = ((0.0, 200_000), (0.001, 200_000), (0.01, 100_000), (1.0, 10_000))  # relevant, frames
SDK_PART = 5  # the slowest reader takes in one frame out of so many, the first ones: a rate needs no more
MEMORY_FRAMES, MEMORY_SHARE = 400_000, 0.001
MEMORY_LIMIT = 200.0  # MB
FLOOR_SHARE = 0.001  # of the limits: 0.7 x websockets, 3 x the SDK


def job_of(who: str, url: str, capture: Capture, **more: object) -> dict[str, object]:
    """What a reader is told."""
    return {"who": who, "url": url, "frames": capture.frames, "last": capture.last, **more}


async def read(server: Server, capture: Capture, keys: Path, **more: object) -> dict[str, object]:
    """One drain of ours into a fresh database."""
    async with server.database() as database:
        with sender(capture.path) as (url, _):
            return consume(job_of("indexer", url, capture, database=database, keys=str(keys), **more))


async def measure(table: Table, server: Server, folder: Path, rounds: int, scale: float) -> None:
    """Each share of relevant frames, rounds interleaved."""
    peers = ("websockets", "sdk") if has_sdk() else ("websockets",)
    for share, count in SHARES:
        capture = drain_capture(folder, max(1_000, int(count * scale)), share)
        keys = save_keys(folder / "keys.json", capture.keys)
        rates: dict[str, list[float]] = {name: [] for name in ("indexer", "websockets", "sdk")}
        for _ in range(rounds):
            for who in peers:
                with sender(capture.path) as (url, _):
                    frames = capture.frames // (SDK_PART if who == "sdk" else 1)
                    outcome = consume(job_of(who, url, capture) | {"frames": frames})
                    rates[who].append(frames / outcome["seconds"])
            outcome = await read(server, capture, keys)
            rates["indexer"].append(capture.frames / float(str(outcome["seconds"])))
        floor = share == FLOOR_SHARE
        name = f"drain, {share:.1%} relevant"
        note = f"{capture.size / capture.frames:,.0f} bytes a frame"
        limit = 0.7 if floor else None
        table.add(Row(name, "frames/s", rates["indexer"], "websockets", rates["websockets"], limit, note=note))
        sdk = "SDK" if rates["sdk"] else SDK_MISSING
        table.add(Row(name, "frames/s", rates["indexer"], sdk, rates["sdk"], at_least=3 if floor else None))
        capture.path.unlink()


async def measure_memory(table: Table, server: Server, folder: Path, rounds: int, scale: float) -> None:
    """Resident memory over a long drain at full speed: its peak, and its slope over the last three quarters."""
    capture = drain_capture(folder, max(5_000, int(MEMORY_FRAMES * scale)), MEMORY_SHARE)
    keys = save_keys(folder / "keys.json", capture.keys)
    peaks, slopes = [], []
    for _ in range(rounds):
        outcome = await read(server, capture, keys, sample=True)
        samples: list[tuple[int, float]] = outcome["samples"]  # type: ignore[assignment]
        peaks.append(float(str(outcome["peak"])))
        slopes.append(slope(samples[len(samples) // 4 :]) * 1e6)
    note = f"over {capture.frames:,} frames, {MEMORY_SHARE:.1%} relevant"
    table.add(Row("memory, peak", "MB", peaks, ceiling=MEMORY_LIMIT, note=note))
    table.add(Row("memory, slope", "MB a million frames", slopes, note="flat: within some MB of 0"))
    capture.path.unlink()


def slope(samples: list[tuple[int, float]]) -> float:
    """The slope of the line that fits best."""
    if len(samples) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
