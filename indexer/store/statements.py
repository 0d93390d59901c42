"""The statements of ``queries.sql`` and ``pages.sql``, by name. Tables are filled in from a closed list, no values."""

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
FILES = ("queries.sql", "pages.sql")
HISTORY_TABLES = ("recompile", "conversation_version", "tombstone")

# What is said of the long texts of a record (indexer/texts.py), and the types of its columns.
FACTS = {
    PROMPTS: {
        "content_bytes": "integer",
        "content_sha256": "text",
        "core_memory_sha256": "text",
        "core_memory_in_content": "boolean",
    },
    "agent": {"system_sha256": "text"},
}
COMPARED = "agent, agent_uri, compiled_at, content_sha256, core_memory_sha256, memfs_revision"


def table_of(collection: str) -> str:
    """The table that keeps records of a collection."""
    return TABLES.get(collection, OTHER)


def key_columns(table: str) -> tuple[str, ...]:
    """The columns that a table of records has as its key, in the key's order."""
    return ("did", "space", "collection", "rkey") if table == OTHER else ("did", "space", "rkey")


@cache
def _named() -> dict[str, str]:
    texts = [resources.files("indexer.store").joinpath(name).read_text("utf-8") for name in FILES]
    parts = [re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:] for text in texts]
    return {name: sql for part in parts for name, sql in zip(part[::2], part[1::2], strict=True)}


@cache
def statement(name: str, table: str | None = None) -> str:
    """One statement, ready to run. Raises KeyError for a name or a table that does not exist."""
    text = _named()[name]
    if table is None:
        return text
    if table not in (*RECORD_TABLES, *HISTORY_TABLES):
        raise KeyError(table)
    key = key_columns(table)
    facts = FACTS.get(table, {})
    shown = COMPARED if table == PROMPTS else "null as agent_uri"
    parts = {
        "table": table,
        "key": ", ".join(key),
        "after": ", ".join(f"${2 + n}" for n in range(len(key))),
        "prompt": "r.agent_uri, r.compiled_at" if table == PROMPTS else "null as agent_uri, null as compiled_at",
        "shown": shown,
        "not_shown": ", ".join("null" for _ in shown.split(",")),
        "facts": "".join(f", {name}" for name in facts),
        "fact_arrays": "".join(f", ${14 + n}::{kind}[]" for n, kind in enumerate(facts.values())),
        "new_facts": "".join(f", {name} = excluded.{name}" for name in facts),
    }
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], text)


@cache
def planned_anew(name: str) -> bool:
    """Whether a statement is planned each time: deletes and updates, which name accounts by an array beside the keys.

    A plan made once for an array of any length goes through all rows of the accounts, or through the array at each key.
    """
    return re.match(r"(--.*\n)*(delete|update)\b", _named()[name]) is not None


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
