"""What people are told about the index: every figure read from the views of ``letta``."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from indexer.store.connection import Connection, fetch

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """The state of the index, in tables of rows; times are aware datetimes."""

    sources: list[Row]
    repos: list[Row]
    records: list[Row]
    prompts: list[Row]
    dead_letters: list[Row]
    issues: list[Row]

    def as_json(self) -> str:
        """One JSON object; times in ISO 8601."""
        return to_json(asdict(self))


def to_json(value: object) -> str:
    """JSON for scripts: times in ISO 8601, two spaces of indent."""
    return json.dumps(value, default=_plain, indent=2, ensure_ascii=False)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON form for {type(value).__name__}")


async def read_summary(connection: Connection) -> Summary:
    """The state of the index as of one moment: all tables in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        return Summary(
            **{
                name: [dict(row) for row in await fetch(connection, f"status_{name}")]
                for name in ("sources", "repos", "records", "prompts", "dead_letters", "issues")
            }
        )


async def read_stale(connection: Connection) -> list[Row]:
    """Stale prompts, the longest stale first, with evidence as a list of objects."""
    rows = [dict(row) for row in await fetch(connection, "stale")]
    for row in rows:
        row["evidence"] = json.loads(row["evidence"])
    return rows


async def read_counts(connection: Connection) -> tuple[dict[str, int], dict[str, int]]:
    """Prompts by freshness, and stale prompts by reason."""
    freshness = await fetch(connection, "prompts_by_freshness")
    reasons = await fetch(connection, "stale_prompts_by_reason")
    return {r["freshness"]: r["prompts"] for r in freshness}, {r["reason"]: r["prompts"] for r in reasons}


async def read_records(connection: Connection) -> tuple[dict[tuple[str, str], int], dict[str, int]]:
    """Records by collection (an NSID) and proof ('' for none), and those that break their schema by collection."""
    rows = await fetch(connection, "records_by_proof")
    by_proof = {(row["collection"], row["proof"]): row["records"] for row in rows}
    invalid: Counter[str] = Counter()
    for row in rows:
        invalid[row["collection"]] += row["invalid"]
    return by_proof, invalid


async def read_issues(connection: Connection) -> dict[str, int]:
    """Integrity issues by severity."""
    return {row["severity"]: row["issues"] for row in await fetch(connection, "issues_by_severity")}


async def read_ages(connection: Connection, now: datetime) -> dict[str, float]:
    """What waits, and since when, as gauges by their names: seconds until ``now``, 0 where nothing waits."""
    (row,) = await fetch(connection, "ages", now)
    return {name: max(0.0, float(value)) for name, value in row.items()}


async def read_place(connection: Connection) -> tuple[int, str | None]:
    """The database's size in bytes, and the folder it lies in: None where the server may be on another machine."""
    (row,) = await fetch(connection, "place")
    return row["bytes"], row["folder"]
