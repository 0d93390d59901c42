"""The store as an audit reads it: every row in key order, flags against their definition, repositories by path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from indexer.batch import Batch
from indexer.store.accounts import forget
from indexer.store.connection import fetch
from indexer.store.context import Context, columns, short_key_in
from indexer.store.repairs import Repairs
from indexer.store.rows import require_locks
from indexer.store.statements import FACTS, RECORD_TABLES, key_columns
from indexer.store.writer import transact
from indexer.syntax import parse_record_uri

if TYPE_CHECKING:
    from datetime import datetime

    from indexer.store import Store

PAGE = 500  # rows, or accounts, read in one go


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as an audit sees it; ``value`` is JSON text, ``block`` the original bytes where they were kept.

    ``facts`` is what is said of its long texts, by column.
    """

    uri: str
    cid: str
    value: str
    block: bytes | None
    facts: dict[str, object]


@dataclass(frozen=True, slots=True)
class AuditedRepo:
    """A repository to be compared with its host: the last proven rev, whether it is wanted, where its host is."""

    did: str
    rev: str
    wanted: bool
    pds: str | None


async def doubt_flags(context: Context, keys: list[tuple[str, str, str]]) -> None:
    """Have the flags of prompts (did, space, record key) computed anew, and dropped where there is no such prompt.

    Raises LocksMissedError.
    """
    rows = await context.fetch("agents_of_keys", *columns(keys, 3))
    require_locks(context, rows)
    for row in rows:
        context.enter(row)
    context.gone.update(set(keys) - {short_key_in(row) for row in rows})


class Audits:
    """What an audit reads, and ``forget`` takes away. Raises what :class:`indexer.store.Store` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def _fetch(self, name: str, *args: object, table: str | None = None) -> list[asyncpg.Record]:
        async with self._store.connection("read") as connection:
            return await fetch(connection, name, *args, table=table)

    async def rows(self) -> AsyncIterator[StoredRow]:
        """Every row of every collection."""
        for table in RECORD_TABLES:
            key = key_columns(table)
            facts = FACTS.get(table, {})
            after: list[object] = [""] * len(key)
            while page := await self._fetch("rows_after", PAGE, *after, table=table):
                for row in page:
                    said = {name: row[name] for name in facts}
                    yield StoredRow(row["uri"], row["cid"], row["value"], row["block"], said)
                after = [page[-1][column] for column in key]

    async def untrue_flags(self) -> list[dict[str, object]]:
        """Prompts whose flags are not what the defining view computes: URI, what is stored, what is computed.

        Flags of prompts that aren't there are among them: nothing is computed of those.
        """
        found: list[dict[str, object]] = []
        after = ""
        while page := await self._fetch("accounts_after", after, PAGE):
            last = str(page[-1]["did"])
            found += map(dict, await self._fetch("untrue_flags", after, last))
            after = last
        return found

    async def repos(self) -> list[AuditedRepo]:
        """The tracked repositories of accounts that aren't hidden."""
        rows = await self._fetch("audited_repos")
        return [AuditedRepo(row["did"], row["rev"], row["want"] is not None, row["pds"]) for row in rows]

    async def cids(self, did: str) -> dict[str, tuple[str, str]]:
        """CID and rev of every public row of one repository, by path."""
        return await Repairs(self._store).cids(did)

    async def head(self, did: str) -> str:
        """The last proven rev of a repository, '' if there is none."""
        rows = await self._fetch("repo_head", did)
        return str(rows[0]["rev"]) if rows else ""

    async def refresh(self, uris: Sequence[str], now: datetime) -> None:
        """Bring the flags of these prompts in line with their definition, whatever else is written meanwhile."""
        for start in range(0, len(uris), PAGE):
            records = [record for uri in uris[start : start + PAGE] if (record := parse_record_uri(uri)) is not None]
            keys = sorted({(record.did, record.space, record.rkey) for record in records})

            async def step(context: Context, keys: list[tuple[str, str, str]] = keys) -> None:
                await doubt_flags(context, keys)

            dids = {did for did, _, _ in keys}
            async with self._store.connection("write") as connection:
                await transact(connection, Batch(), self._store.limits, now, dids=dids, before=step)

    async def forget(self, did: str, now: datetime) -> None:
        """Take everything of an account away, and never let anything of it in again."""

        async def step(context: Context) -> None:
            await forget(context, did)

        async with self._store.connection("write") as connection:
            await transact(connection, Batch(), self._store.limits, now, dids={did}, before=step)
