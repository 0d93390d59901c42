"""One batch, one transaction: rows, freshness, history, account states, dead letters and cursors together.

The account rows of everything the batch can touch are locked first (did order, one statement); what is decided after
that is decided on what was read under the locks.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import asyncpg

from indexer.batch import Batch, Key, Order, key_of, order_of
from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION, Change, Reason
from indexer.store.connection import Connection, fetch
from indexer.store.statements import HISTORY_TABLES, PROMPTS, RECORD_TABLES, statement, table_of

ATTEMPTS = 8  # at getting all locks: each failure means that a prompt's agent changed in between
MAX_PAYLOAD = 7_900  # bytes; NOTIFY ends at 8,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the index: per account, and for what was set aside. ``keep_content`` keeps the texts of old prompts."""

    quota_rows: int = 1_000_000
    quota_bytes: int = 10 << 30
    letter_rows: int = 10_000
    letter_bytes: int = 64 << 20
    letter_age: timedelta = timedelta(days=30)
    keep_content: bool = False


@dataclass(slots=True)
class Applied:
    """What a batch came to, for the counters."""

    rows: Counter[str] = field(default_factory=Counter)  # by collection: put or deleted
    recompiles: Counter[str] = field(default_factory=Counter)  # by kind
    dropped: Counter[Reason] = field(default_factory=Counter)

    def __add__(self, other: Applied) -> Applied:
        return Applied(self.rows + other.rows, self.recompiles + other.recompiles, self.dropped + other.dropped)


class Pair(NamedTuple):
    """The prompts of one agent in one repository: what freshness is refreshed by."""

    did: str
    space: str
    agent_uri: str


class LocksMissed(Exception):
    """A prompt named another agent by the time the locks were held: begin again, with these accounts too."""

    def __init__(self, dids: set[str]) -> None:
        self.dids = dids


def columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows to columns, the form unnest takes; ``width`` empty columns where there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


async def write(connection: Connection, batch: Batch, limits: Limits, now: datetime) -> Applied:
    """Write a batch in one transaction. Driver errors come through untranslated; nothing is written then."""
    more: set[str] = set()
    for _ in range(ATTEMPTS):
        try:
            async with connection.transaction():
                return await _Transaction(connection, batch, limits, now).run(more)
        except LocksMissed as missed:
            more |= missed.dids
    raise asyncpg.DeadlockDetectedError("the agents of the prompts in a batch kept changing")


