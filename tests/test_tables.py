"""Rows as text: readable on 80 columns, and harmless whatever the rows say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from rich.cells import cell_len

from indexer.tables import NO_ROWS, WIDTH, cell, stale_lines, table_lines

DID = "did:plc:qz6ocwh7sktavhfmfm4qdgzs"
AGENT = f"at://{DID}/xyz.quasigod.lab.letta.agent/3n3khuwco34uv"


def stale_row(*evidence: dict[str, Any]) -> dict[str, Any]:
    """A row of ``letta.stale_prompt``."""
    return {
        "uri": f"at://{DID}/xyz.quasigod.lab.letta.compiledPrompt/3n3khuwco4kp5",
        "agent": AGENT,
        "conversation": f"at://{DID}/xyz.quasigod.lab.letta.conversation/3n3khuwco4kp5",
        "stale_reasons": ["template_changed"],
        "stale_since": datetime(2026, 11, 30, 19, 31, 45, 999999, tzinfo=UTC),
        "evidence": list(evidence),
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (Decimal("1.50"), "1.50"),
        ([], "-"),
        (["a", None], "a, -"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01 00:00:00Z"),
        (datetime(2026, 12, 1, 1, 0, tzinfo=timezone(timedelta(hours=2))), "2026-11-30 23:00:00Z"),
        ("two\nlines\x1b[31m", "two\\nlines\\x1b[31m"),
        ("x" * 301, "x" * 300 + "…"),
    ],
)
def test_a_value_is_one_harmless_line(value: object, text: str) -> None:
    """Every kind of value has a form of one line; no terminal obeys what a record says."""
    assert cell(value) == text


def test_a_table_is_aligned() -> None:
    """Words begin under their heading, numbers end under it, also where characters are two columns wide."""
    rows = [{"name": "記憶", "n": 7, "note": None}, {"name": "a", "n": 1234, "note": "b"}]
    assert table_lines(rows) == [
        "name     n  note",
        "----  ----  ----",
        "記憶     7  -",
        "a     1234  b",
    ]


def test_no_rows_are_said() -> None:
    """An empty answer is told from one that is missing."""
    assert table_lines([]) == [NO_ROWS]


def test_rows_too_wide_become_blocks() -> None:
    """What fits in 80 columns is a table, what has one column more is a block for each row."""
    fits = {"a": "x" * 39, "b": "y" * 39}
    assert cell_len(table_lines([fits])[0]) <= cell_len(table_lines([fits])[1]) == WIDTH
    wide = {"a": "x" * 40, "bcd": "y" * 39}
    assert table_lines([wide, wide]) == [
        "a    " + "x" * 40,
        "bcd  " + "y" * 39,
        "",
        "a    " + "x" * 40,
        "bcd  " + "y" * 39,
    ]


def test_a_stale_prompt_says_why() -> None:
    """A block names the prompt, since when, whose it is; and of each piece of evidence field, values and record."""
    fact = {
        "reason": "template_changed",
        "field": "rawSystemHash",
        "found": "a" * 64,
        "expected": None,
        "record": AGENT,
    }
    row = stale_row(fact)
    assert stale_lines(row) == [
        row["uri"],
        "  stale since   2026-11-30 19:31:45Z",
        f"  agent         {AGENT}",
        f"  conversation  {row['conversation']}",
        "  template_changed: rawSystemHash aaaaaaaaaaaa.. -> none, says",
        f"    {AGENT}",
    ]


def test_evidence_of_strangers_is_harmless() -> None:
    """A revision is any text: it reaches no terminal as it is."""
    fact = {
        "reason": "memory_changed",
        "field": "memfsRevision",
        "found": "\x1b[2J",
        "expected": "é" * 99,
        "record": "r",
    }
    line = stale_lines(stale_row(fact))[4]
    assert line == f"  memory_changed: memfsRevision \\x1b[2J -> {'é' * 12}.., says"
