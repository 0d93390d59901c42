"""The statements of ``queries.sql`` and ``pages.sql``, by name. Tables are filled in from a closed list, no values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from indexer.errors import BatchRefused
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
# How an array of texts is passed as one: a line each, after an empty one, or a single empty text would be none at all.
NULL_LINE = "\x01"
_LINES = re.compile(r"\$(\d+)::lines")
_AS_ARRAY = r"(string_to_array($\1, E'\\n', E'\\x01'))[2:]"

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
    return _LINES.sub(_AS_ARRAY, _filled_in(name, table))


@cache
def line_parameters(name: str, table: str | None = None) -> frozenset[int]:
    """The numbers of a statement's parameters that are texts passed as lines (:func:`as_lines`)."""
    return frozenset(int(number) for number in _LINES.findall(_filled_in(name, table)))


def as_lines(texts: Sequence[str | None]) -> str:
    """Texts as one, a line each. Raises BatchRefused for one with a line break: no key and no JSON of ours has any."""
    try:
        lines = "".join(["\n" + (NULL_LINE if text is None else text) for text in texts])
    except TypeError:
        raise BatchRefused("the data holds something else where a text has to be") from None
    if lines.count("\n") != len(texts):
        raise BatchRefused("the data holds a line break where none can be")
    return lines


def _filled_in(name: str, table: str | None) -> str:
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
        "fact_arrays": "".join(
            f", ${14 + n}::{'lines' if kind == 'text' else f'{kind}[]'}" for n, kind in enumerate(facts.values())
        ),
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
