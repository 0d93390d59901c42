"""Everything a running daemon lets others see, gathered, so that a test can look for what must not be in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from tests.daemon_process import DaemonProcess
from tests.indexing import Sql

PATHS = ("/", "/metrics", "/readyz", "/healthz", "/nowhere")
# What the index says of sources, repositories and what was set aside: all but the accounts' own words, such as handles.
STATES = (
    "select source, state, detail from letta.source",
    "select want_reasons::text, judgement, last_error from letta.repo",
    "select source, did, reason, detail from letta.dead_letter",
)


async def asked(process: DaemonProcess) -> list[str]:
    """Head and body of the answer to each request that anybody could make, and to some that nobody should."""
    return [str(await process.get(path)) for path in PATHS]


def said(process: DaemonProcess) -> list[str]:
    """All that it wrote so far: events, other lines on standard error, standard output."""
    return [json.dumps(line, ensure_ascii=False) for line in process.log] + process.words + process.output


async def kept(sql: Sql) -> list[str]:
    """What the views say of how things stand."""
    return [str(tuple(row)) for query in STATES for row in await sql.fetch(query)]


def command_lines(pid: int) -> dict[int, str]:
    """The command line of a process and of all that descend from it, as ``ps`` shows them, by process id."""
    return {one: line for one in (pid, *descendants(pid)) if (line := _command_line(one))}


def descendants(pid: int) -> Iterator[int]:
    """The ids of a process's children, and of theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def found(secrets: Iterable[str], told: Iterable[str]) -> list[str]:
    """Which of the secrets are in what was told, as they are or as a URL, JSON or Python would spell them."""
    everything = "\n".join(told)
    return [secret for secret in secrets if any(form in everything for form in _forms(secret))]


def _forms(secret: str) -> set[str]:
    written = {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)} | written
