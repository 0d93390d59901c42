"""What the documentation says, taken apart, and what it has to say."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from indexer.embedded import binaries
from tests.indexing import Sql

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")))  # fmt: skip

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VIEWS = """
    select relname, obj_description(oid) as says from pg_class
    where relnamespace = 'letta'::regnamespace and relkind = 'v' order by relname
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the documentation, and the output shown right below it, if any."""

    sql: str
    output: str | None


def page(name: str) -> str:
    """The text of a page, by its path from the root of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def queries(text: str) -> list[Query]:
    """The queries of a page, in order."""
    blocks = [(match[1], match[2]) for match in _BLOCK.finditer(text)]
    return [
        Query(body, shown.rstrip("\n") if kind == "text" else None)
        for (language, body), (kind, shown) in pairwise([*blocks, ("", "")])
        if language == "sql"
    ]


async def psql(url: str, sql: str) -> str:
    """What psql prints for a query, times in UTC; without blanks at the ends of lines."""
    process = await asyncio.create_subprocess_exec(
        binaries() / "psql",
        *("-X", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PGTZ": "UTC"},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, sql
    return "\n".join(line.rstrip() for line in output.decode().rstrip("\n").splitlines())


async def views_table(sql: Sql) -> str:
    """Every view of ``letta`` with its comment, as a Markdown table."""
    lines = [f"| `letta.{row['relname']}` | {row['says']} |" for row in await sql.fetch(_VIEWS)]
    return "\n".join(["| view | holds |", "|---|---|", *lines]) + "\n"
