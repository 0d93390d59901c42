"""From the start of the process to its first frame: the command as people run it, over a database that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.load import Capture
from benchmarks.parts import Server
from benchmarks.processes import LIMIT, report_of, sender
from benchmarks.table import Row, Table

CONNECTED = 1.0  # seconds left to the daemon after it has connected, before it is told to end


def started(capture: Capture, *settings: str) -> float:
    """Seconds from the start of ``letta-indexer run`` to its connection to the source, where frames wait for it."""
    with sender(capture.path) as (url, process):
        source = url.removesuffix("/xrpc/com.atproto.sync.subscribeRepos")
        words = [sys.executable, "-m", "indexer", "run", "--source", source, "--listen", "127.0.0.1:0", *settings]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LETTA_INDEXER_")}
        began = time.monotonic()
        daemon = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        try:
            time.sleep(CONNECTED)
            while not seen(process) and daemon.poll() is None and time.monotonic() < began + LIMIT:
                time.sleep(0.1)
        finally:
            daemon.terminate()
            daemon.wait(timeout=LIMIT)
        return report_of(process)[0] - began


def seen(process: subprocess.Popen[str]) -> bool:
    """Whether the sender has a connection: it reads on its socket then, and listens on no other."""
    links = Path(f"/proc/{process.pid}/fd").iterdir()
    return sum(1 for link in links if str(link.readlink()).startswith("socket:")) > 1


async def measure(table: Table, server: Server, capture: Capture, folder: Path, rounds: int) -> None:
    """Both ways to have a database, rounds interleaved."""
    away, own = [], []
    trust = ("--trust", "relay")  # no host answers questions here
    async with server.database() as url:
        started(capture, *trust, "--data-dir", str(folder / "data"))  # makes the folder
        for _ in range(rounds):
            away.append(started(capture, *trust, "--database-url", url))
            own.append(started(capture, *trust, "--data-dir", str(folder / "data")))
    table.add(Row("start to first frame", "s", away, note="over a server that runs"))
    table.add(Row("start to first frame, embedded", "s", own, note="PostgreSQL started from its folder first"))