class _Transaction:
    """The steps of one transaction, in order, with what each leaves for the next."""

    def __init__(self, connection: Connection, batch: Batch, limits: Limits, now: datetime) -> None:
        self.connection = connection
        self.batch = batch
        self.limits = limits
        self.now = now
        self.applied = Applied()
        self.purged_revs: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.tombstones: dict[Key, Order] = {}
        self.kept: dict[Key, asyncpg.Record] = {}
        self.sizes: dict[tuple[str, str], tuple[int, int]] = {}  # records and bytes of each repository before
        self.growth: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])  # and after
        self.pairs: set[Pair] = set()
        self.agents: set[str] = set()  # URIs of agents that changed, vanished, were hidden or came back
        self.news: list[dict[str, object]] = []

    async def run(self, more: set[str]) -> Applied:
        batch = self.batch
        if batch.puts or batch.deletes or batch.accounts or batch.handles:
            locked = await self._lock(more)
            await self._open_counts()
            await self._accounts()
            await self._read(locked)
            await self._delete()
            written = await self._put([c for c in batch.puts.values() if self._admits(c)])
            await self._history(written)
            await self._count()
            await self._refresh()
        await self._finish()
        return self.applied

    async def _fetch(self, name: str, *args: Any, table: str | None = None) -> list[asyncpg.Record]:
        return await fetch(self.connection, name, *args, table=table)

    # locks and states

    async def _lock(self, more: set[str]) -> set[str]:
        prompts = [key for key in {*self.batch.puts, *self.batch.deletes} if key.collection == COMPILED_PROMPT]
        named = await self._agents_of(
            prompts, [c.record.agent for c in self._puts(COMPILED_PROMPT) if c.record and c.record.agent]
        )
        dids = self.batch.dids() | more | {did_of(uri) for uri in named}
        await self.connection.execute(statement("lock_accounts"), list(dids))
        return dids

    async def _agents_of(self, prompts: list[Key], references: list[str]) -> list[str]:
        if not prompts:
            return []
        keys = columns(((k.did, k.space, k.rkey) for k in prompts), 3)
        return [row["agent_uri"] for row in await self._fetch("agents_of_prompts", *keys, references)]

    def _puts(self, collection: str) -> list[Change]:
        return [change for key, change in self.batch.puts.items() if key.collection == collection]

    async def _open_counts(self) -> None:
        for row in await self._fetch("repo_sizes", list(self.batch.dids())):
            self.sizes[row["did"], row["space"]] = (row["records"], row["bytes"])
            self.growth[row["did"], row["space"]] = [row["records"], row["bytes"]]

    async def _accounts(self) -> None:
        states = {row["did"]: row for row in await self._fetch("account_states", list(self.batch.dids()))}
        self.purged_revs = {did: row["purged_rev"] for did, row in states.items()}
        self.forgotten = {did for did, row in states.items() if row["forgotten"]}
        news = [
            change
            for change in self.batch.accounts.values()
            if (change.time, change.status) > (states[change.did]["status_time"], states[change.did]["status"])
        ]
        if news:
            rows = columns(((c.did, c.active, c.status, c.time) for c in news), 4)
            await self.connection.execute(statement("put_account_states"), *rows)
            await self._touch_agents([change.did for change in news])
        await self._purge()
        if self.batch.handles:
            handles = columns(((c.did, c.handle, c.time) for c in self.batch.handles.values()), 3)
            await self.connection.execute(statement("put_handles"), *handles)

    async def _touch_agents(self, dids: list[str]) -> None:
        self.agents.update(row["uri"] for row in await self._fetch("agents_of_accounts", dids))

    async def _purge(self) -> None:
        gone = {c.did: c.purge_rev for c in self.batch.accounts.values() if c.purge_rev}
        if not gone:
            return
        await self._touch_agents(list(gone))
        dids, revs = list(gone), list(gone.values())
        await self.connection.execute(statement("put_purged_revs"), dids, revs)
        for table in RECORD_TABLES:
            self._note_deleted(await self._fetch("purge_rows", dids, revs, table=table))
        for table in HISTORY_TABLES:
            await self.connection.execute(statement("purge_unlisted", table), dids, revs)
        for did, rev in gone.items():
            self.purged_revs[did] = max(rev, self.purged_revs.get(did, ""))

    async def _read(self, locked: set[str]) -> None:
        keys = list({*self.batch.puts, *self.batch.deletes})
        if not keys:
            return
        for row in await self._fetch("tombstones", *columns(keys, 4)):
            self.tombstones[Key(row["did"], row["space"], row["collection"], row["rkey"])] = Order(
                row["rev"], row["proven"]
            )
        for table, group in by_table(keys).items():
            name = "kept_prompts" if table == PROMPTS else "kept_rows"
            rows = await self._fetch(name, *columns(group, 4), table=None if table == PROMPTS else table)
            self.kept.update((Key(row["did"], row["space"], row["collection"], row["rkey"]), row) for row in rows)
        missed = {did_of(uri) for uri in self._kept_agents()} - locked
        if missed:
            raise LocksMissed(missed)

    def _kept_agents(self) -> list[str]:
        return [
            row["agent_uri"] for key, row in self.kept.items() if key.collection == COMPILED_PROMPT and row["agent_uri"]
        ]

    # rows

    def _admits(self, change: Change) -> bool:
        """Whether a put may become a row: not deleted since, not purged, not forgotten, within its account's quota."""
        key, order = key_of(change), order_of(change)
        if change.did in self.forgotten:
            self.applied.dropped[Reason.FORGOTTEN] += 1
            return False
        if not self._survives(key, order):
            return False
        kept = self.kept.get(key)
        if kept is not None and (order.rev, order.proven, change.cid) <= (kept["rev"], kept["proven"], kept["cid"]):
            return False
        return self._within_quota(change, kept)

    def _survives(self, key: Key, order: Order) -> bool:
        return order > self.tombstones.get(key, Order("", False)) and order.rev > self.purged_revs.get(key.did, "")

    def _within_quota(self, change: Change, kept: asyncpg.Record | None) -> bool:
        records, size = self.growth[change.did, change.space]
        more_records = 0 if kept is not None else 1
        more_bytes = _size(change) - (kept["size"] if kept is not None else 0)
        over = (more_records and records + more_records > self.limits.quota_rows) or (
            more_bytes > 0 and size + more_bytes > self.limits.quota_bytes
        )
        if over:
            self.applied.dropped[Reason.QUOTA] += 1
            return False
        self.growth[change.did, change.space] = [records + more_records, size + more_bytes]
        return True

    async def _delete(self) -> None:
        deletes = {
            k: o
            for k, o in self.batch.deletes.items()
            if o.rev > self.purged_revs.get(k.did, "") and k.did not in self.forgotten
        }
        if not deletes:
            return
        await self.connection.execute(statement("put_tombstones"), *columns(((*k, *o) for k, o in deletes.items()), 6))
        for key, order in deletes.items():
            self.tombstones[key] = max(order, self.tombstones.get(key, order))
        for table, group in by_table(deletes).items():
            rows = columns(((*key, *deletes[key]) for key in group), 6)
            self._note_deleted(await self._fetch("delete_rows", *rows, table=table))
        for collection, name in (
            (COMPILED_PROMPT, "delete_recompiles"),
            (CONVERSATION, "delete_conversation_versions"),
        ):
            gone = [(k.did, k.space, k.rkey, o.rev) for k, o in deletes.items() if k.collection == collection]
            if gone:
                await self.connection.execute(statement(name), *columns(gone, 4))

    def _note_deleted(self, rows: Iterable[asyncpg.Record]) -> None:
        for row in rows:
            key = Key(row["did"], row["space"], row["collection"], row["rkey"])
            self.kept.pop(key, None)
            grown = self.growth[key.did, key.space]
            grown[0] -= 1
            grown[1] -= row["size"]
            self.applied.rows[key.collection] += 1
            if key.collection == AGENT:
                self.agents.add(row["uri"])
            if key.collection == COMPILED_PROMPT:
                self._announce("deleted", key.space, uri=row["uri"])
                if row["agent_uri"]:
                    self.pairs.add(Pair(key.did, key.space, row["agent_uri"]))

    async def _put(self, changes: list[Change]) -> set[Key]:
        written: set[Key] = set()
        grouped: defaultdict[str, list[Change]] = defaultdict(list)
        for change in changes:
            grouped[table_of(change.collection)].append(change)
        for table, group in grouped.items():
            for row in await self._fetch("put_rows", *columns(map(_row, group), 13), table=table):
                key = Key(row["did"], row["space"], row["collection"], row["rkey"])
                written.add(key)
                self.applied.rows[key.collection] += 1
                if key.collection == AGENT:
                    self.agents.add(row["uri"])
        return written

    # history

    async def _history(self, written: set[Key]) -> None:
        prompts = [key for key in written if key.collection == COMPILED_PROMPT]
        if prompts:
            keys = columns(((k.did, k.space, k.rkey) for k in prompts), 3)
            await self.connection.execute(statement("put_recompiles"), *keys, self.limits.keep_content)
            await self._compare_prompts(prompts)
        await self._passed(written)
        versions = [
            (c.did, c.space, c.rkey, c.rev, c.cid, c.record.value)
            for (key, _, _), c in self.batch.versions.items()
            if key.collection == CONVERSATION and c.record and self._remembers(key, c)
        ]
        if versions:
            await self.connection.execute(statement("put_conversation_versions"), *columns(versions, 6))

    def _remembers(self, key: Key, change: Change) -> bool:
        return key.did not in self.forgotten and self._survives(key, order_of(change))

    async def _passed(self, written: set[Key]) -> None:
        """Versions that didn't become the row: overtaken within the batch, or older than what is kept."""
        rows = [
            (c.did, c.space, c.rkey, c.rev, c.cid, c.record.value, json.dumps(c.record.digests))
            for (key, _, _), c in self.batch.versions.items()
            if key.collection == COMPILED_PROMPT
            and c.record
            and not (key in written and c is self.batch.puts[key])
            and self._remembers(key, c)
        ]
        if rows:
            await self.connection.execute(
                statement("put_passed_recompiles"), *columns(rows, 7), self.limits.keep_content
            )

    async def _compare_prompts(self, prompts: list[Key]) -> None:
        """What each written prompt became: its kind of recompile, and the agents whose prompts need a new look."""
        for row in await self._fetch("kept_prompts", *columns(prompts, 4)):
            key = Key(row["did"], row["space"], row["collection"], row["rkey"])
            before = self.kept.get(key)
            for version in (before, row):
                if version is not None and version["agent_uri"]:
                    self.pairs.add(Pair(key.did, key.space, version["agent_uri"]))
            kind = _kind(before, row)
            if kind is not None:
                self.applied.recompiles[kind] += 1
            if before is not None and kind is not None:
                self._announce(
                    "recompiled", key.space, uri=row["uri"], cid=row["cid"], previous_cid=before["cid"], kind=kind
                )
        await self.connection.execute(
            statement("forget_freshness"), *columns(((k.did, k.space, k.rkey) for k in prompts), 3)
        )

    # what follows

    async def _count(self) -> None:
        rows = []
        for (did, space), (records, size) in self.growth.items():
            before = self.sizes.get((did, space), (0, 0))
            if (records, size) != before:
                rows.append((did, space, records - before[0], size - before[1]))
        if rows:
            await self.connection.execute(statement("count_repos"), *columns(rows, 4))

    async def _refresh(self) -> None:
        if self.agents:
            rows = await self._fetch("prompts_of_agents", list(self.agents))
            self.pairs.update(Pair(row["did"], row["space"], row["agent_uri"]) for row in rows)
        if not self.pairs:
            return
        for row in await self._fetch("refresh_freshness", *columns(sorted(self.pairs), 3)):
            if row["freshness"] != row["was"] and "stale" in (row["freshness"], row["was"]):
                event = "stale" if row["freshness"] == "stale" else "fresh"
                self._announce(
                    event,
                    row["space"],
                    uri=row["uri"],
                    cid=row["cid"],
                    freshness=row["freshness"],
                    stale_reasons=row["stale_reasons"],
                )

    def _announce(self, event: str, space: str, **facts: object) -> None:
        if space == "":
            self.news.append({"event": event, **facts})

    async def _finish(self) -> None:
        payloads = [text for text in map(json.dumps, self.news) if len(text) <= MAX_PAYLOAD]
        if payloads:
            await self._fetch("notify", payloads)
        letters = self.batch.dead_letters
        if letters:
            rows = columns(
                ((m.source, m.position, m.did, m.reason.value, m.detail, m.frame, len(m.frame)) for m in letters), 7
            )
            await self.connection.execute(statement("put_dead_letters"), *rows)
        if self.batch.positions:
            rows = columns(((source, p.seq, p.event_time) for source, p in self.batch.positions.items()), 3)
            await self.connection.execute(statement("put_cursors"), *rows, self.now)


