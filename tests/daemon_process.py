"""The daemon as a process of its own, as its users run it: started with arguments, watched, ended by signals.

    async with daemon("--source", f"file:{capture}", "--database-url", url) as process:
        await process.ready()
        ...
        assert await process.stop() == 0

The variables of whoever runs the tests don't reach it: neither settings nor a proxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp

PATIENCE = 60.0  # seconds until what does not happen counts as a failure; also on a busy machine far too many
_PAUSE = 0.02  # seconds between two looks at what gives no signal of its own
_ANNOUNCEMENT = "serving "

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], *, within: float = PATIENCE) -> T:
    """The first true answer of ``look``, asked again and again; AssertionError with the last one after ``within`` s."""
    answer: T | None = None
    try:
        async with asyncio.timeout(within):
            while True:
                answer = await look()
                if answer:
                    return answer
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s; the last answer was {answer!r}") from None


class Outcome(NamedTuple):
    """How a command ended: its exit code and what it wrote."""

    code: int
    output: str
    errors: str


async def command(*arguments: str, environment: Mapping[str, str] | None = None, within: float = PATIENCE) -> Outcome:
    """Run ``letta-indexer`` with these arguments to its end; AssertionError if that takes over ``within`` seconds."""
    process = await _spawn(arguments, environment)
    try:
        async with asyncio.timeout(within):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        _, errors = await process.communicate()
        raise AssertionError(f"{' '.join(arguments)} did not end within {within:g} s:\n{errors.decode()}") from None
    assert process.returncode is not None
    return Outcome(process.returncode, output.decode(), errors.decode())


class DaemonProcess:
    """A running ``letta-indexer run``; ``url`` is where it serves HTTP, ``log`` the events it has logged so far."""

    def __init__(self, process: Process, http: aiohttp.ClientSession) -> None:
        self.url = ""
        self.log: list[dict[str, Any]] = []
        self.words: list[str] = []  # on standard error, but no event: a traceback, a last sentence
        self.output: list[str] = []  # on standard output
        self._process = process
        self._http = http
        self._changed = asyncio.Event()
        self._readers = [asyncio.ensure_future(self._read_output()), asyncio.ensure_future(self._read_errors())]

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def announced(self) -> None:
        """Wait until it serves HTTP."""
        await self._until(lambda: bool(self.url))

    async def logged(self, event: str, **facts: object) -> dict[str, Any]:
        """Wait for a log line with this event and these facts, an earlier one included; returns it."""

        wanted = {"event": event, **facts}
        await self._until(lambda: self._line(wanted) is not None)
        line = self._line(wanted)
        assert line is not None
        return line

    def _line(self, wanted: Mapping[str, object]) -> dict[str, Any] | None:
        lines = (line for line in self.log if all(line.get(name) == fact for name, fact in wanted.items()))
        return next(lines, None)

    async def ready(self) -> None:
        """Wait until ``/readyz`` says so."""
        await self.announced()

        async def answer() -> bool:
            return (await self.get("/readyz"))[0] == 200

        await eventually(answer)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of the answer to a GET."""
        async with self._http.get(self.url + path) as response:
            return response.status, await response.text()

    async def reasons(self) -> list[str]:
        """Why it is not ready, by ``/readyz``; empty if it is. Status and body have to agree."""
        status, body = await self.get("/readyz")
        answer = json.loads(body)
        assert (status, answer["ready"]) == ((503, False) if answer["reasons"] else (200, True))
        return list(answer["reasons"])

    async def metric(self, sample: str) -> float | None:
        """The value of one sample of ``/metrics``, named with its labels and without our prefix."""
        for line in (await self.get("/metrics"))[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == f"letta_indexer_{sample}":
                return float(value)
        return None

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.send_signal(signal.SIGTERM)

    async def stop(self) -> int:
        """Ask it to end and wait; returns the exit code."""
        self.terminate()
        return await self.ended()

    async def kill(self) -> int:
        """End it this instant (SIGKILL); returns the exit code, which is -9 unless it had ended before."""
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self.ended()

    async def ended(self, *, within: float = PATIENCE) -> int:
        """Wait for its end; returns the exit code (negative: the number of the signal)."""
        async with asyncio.timeout(within):
            code = await self._process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                if not self.running:
                    await asyncio.gather(*self._readers)
                    assert holds(), f"the daemon ended with {self._process.returncode} before that"
                    return
                changed = self._changed
                await changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode()
            self.output.append(text)
            if text.startswith(_ANNOUNCEMENT) and not self.url:
                self.url = text.removeprefix(_ANNOUNCEMENT).partition("/metrics")[0]
            self._announce()
        await self._process.wait()
        self._announce()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode()
            if text.startswith("{"):
                self.log.append(json.loads(text))
            else:
                self.words.append(text)
            self._announce()


@asynccontextmanager
async def daemon(*arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[DaemonProcess]:
    """Start ``letta-indexer run`` with these arguments on a free port; killed at the end of the block if it still runs.

    A test that fails inside the block shows what the daemon has logged.
    """
    process = await _spawn(("run", "--listen", "127.0.0.1:0", "--log-format", "json", *arguments), environment)
    async with aiohttp.ClientSession() as http:
        running = DaemonProcess(process, http)
        try:
            yield running
        except BaseException as error:
            shown = [json.dumps(line) for line in running.log[-50:]]
            error.add_note("\n".join(["the daemon said:", *shown, *running.words]))
            raise
        finally:
            await running.kill()


async def _spawn(arguments: tuple[str, ...], environment: Mapping[str, str] | None) -> Process:
    # A session of its own: Ctrl-C goes to pytest alone.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "indexer", *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        limit=1 << 20,
        env={"LETTA_INDEXER_TRUST": "relay"} | _environment() | dict(environment or {}),
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """The environment without settings of ours; an empty settings file in the place of one that may lie about."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("LETTA_INDEXER_")}
    kept.pop("DATABASE_URL", None)
    return kept | {"LETTA_INDEXER_CONFIG": os.devnull, "NO_PROXY": "*", "no_proxy": "*"}
