"""The demonstration: what it prints about the index is what the views say, and that is the truth."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent

import asyncpg
import pytest

from indexer import demo
from indexer.config import load_settings
from indexer.daemon import Daemon, opened_store
from indexer.demo import END, INTRODUCTION, SCENES, Demo, Network, paragraph, questions_to, simulated_network
from indexer.errors import IndexerError
from indexer.tables import WIDTH, Row, table_lines
from tests.daemon_process import PATIENCE, command
from tests.embedded.servers import alive
from tests.indexing import Sql, untrue_flags

VERDICTS = "select uri, freshness, stale_reasons from letta.compiled_prompt"
HISTORY = "select uri, rev, cid, kind from letta.recompile"
FRESH: tuple[str, list[str]] = ("fresh", [])
TEMPLATE = ("stale", ["template_changed"])
MEMORY = ("stale", ["memory_changed"])


@dataclass(slots=True)
class Told:
    """One telling of the story: every line printed, and every query printed with the rows it gave, in order."""

    lines: list[str] = field(default_factory=list)
    answers: list[tuple[str, list[Row]]] = field(default_factory=list)

    def rows(self, part: str) -> list[list[Row]]:
        """The answers to the queries that have ``part`` in them."""
        return [rows for sql, rows in self.answers if part in sql]


async def tell(url: str, reader: Sql, sql: Sql) -> Told:
    """Tell the story over the database at ``url``, asked by ``reader``; the index is held against the truth."""
    told = Told()

    async def ask(query: str) -> Sequence[Row]:
        rows: list[Row] = [dict(row) for row in await reader.fetch(query)]
        if query.startswith("select") and query.endswith(";"):  # those for people
            told.answers.append((query, rows))
            await agrees(network, sql)
        return rows

    async with simulated_network() as network:
        settings = load_settings({**network.settings, "database_url": url, "data_dir": "."}, {}, None)
        async with opened_store(settings, makes=True) as store:
            await store.open()
            await Demo(network, Daemon(settings, store, announce=silent), ask=ask, say=told.lines.append).run()
    return told


def silent(_: str) -> None:
    """What the daemon announces is of no interest."""


async def agrees(network: Network, sql: Sql) -> None:
    """The index's verdicts and history are those of the network's own oracle, and its flags what they have to be."""
    truth = network.world.expected()
    shown = {uri: prompt for uri, prompt in truth.prompts.items() if uri in truth.records}
    verdicts = {row["uri"]: (row["freshness"], tuple(row["stale_reasons"])) for row in await sql.fetch(VERDICTS)}
    history = {(row["uri"], row["rev"], row["cid"], row["kind"]) for row in await sql.fetch(HISTORY)}
    assert verdicts == {uri: (p.judgement.freshness, p.judgement.stale_reasons) for uri, p in shown.items()}
    assert history == {(uri, *compiled) for uri, prompt in shown.items() for compiled in prompt.compiles}
    assert await untrue_flags(sql) == []


@pytest.fixture
async def reader(database: str) -> AsyncIterator[Sql]:
    """A connection that may read the views and nothing else."""
    connection = await asyncpg.connect(database)
    await connection.execute("set role letta_reader")
    yield connection
    await connection.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A new folder that every user can walk into, for what the demonstration leaves there while it runs."""
    path = Path(tempfile.mkdtemp(prefix="demo-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def left_in(folder: Path) -> list[Path]:
    """What is in a folder."""
    return list(folder.iterdir())


def server_in(folder: Path) -> int:
    """The process id of the PostgreSQL that keeps its data below a folder."""
    (lock,) = folder.glob("*/*/postmaster.pid")
    return int(lock.read_text().split()[0])


def rendered(told: Told) -> list[str]:
    """What has to be printed: the fixed texts, each query, and the rows that the views gave for it."""
    answers = iter(told.answers)
    lines = [*paragraph(INTRODUCTION), ""]
    for number, scene in enumerate(SCENES, 1):
        lines += [f"== {number}. {scene.title}", "", *paragraph(scene.text), ""]
        for query in scene.queries:
            sql, rows = next(answers)
            assert query.split("{did}")[0] in sql
            lines += [*indent(sql, "    ").splitlines(), "", *table_lines(rows), ""]
    assert next(answers, None) is None
    return [*lines, *paragraph(END), ""]


async def test_every_line_about_the_index_comes_from_a_view(database: str, reader: Sql, sql: Sql) -> None:
    """Whatever is printed beside fixed words is a query on the views, open to who may only read, and its very rows."""
    told = await tell(database, reader, sql)
    assert told.lines == rendered(told)
    assert all(len(line) <= WIDTH for line in told.lines)
    for text in (INTRODUCTION, END, *(scene.text for scene in SCENES)):
        assert not re.search(r"\d|did:|at://", text)


async def test_the_story_is_that_of_a_prompt_going_stale_and_fresh_again(database: str, reader: Sql, sql: Sql) -> None:
    """Both prompts go stale by the template, one by the memory, each is fresh after a compile; the history says how."""
    told = await tell(database, reader, sql)
    prompts = [[(row["freshness"], row["stale_reasons"]) for row in rows] for rows in told.rows("c.title")]
    assert prompts == [[FRESH, FRESH], [TEMPLATE, TEMPLATE], [FRESH, TEMPLATE], [MEMORY, FRESH], [FRESH, FRESH]]
    kinds = [row["kind"] for rows in told.rows("letta.recompile where") for row in rows]
    assert kinds == ["first", "full", "full", "first", "full", "memory"]
    evidence = [row["says_who"].rpartition(".")[2].split("/")[0] for rows in told.rows("says_who") for row in rows]
    assert evidence == ["agent", "agent", "compiledPrompt"]
    (left,) = told.rows("h.cid")
    assert [dict(row) for row in left] == [{"status": "deleted", "records": 0, "compiles": 0}]
    counts = told.rows("filter (where verified)")
    assert all(row["verified"] == row["records"] and not row["invalid"] for rows in counts for row in rows)


async def test_the_command_tells_it_offline_and_leaves_nothing(
    database: str, reader: Sql, sql: Sql, folder: Path
) -> None:
    """``demo`` prints what was compared above, names and times aside, whatever the environment says, and cleans up."""
    told = await tell(database, reader, sql)
    hostile = {"LETTA_INDEXER_ONLY": "did:plc:nobody", "DATABASE_URL": "postgresql://nowhere.invalid/x"}
    outcome = await command("demo", environment={**hostile, "TMPDIR": str(folder)})
    assert (outcome.code, outcome.errors) == (0, "")
    assert [masked(line) for line in outcome.output.splitlines()] == [masked(line) for line in told.lines]
    assert left_in(folder) == []


def masked(line: str) -> str:
    """A line without what differs from run to run: record keys, times, the port, and where the source is."""
    line = re.sub(r"\b[2-7a-z]{13}\b", "KEY", line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", line)
    return re.sub(r"127\.0\.0\.1:\d+ +live +\d+", "SOURCE", line).replace("-" * 6, "").rstrip("-")


async def test_ctrl_c_leaves_nothing(folder: Path) -> None:
    """Ctrl-C in the middle ends it in good order: no server runs on, no file is left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "indexer", "demo"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while not (await process.stdout.readline()).startswith(b"== 1."):
            assert not process.stdout.at_eof()
        server = server_in(folder)
        assert alive(server)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert not alive(server)
    assert left_in(folder) == []


async def test_an_index_that_does_not_follow_is_an_error(
    database: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told of an index that isn't what the network is: the command ends with an error instead."""
    monkeypatch.setattr(demo, "PATIENCE", 0.05)
    said: list[str] = []
    async with simulated_network() as network:
        settings = load_settings({**network.settings, "database_url": database, "data_dir": "."}, {}, None)
        async with opened_store(settings, makes=True) as store:
            story = Demo(network, Daemon(settings, store, announce=silent), ask=nothing, say=said.append)
            with pytest.raises(IndexerError, match="did not follow"):
                await story.run()
    assert said == [*paragraph(INTRODUCTION), ""]


async def nothing(_: str) -> Sequence[Row]:
    """An index that never has anything."""
    return []


async def test_questions_are_asked_of_the_store(database: str) -> None:
    """The command asks by the store's own connection and gets rows by their columns' names."""
    settings = load_settings({"database_url": database, "data_dir": "."}, {}, None)
    async with opened_store(settings, makes=True) as store:
        assert await questions_to(store)("select 1 as a, null as b") == [{"a": 1, "b": None}]
