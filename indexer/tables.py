"""Rows as plain text for a terminal of 80 columns: a table where one fits, else one block a row.

Cells hold what strangers wrote, so every text is cut and freed of control characters (:func:`indexer.logs.printable`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from rich.cells import cell_len

from indexer.logs import printable

WIDTH: Final = 80
NO_ROWS: Final = "(no rows)"
_GAP: Final = "  "
_HASH: Final = 12  # characters of a hash or a revision that tell it from others

Row: TypeAlias = Mapping[str, Any]


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Rows, which have the same columns, as lines: a table if it fits in 80 columns, else a block for each row."""
    if not rows:
        return [NO_ROWS]
    names = list(rows[0])
    cells = [[cell(row[name]) for name in names] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > WIDTH:
        return list(_blocks(names, cells))
    numeric = [all(isinstance(row[name], int | float | Decimal | None) for row in rows) for name in names]
    ruled = [names, ["-" * width for width in widths], *cells]
    return [_line(entries, widths, numeric) for entries in ruled]


def stale_lines(row: Row) -> list[str]:
    """One stale prompt: its URI, since when, whose it is, and for each piece of evidence which record says what.

    ``row`` has the columns of ``letta.stale_prompt``, with ``evidence`` as a list of objects.
    """
    names = ("stale_since", "agent", "conversation")
    facts = [[name.replace("_", " "), cell(row[name])] for name in names]
    return [cell(row["uri"]), *(f"  {name:<12}  {value}" for name, value in facts), *_evidence(row["evidence"])]


def cell(value: object) -> str:
    """One value as text of one line; times in UTC, to the second."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "seconds") + "Z"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "-"
    return printable(str(value))


def _line(entries: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for text, width, right in zip(entries, widths, numeric, strict=True):
        space = " " * (width - cell_len(text))
        padded.append(space + text if right else text + space)
    return _GAP.join(padded).rstrip()


def _blocks(names: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    width = max(map(len, names))
    for number, row in enumerate(cells):
        if number:
            yield ""
        for name, text in zip(names, row, strict=True):
            yield f"{name:<{width}}{_GAP}{text}"


def _evidence(facts: Sequence[Row]) -> Iterator[str]:
    for fact in facts:
        yield f"  {fact['reason']}: {fact['field']} {_short(fact['found'])} -> {_short(fact['expected'])}, says"
        yield f"    {cell(fact['record'])}"


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return cell(value if len(value) <= _HASH else value[:_HASH] + "..")