def by_table(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """Keys grouped by the table that keeps them."""
    grouped: defaultdict[str, list[Key]] = defaultdict(list)
    for key in keys:
        grouped[table_of(key.collection)].append(key)
    return grouped


def did_of(uri: str) -> str:
    """The account of a canonical record URI."""
    parts = uri.split("/")
    return parts[6] if parts[3] == "space" else parts[2]


def _size(change: Change) -> int:
    return change.record.size if change.record is not None else 0


def _row(change: Change) -> tuple[Any, ...]:
    record = change.record
    if record is None:
        raise AssertionError("a put has a record")
    violations = (
        json.dumps([{"field": v.field, "rule": v.rule} for v in record.violations]) if record.violations else None
    )
    digests = json.dumps(record.digests) if record.digests else None
    return (
        change.did, change.space, change.collection, change.rkey, change.cid, change.rev, record.value, record.size,
        record.block, digests, record.valid, violations, change.proof,
    )  # fmt: skip


def _kind(before: asyncpg.Record | None, after: asyncpg.Record) -> str | None:
    """The kind of a recompile, as the view ``letta.recompile`` has it; None where the CID is the same."""
    if before is None:
        return "first"
    if before["cid"] == after["cid"]:
        return None
    if before["content_sha256"] != after["content_sha256"]:
        return "full"
    memory = ("core_memory_sha256", "memfs_revision")
    return "memory" if any(before[name] != after[name] for name in memory) else "touch"
