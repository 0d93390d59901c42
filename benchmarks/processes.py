"""The sender and the readers as processes, each one's life inside a ``with`` block."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT = 300.0  # seconds that one reader may take

SDK_MISSING = "SDK not installed (pip install '.[bench]')"


def has_sdk() -> bool:
    """Whether the peer can be asked at all: it is no dependency of ours."""
    probe = "import atproto"
    return subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode == 0


@contextmanager
def sender(path: Path, *paced: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A sender of this capture: the URL to connect to, and the process, whose last line is its report."""
    words = [sys.executable, "-m", "benchmarks.sender", str(path), *map(str, paced)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield f"ws://127.0.0.1:{port}/xrpc/com.atproto.sync.subscribeRepos", process
    finally:
        process.kill()
        process.wait()


def report_of(process: subprocess.Popen[str]) -> list[float]:
    """The moments a sender noted; waits for its end."""
    out, _ = process.communicate(timeout=LIMIT)
    moments: list[float] = json.loads(out.splitlines()[-1])
    return moments


def consume(job: dict[str, object]) -> dict[str, Any]:
    """Run one reader to its end: what it measured. Raises if it failed."""
    words = [sys.executable, "-m", "benchmarks.consumer", json.dumps(job)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True)
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome
