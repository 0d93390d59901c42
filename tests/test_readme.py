"""The documentation is true: its queries run, its outputs are real, its tables are the code's, its names exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer

from indexer.cli import DATABASE, DONE, FOUND, USAGE, app
from indexer.config import render_settings_table
from indexer.metrics import metrics_table
from tests.daemon_process import command as called
from tests.indexing import Sql, indexing, read_capture
from tests.readme import PAGES, ROOT, page, psql, queries, views_table
from tests.test_layers import LAYERS, SIMULATOR

SHOWN = [query for query in queries(page("README.md")) if query.output is not None]
COMMAND = re.compile(r"(?:^|[`$/ ])letta-indexer ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
CODE = re.compile(r"`((?:indexer|deploy|tests|docs)/[\w./-]+|schema\.sql|[\w]+/[\w]+\.(?:py|sql))`")


@pytest.fixture
async def filled(database: str, pds_a: Path) -> str:
    """The URL of a database that holds the capture the outputs are taken from."""
    async with indexing(database) as index:
        await index.take(read_capture(pds_a / "frames.bin"))
    return database


FOR_OWNERS = ("docs/privacy.md", "docs/scaling.md")  # their SQL is for whoever owns the tables: tested elsewhere


async def test_every_query_runs_for_a_reader(filled: str) -> None:
    """Each query of every page for readers runs for the role that may read the views and nothing else."""
    connection = await asyncpg.connect(filled)
    await connection.execute("set role letta_reader")
    asked = [query.sql for name in PAGES if name not in FOR_OWNERS for query in queries(page(name))]
    assert len(asked) > 15
    for sql in asked:
        await connection.execute(sql)
    await connection.close()


async def test_outputs_are_real(filled: str) -> None:
    """An output shown below a query is what psql prints for it on the capture that ships with the tests."""
    assert len(SHOWN) >= 3
    for query in SHOWN:
        assert await psql(filled, query.sql) == query.output


def test_first_screen_shows_what_it_is() -> None:
    """Name, purpose, the way to start and three answered queries come before anything else."""
    first, _, _ = page("README.md").partition("\n## ")
    assert [word for word in ("make run", "make demo") if word not in first] == []
    assert len([query for query in queries(first) if query.output]) == 3


async def test_the_answers_can_be_had_by_hand(data_dir: Path) -> None:
    """The two commands below the answers give them, though another daemon has the usual port and data folder."""
    block = re.search(r"```console\n(\$ \S+ run --once .*?)```", page("README.md"), re.DOTALL)
    assert block is not None
    assert "--listen 127.0.0.1:0" in block[1]
    typed = re.sub(r"--data-dir \S+", f"--data-dir {data_dir}", block[1].replace("\\\n", ""))
    run, psql = (shlex.split(line)[2:] for line in typed.splitlines())
    outcome = await called(*run)
    assert outcome.code == 0, outcome.errors
    outcome = await called(*psql, "--", "-Xc", SHOWN[0].sql)
    assert "\n".join(line.rstrip() for line in outcome.output.rstrip().splitlines()) == SHOWN[0].output


def test_commands_are_named_so_that_they_can_be_typed() -> None:
    """Nothing is called `letta-indexer` before it is said where that is."""
    before, said, _ = page("README.md").partition("`letta-indexer` is short for `.venv/bin/letta-indexer`")
    assert said
    assert re.findall(r"(?<!bin/)letta-indexer [a-z]+", before.partition("console")[2]) == []


async def test_tables_are_those_of_the_code(sql: Sql) -> None:
    """Settings, metrics and views stand in the README exactly as the code defines them."""
    readme = page("README.md")
    for table in (render_settings_table(), metrics_table(), await views_table(sql)):
        assert table in readme, f"paste this into README.md:\n{table}"


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", {})
        found |= {f"{name} {word}": each for word, each in inner.items()} or {name: command}
    return found


def named_commands(text: str) -> Iterator[str]:
    """The commands that a text names, in the words that call them."""
    groups = {name.split()[0] for name in commands() if " " in name}
    for first, second in COMMAND.findall(text):
        yield f"{first} {second}" if first in groups else first


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_flags_exist(name: str) -> None:
    """No page names a command or a flag that isn't there."""
    text = page(name)
    flags = {flag for command in commands().values() for one in command.params for flag in one.opts}
    others = {"--help", "--strict", "--single-transaction"}  # of every command, of mypy, of psql
    assert [word for word in named_commands(text) if word not in commands()] == []
    assert sorted(set(FLAG.findall(text)) - flags - others) == []


def test_every_command_is_described() -> None:
    """The README's table of commands has a row for each."""
    rows = set(named_commands("\n".join(re.findall(r"^\| (`letta-indexer .*?`)", page("README.md"), re.MULTILINE))))
    assert rows == set(commands())


def test_exit_codes_are_those_of_the_code() -> None:
    """The README's exit codes are the command line's."""
    assert (DONE, FOUND, USAGE, DATABASE) == (0, 1, 2, 3)
    told = re.search(r"Exit codes: (.*?)\n\n", page("README.md"), re.DOTALL)
    assert told is not None
    assert re.findall(r"\*\*(\d)\*\*", told[1]) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Every link within the repository leads to a file, and to a heading in it."""
    broken = []
    for link in LINK.findall(page(name)):
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert broken == []


def headings(target: Path) -> set[str]:
    """The anchors of a page's headings."""
    lines = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("name", PAGES)
def test_files_and_tests_named_exist(name: str) -> None:
    """What a page says to look at is there: files, and the tests that hold a promise."""
    text = page(name)
    missing = [
        path for path in CODE.findall(text) if not any((base / path).exists() for base in (ROOT, ROOT / "indexer"))
    ]
    for path, test in TEST.findall(text):
        if test and f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8"):
            missing.append(f"{path}::{test}")
    assert missing == []


def test_each_invariant_names_the_tests_that_hold_it() -> None:
    """Every numbered invariant is followed by at least one test."""
    sections = re.split(r"^## \d+\. ", page("docs/invariants.md"), flags=re.MULTILINE)[1:]
    assert len(sections) == 10
    assert [section.splitlines()[0] for section in sections if not [t for t in TEST.findall(section) if t[1]]] == []


def test_architecture_names_every_module() -> None:
    """The table of layers has every module of the package in its layer, and no other."""
    rows = re.findall(r"^\| L(\d) \| (.*?) \|", page("docs/architecture.md"), re.MULTILINE)
    told = {f"indexer.{name}": int(layer) for layer, names in rows for name in re.findall(r"`(\w+)`", names)}
    present = {name: layer for name, layer in LAYERS.items() if name != "indexer" and exists(name)}
    assert told == present
    assert SIMULATOR.partition(".")[2] in page("docs/architecture.md")


def exists(name: str) -> bool:
    """Whether a module or package of the table of layers is there by now."""
    path = ROOT / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
