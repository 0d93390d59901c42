"""Memory over millions of frames: what a stream has brought, once it is written, leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from time import monotonic

from indexer.simulator.capture import write_capture
from indexer.simulator.network import Network
from tests.daemon_process import DaemonProcess, daemon
from tests.drills.drill import Drills, size
from tests.drills.memory import Samples, resident
from tests.drills.sender import FIRST
from tests.drills.traffic import OPTIONS, PastWorld

FRAMES = size(300_000, 5_000_000)
SHARE = 1_000  # of so many frames one concerns us
NOISE_BYTES = 2_800  # of a frame that doesn't, as on the public relay
MOST_MORE = 16.0  # MB that memory may be higher at the end than after the first tenth
LOOK = 0.1  # seconds between samples


def noise(count: int = 256) -> list[bytes]:
    """Frames of a stranger's posts."""
    network = Network(seed=1, first_seq=FIRST)
    did = network.create_account().did
    network.take()
    for _ in range(count):
        network.put(did, f"app.bsky.feed.post/{network.rkey()}", {"text": network.rng.randbytes(800).hex()})
    return network.take()


def relevant(count: int) -> tuple[PastWorld, list[bytes]]:
    """A network in which little is noise, and at least so many frames of it."""
    world = PastWorld(5, count, first_seq=FIRST)
    frames = world.take()
    while len(frames) < count:
        frames += world.step()
    return world, frames


@asynccontextmanager
async def sending(*arguments: str) -> AsyncIterator[str]:
    """The sender as a process; the URL to follow it at."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.drills.sender", *arguments, stdout=PIPE)
    try:
        assert process.stdout is not None
        yield f"ws://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def _watched(process: DaemonProcess, cursor: str, frames: int) -> Samples:
    """Memory over millions of frames committed, until all are."""
    samples, done = Samples(), 0.0
    while done < frames:
        await asyncio.sleep(LOOK)
        done = max(0.0, (await process.metric(cursor) or 0.0) - FIRST + 1)
        samples.points.append((done / 1e6, resident(process.pid)))
    return samples


async def test_memory_stays_flat(database: str, tmp_path: Path, drill: Drills) -> None:
    """After its first tenth a stream leaves the daemon's memory where it is, and all that concerned us in the index."""
    here = drill("memory")
    world, ours = relevant(FRAMES // SHARE)
    write_capture(tmp_path / "noise", noise())
    write_capture(tmp_path / "relevant", ours)
    frames, captures = len(ours) * SHARE, (str(tmp_path / "noise"), str(tmp_path / "relevant"))
    async with (
        sending(*captures, str(SHARE - 1)) as url,
        daemon("--source", url, *OPTIONS, "--database-url", database) as process,
    ):
        begun = monotonic()
        await process.announced()
        samples = await _watched(process, f'cursor_seq{{source="{url.replace("ws://", "firehose:")}"}}', frames)
        rate = frames / (monotonic() - begun)
    later = Samples([point for point in samples.points if point[0] >= frames / 1e7])
    tenth = max(1, len(later.points) // 10)
    more = fmean(of for _, of in later.points[-tenth:]) - fmean(of for _, of in later.points[:tenth])
    here.extras.append(
        f"{frames:,} frames, {rate:,.0f} a second, memory {samples.peak:.0f} MB at most, {more:+.1f} MB from the"
        f" second tenth to the last, {later.slope():+.2f} MB per million frames"
    )
    await here.judge(database, world.expected())
    assert more < MOST_MORE
