"""The statements of ``queries.sql``, by name. Tables are filled in from a closed list, values never."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, MESSAGE

OTHER = "other_record"
PROMPTS = "compiled_prompt"
TABLES = {CONVERSATION: "conversation", COMPILED_PROMPT: PROMPTS, AGENT: "agent", MESSAGE: "message"}
RECORD_TABLES = (*TABLES.values(), OTHER)
HISTORY_TABLES = ("recompile", "conversation_version", "tombstone")


def table_of(collection: str) -> str:
    """The table that keeps records of a collection."""
    return TABLES.get(collection, OTHER)


def key_columns(table: str) -> tuple[str, ...]:
    """The columns that a table of records has as its key, in the key's order."""
    return ("did", "space", "collection", "rkey") if table == OTHER else ("did", "space", "rkey")


@cache
def _named() -> dict[str, str]:
    text = resources.files("indexer.store").joinpath("queries.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def statement(name: str, table: str | None = None) -> str:
    """One statement, ready to run. Raises KeyError for a name or a table that does not exist."""
    text = _named()[name]
    if table is None:
        return text
    if table not in (*RECORD_TABLES, *HISTORY_TABLES):
        raise KeyError(table)
    key = key_columns(table)
    parts = {
        "table": table,
        "key": ", ".join(key),
        "after": ", ".join(f"${2 + n}" for n in range(len(key))),
        "prompt": "r.agent_uri, r.compiled_at" if table == PROMPTS else "null as agent_uri, null as compiled_at",
    }
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], text)


def statement_names() -> tuple[str, ...]:
    """The names of all statements, for tests that read every one of them."""
    return tuple(_named())


@cache
def schema_sql() -> str:
    """The text of ``schema.sql``: beside the package in a wheel, at the top of a checkout."""
    packaged = resources.files("indexer").joinpath("schema.sql")
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return (Path(__file__).parents[2] / "schema.sql").read_text("utf-8")
