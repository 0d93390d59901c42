"""One reader of a loopback WebSocket in a process of its own: ``python -m benchmarks.consumer JOB`` (JSON).

Who reads is ``websockets`` (bare receive), ``sdk`` (the atproto SDK's asynchronous client, each message parsed to its
type) or ``indexer`` (our own parts, joined as the daemon joins them, into a database). All three run on uvloop, and
all three stop their clock at the last frame; ours only when its cursor is committed. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop


@dataclass(slots=True)
class Job:
    """What to read, and how much of it."""

    who: str
    url: str
    frames: int
    last: int = 0
    database: str = ""
    keys: str = ""
    trust: str = "verify"
    sample: bool = False  # resident memory, on the way


@dataclass(slots=True)
class Outcome:
    """Seconds from before the connection to the end, the peak of resident memory, samples of it (frames, MB)."""

    seconds: float
    processor: float
    peak: float = 0.0
    samples: list[tuple[int, float]] = field(default_factory=list)


def resident() -> float:
    """Resident memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak() -> float:
    """The highest resident memory so far, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1000


async def read_websockets(job: Job) -> Outcome:
    """Receive, and nothing else."""
    from websockets.asyncio.client import connect

    started = time.monotonic()
    async with connect(job.url, compression=None, max_size=None) as connection:
        receive = connection.recv
        for _ in range(job.frames):
            await receive()
        return Outcome(time.monotonic() - started, time.process_time())


async def read_sdk(job: Job) -> Outcome:
    """The SDK's client with its typed parse."""
    from atproto import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        AsyncFirehoseSubscribeReposClient,
        parse_subscribe_repos_message,
    )

    client = AsyncFirehoseSubscribeReposClient(base_uri=f"{job.url.partition('/xrpc')[0]}/xrpc")
    left = job.frames
    ended = 0.0

    async def take(message: Any) -> None:
        nonlocal left, ended
        parse_subscribe_repos_message(message)
        left -= 1
        if not left:
            ended = time.monotonic()
            await client.stop()

    started = time.monotonic()
    await client.start(take)
    return Outcome(ended - started, time.process_time())


async def read_indexer(job: Job) -> Outcome:
    """Our own way in, to the committed cursor."""
    from benchmarks.parts import opened_parts
    from indexer.sources.address import FirehoseAddress
    from indexer.sources.firehose import FirehoseSource
    from indexer.sources.follow import Follower

    source = FirehoseSource(FirehoseAddress(job.url, "firehose:bench"))
    samples: list[tuple[int, float]] = []
    async with opened_parts(job.database, source, job.trust, load_keys(job.keys)) as parts:
        intake = parts.intake
        follower = Follower(source, resume_from=lambda: intake.position)
        started, next_sample = time.monotonic(), 0
        async with aclosing(follower.items()) as items:
            async for item in items:
                await intake.take(item)
                if job.sample and (intake.position or 0) >= next_sample:
                    samples.append((intake.position or 0, resident()))
                    next_sample = (intake.position or job.last - job.frames) + job.frames // 50
                if (intake.position or 0) >= job.last:
                    break
            await parts.pipeline.flush()
            seconds = time.monotonic() - started
        parts.check(job.last)
    return Outcome(seconds, time.process_time(), samples=samples)


def load_keys(path: str) -> dict[str, str]:
    """The accounts' keys; none without a file."""
    keys: dict[str, str] = json.loads(Path(path).read_text()) if path else {}
    return keys


READERS = {"websockets": read_websockets, "sdk": read_sdk, "indexer": read_indexer}


def main() -> None:
    """Read as the job says and print what it took."""
    job = Job(**json.loads(sys.argv[1]))
    outcome = uvloop.run(READERS[job.who](job))
    outcome.peak = peak()
    print(json.dumps({name: getattr(outcome, name) for name in Outcome.__slots__}), flush=True)


if __name__ == "__main__":
    main()
