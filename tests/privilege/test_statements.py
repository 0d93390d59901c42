"""SQL is what our own files say, values are parameters: proven on the source, on the files, and on hostile records."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from asyncpg import introspection
from hypothesis import given
from hypothesis import strategies as st

from indexer.embedded import configuration
from indexer.store.spaces import Spaces
from indexer.store.statements import (
    HISTORY_TABLES,
    RECORD_TABLES,
    schema_sql,
    statement,
    statement_names,
)
from tests.frames import AGENT, OTHER, PROMPT, account, agent, commit, identity, key, prompt, put, rev
from tests.indexing import indexing
from tests.store.batches import NOW

PACKAGE = Path(__file__).parents[2] / "indexer"
TABLES = (*RECORD_TABLES, *HISTORY_TABLES)
SENDING = (
    *("execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "prepare", "cursor"),
    *("copy_from_query", "copy_from_table", "copy_to_table", "copy_records_to_table"),
)
NAMED = ("statement", "schema_sql")  # what gives text out of our own files
BY_NAME = ("fetch", "context.fetch", "context.execute", "self.fetch", "self.execute")  # look a name up, and are checked
HTTP = re.compile(r"(\w+\.)*_?outbound\.fetch")
VERB = re.compile(
    r"\s*(select\s|insert\s+into\s|update\s+[\w.{}]+\s+set\s|delete\s+from\s|truncate\s|copy\s|listen\s|notify\s|"
    r"(create|alter|drop)\s+(table|view|index|role|user|schema|database|policy|function|trigger|materialized)\b|"
    r"grant\s+\w+.*\s(on|to)\s|revoke\s+\w+.*\sfrom\s|set\s+(local\s+)?(role|session)\b)",
    re.IGNORECASE | re.DOTALL,
)
# What may come in by %s, being SQL already, and where it was made so.
QUOTED = {
    "string_agg(quote_ident(attname), ', ')": "",
    "found.rows": "pg_get_expr(p.polqual, p.polrelid) as rows",
}
# What the driver sends by itself: transactions, and its questions about types.
DRIVER = re.compile(
    r"(BEGIN( ISOLATION LEVEL [A-Z ]+)?|COMMIT|ROLLBACK);?|SELECT\s+current_setting\('jit'\) AS cur,[^;$]*|"
    + re.escape(introspection.INTRO_LOOKUP_TYPES.strip())
)
# Text that is put together all the same, each with what keeps it from being anybody's but ours.
ALLOWED = {
    "indexer/demo.py: connection.fetch(sql)",  # the demonstration's own questions, to a database thrown away after it
    "indexer/store/migrations.py: connection.execute(migration.sql, timeout=MIGRATION_TIMEOUT)",  # a file of ours
}
CREATE_DATABASE = "indexer/embedded/cluster.py: "  # the constant configuration.DATABASE, for psql


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package that runs against a database, by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "simulator" not in path.parts:
            yield str(path.relative_to(PACKAGE.parent)), ast.parse(path.read_text("utf-8"))


def unnamed(where: str, tree: ast.AST) -> Iterator[str]:
    """Calls that send something other than a statement of our files to the database."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func)
        if called.rpartition(".")[2] not in SENDING or called in BY_NAME or HTTP.fullmatch(called):
            continue
        sent = call.args[0] if call.args else None
        if not (isinstance(sent, ast.Call) and ast.unparse(sent.func) in NAMED):
            yield f"{where}: {ast.unparse(call)}"


def built(where: str, tree: ast.AST) -> Iterator[str]:
    """Expressions that put SQL together out of parts."""
    for node in ast.walk(tree):
        template: ast.AST | None = None
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod)):
            template = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            template = node.func.value if node.func.attr in ("format", "format_map", "replace", "join") else None
        if template is not None and any(VERB.match(text) for text in texts(template)):
            yield f"{where}: {ast.unparse(node)}"


def texts(node: ast.AST) -> list[str]:
    """The constant text of an expression, each part by itself and all together."""
    parts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [*parts, "{}".join(parts)]


def test_only_named_statements_are_sent() -> None:
    """Whatever the driver is handed is a statement of queries.sql or schema.sql, by name: no text is made up."""
    found = [one for where, tree in modules() for one in unnamed(where, tree)]
    assert [one for one in found if one not in ALLOWED] == []


def test_no_sql_is_put_together() -> None:
    """No f-string, sum, percent sign, format or join makes SQL, but for one that names a database of our own."""
    found = [one for where, tree in modules() for one in built(where, tree)]
    assert [one for one in found if not (one.startswith(CREATE_DATABASE) and "database" in one)] == []
    assert re.fullmatch("[a-z_]+", configuration.DATABASE)


@pytest.mark.parametrize(
    "code",
    [
        "connection.execute(f'select {x}')",
        "connection.fetch('select ' + x)",
        "c.execute(sql)",
        "self._connection.fetchval('select %s' % x)",
        "connection.prepare(statement('a') + x)",
        "await connection.execute(TEXT.format(x))",
        "connection.cursor()",
    ],
)
def test_the_look_at_the_source_sees(code: str) -> None:
    """Each way of sending text of one's own that the tests above forbid is seen by them."""
    assert list(unnamed("x", ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "f'select * from {table}'",
        "'delete from ' + table",
        "'update x set a = %s' % a",
        "'insert into {} values'.format(t)",
        "'grant select on %s to x' % t",
        "'select x'.replace('x', y)",
        "f'set role {role}'",
    ],
)
def test_the_look_at_texts_sees(code: str) -> None:
    """Each way of putting SQL together that the test above forbids is seen by it."""
    assert list(built("x", ast.parse(code)))


def test_tables_are_the_only_thing_filled_in() -> None:
    """What a statement becomes depends on its name and a table, both from closed lists; no marker is left."""
    texts = {(name, table): statement(name, table) for name, table in product(statement_names(), TABLES)}
    assert len(texts) == len(statement_names()) * len(TABLES)
    assert [place for place, text in texts.items() if re.search(r"\{\w+\}", text)] == []
    filled = {name for name in statement_names() if re.search(r"\{\w+\}", statement(name))}
    assert filled  # and what has no marker is sent as it stands in the file
    assert all(texts[name, table] == statement(name) for name, table in texts if name not in filled)


@given(
    name=st.sampled_from(statement_names()) | st.text(),
    table=st.text() | st.builds("{}{}".format, st.sampled_from(TABLES), st.sampled_from((" ", ";", "'", '"', "\n"))),
)
def test_no_other_table_or_name_is_filled_in(name: str, table: str) -> None:
    """A name or a table that is not on the lists raises; it never becomes part of a statement."""
    if table not in TABLES:
        with pytest.raises(KeyError):
            statement(name, table)
    if name not in statement_names():
        with pytest.raises(KeyError):
            statement(name)


def sql_files() -> dict[str, str]:
    """Everything of ours that PostgreSQL runs, comments left out."""
    found = {path.name: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.sql"))} | {"schema": schema_sql()}
    return {name: re.sub(r"--[^\n]*", "", text) for name, text in found.items()}


def formats(text: str) -> Iterator[str]:
    """Each call of format(), up to the parenthesis that ends it."""
    for match in re.finditer(r"\bformat\(", text):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[match.start() : end]


def test_sql_that_sql_makes_is_quoted() -> None:
    """Where our own SQL runs text it has made, names come in by %I and values by %L, or were quoted before."""
    assert {"schema", "queries.sql"} <= sql_files().keys()
    for name, text in sql_files().items():
        executed = re.findall(r"\bexecute\s+(?!on\b)([^\s(;]+)", text, re.IGNORECASE)
        assert set(executed) <= {"format", "statement"}, name  # a statement is what such a format() gave: see below
        for call in formats(text):
            if "^at://" in call:  # a pattern, which nothing executes
                continue
            placeholders = re.findall(r"%[^%]", call)
            if "%s" in placeholders:
                assert [argument for argument, made in QUOTED.items() if argument in call and made in text], call
                placeholders.remove("%s")
            assert placeholders, call
            assert set(placeholders) <= {"%I", "%L"}, call


HOSTILE = ["'; drop schema letta cascade; --", "$1", "{table}", "%s", "\\'", '"', "x" * 300]


async def test_what_is_sent_is_on_the_list(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever strangers write, PostgreSQL is sent the statements of our files, letter by letter, and nothing else."""
    sent: set[str] = set()
    connect = asyncpg.connect

    async def listened(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        connection.add_query_logger(lambda query: sent.add(query.query))
        return connection

    monkeypatch.setattr(asyncpg, "connect", listened)
    async with indexing(database) as index:
        for number, text in enumerate(HOSTILE):
            await index.take(
                [
                    commit(
                        put(AGENT, key(number), agent(text, name=text)),
                        put(PROMPT, key(number), prompt(text, text, conversation=text, model=text)),
                        put(OTHER, key(number), {text: text}),
                        rev=rev(number),
                    ),
                    identity(handle=text),
                    account(active=False, status=text),
                    commit(put(AGENT, text, agent(text)), rev=text),
                ]
            )
        await index.store.summary()
        await index.store.stale()
        await Spaces(index.store).note("did:plc:x", HOSTILE[0], HOSTILE[0], HOSTILE[0], NOW)
    listed = {statement(name) for name in statement_names()}
    listed |= {statement(name, table) for name, table in product(statement_names(), TABLES)}
    assert len(sent & listed) > 30
    assert [text for text in sent - listed if not DRIVER.fullmatch(text.strip())] == []
