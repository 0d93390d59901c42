"""What the steps of one writing transaction share, and leave for the next."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

import asyncpg

from indexer.batch import Batch, Key, Order
from indexer.model import Proposal, Reason, Undecided, Want
from indexer.store.connection import Connection
from indexer.store.statements import as_lines, line_parameters, planned_anew, statement, table_of

MAX_PAYLOAD = 7_900  # bytes; NOTIFY ends at 8,000
PART_ROWS, PART_BYTES = 1_000, 8 << 20  # of what one statement is given: a snapshot may have a hundred times as much
EARLIEST = datetime.min.replace(tzinfo=UTC)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the index, per account and for what was set aside; ``keep_content``: keep texts of old prompts."""

    quota_rows: int = 100_000
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
    heads: dict[str, str] = field(default_factory=dict)  # proven revs that repositories moved to

    def __add__(self, other: Applied) -> Applied:
        rows, recompiles = self.rows + other.rows, self.recompiles + other.recompiles
        return Applied(rows, recompiles, self.dropped + other.dropped, self.heads | other.heads)


@dataclass(slots=True)
class Share:
    """What one repository takes: records and their bytes; marks are tombstones and versions."""

    records: int = 0
    bytes: int = 0
    marks: int = 0


class Pair(NamedTuple):
    """The prompts of one agent in one repository: freshness compares them with each other. Or those that name none."""

    did: str
    space: str
    agent_uri: str | None


class Place(NamedTuple):
    """Where a prompt stands among those of its pair, the latest having the greatest."""

    dated: bool
    compiled_at: datetime
    rkey: str


class Head(NamedTuple):
    """The last proven state of a repository; nothing is held where ``rev`` is ''."""

    rev: str
    data: str | None


NOTHING = Head("", None)

ShortKey: TypeAlias = tuple[str, str, str]  # did, space, rkey


@dataclass(slots=True)
class Context:
    """One transaction: its connection and batch, what was read under the locks, what it has done so far."""

    connection: Connection
    batch: Batch
    limits: Limits
    now: datetime
    applied: Applied = field(default_factory=Applied)
    locked: set[str] = field(default_factory=set)
    states: dict[str, asyncpg.Record] = field(default_factory=dict)  # accounts as they were, by DID
    purged_revs: dict[str, str] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)  # accounts that aren't active
    doubted: set[str] = field(default_factory=set)  # accounts whose own host is asked whether they are away
    tombstones: dict[Key, Order] = field(default_factory=dict)
    kept: dict[Key, asyncpg.Record] = field(default_factory=dict)  # rows as they were
    before: dict[tuple[str, str], Share] = field(default_factory=dict)  # by repository
    after: defaultdict[tuple[str, str], Share] = field(default_factory=lambda: defaultdict(Share))
    known: dict[str, Head] = field(default_factory=dict)  # proven rev and tree of public repositories
    held: dict[str, Head] = field(default_factory=dict)  # the same, of those that proposals are of
    moved: dict[str, Head] = field(default_factory=dict)  # where proposals led theirs
    snapshot_revs: dict[str, str] = field(default_factory=dict)
    settled: list[Proposal] = field(default_factory=list)  # proposals that were applied or had nothing to add
    waiting: list[Undecided] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    crowded: dict[str, str] = field(default_factory=dict)  # the greatest rev of each repository that found no room
    gone: set[ShortKey] = field(default_factory=set)  # prompts that were deleted
    touched: defaultdict[Pair, set[str]] = field(default_factory=lambda: defaultdict(set))  # came, changed or went
    left: dict[Pair, Place] = field(default_factory=dict)  # the greatest place that any of them had
    agents: set[str] = field(default_factory=set)  # URIs of agents that changed, vanished, were hidden or came back
    news: list[str] = field(default_factory=list)
    planning_anew: bool = False

    async def fetch(self, name: str, *args: Any, table: str | None = None) -> list[asyncpg.Record]:
        """Run a named statement and return its rows."""
        await self._plan(name)
        return await self.connection.fetch(statement(name, table), *_passed(args, line_parameters(name, table)))

    async def execute(self, name: str, *args: Any, table: str | None = None) -> None:
        """Run a named statement for what it does."""
        await self._plan(name)
        await self.connection.execute(statement(name, table), *_passed(args, line_parameters(name, table)))

    async def _plan(self, name: str) -> None:
        """Have deletes and updates planned for the keys at hand, and all else as it always is."""
        anew = planned_anew(name)
        if anew != self.planning_anew:
            await self.connection.execute(statement("plan_anew" if anew else "plan_once"))
            self.planning_anew = anew

    async def run(
        self, name: str, rows: Iterable[Sequence[Any]], *args: Any, table: str | None = None, heavy: int | None = None
    ) -> list[asyncpg.Record]:
        """Run a named statement over columns of rows, a part of them at a time, and return all it gives.

        ``heavy`` is the column that has the values of records, if any has.
        """
        found: list[asyncpg.Record] = []
        for part in parts(rows, heavy):
            found += await self.fetch(name, *columns(part), *args, table=table)
        return found

    async def paced(self, things: Iterable[T]) -> AsyncIterator[T]:
        """These things, with a word to the server after each part of them.

        Else going through all of a snapshot would look to it like the silence of a paused client, and would keep the
        event loop from what else has to be done in time, such as renewing the lease.
        """
        for number, thing in enumerate(things, 1):
            if number % PART_ROWS == 0:
                await self.connection.execute(statement("still_here"))
            yield thing

    def enter(self, prompt: asyncpg.Record) -> None:
        """Note a prompt that came, changed or is in doubt, as it is now: its flags have to follow."""
        self.touched[pair_of(prompt)].add(prompt["rkey"])

    def leave(self, prompt: asyncpg.Record) -> None:
        """Note a prompt that changed or went, as it was: the flags of others may have to follow."""
        pair, place = pair_of(prompt), place_of(prompt)
        self.touched[pair].add(prompt["rkey"])
        self.left[pair] = max(place, self.left.get(pair, place))

    def has_room(self, did: str, space: str) -> bool:
        """Whether one more row, tombstone or version of a repository is within its account's quota."""
        share = self.after[did, space]
        return share.records + share.marks < self.limits.quota_rows

    def mark(self, rows: Iterable[asyncpg.Record], change: int) -> None:
        """Count tombstones or versions that came (1) or went (-1)."""
        for row in rows:
            self.after[row["did"], row["space"]].marks += change

    def survives(self, key: Key, order: Order) -> bool:
        """Whether nothing that is known takes a version of this order away: a delete, a snapshot, a purge."""
        return (
            order > self.tombstones.get(key, Order("", False))
            and order.rev > self.floor(key)
            and key.did not in self.forgotten
        )

    def floor(self, key: Key) -> str:
        """The rev at or below which no event touches this row: purged, or decided by a snapshot (of a public one)."""
        snapshot_rev = self.snapshot_revs.get(key.did, "") if key.space == "" else ""
        return max(self.purged_revs.get(key.did, ""), snapshot_rev)

    def announce(self, event: str, space: str, **facts: object) -> None:
        """Have listeners told at commit, of public records only."""
        if space == "":
            payload = json.dumps({"event": event, **facts})
            if len(payload) <= MAX_PAYLOAD:
                self.news.append(payload)


def _passed(args: Sequence[Any], lines: Container[int]) -> Sequence[Any]:
    """The arguments of a statement as it wants them."""
    return [as_lines(arg) if number in lines else arg for number, arg in enumerate(args, 1)] if lines else args


def columns(rows: Iterable[Sequence[Any]], width: int = 0) -> list[list[Any]]:
    """Rows to columns, the form unnest takes; ``width`` empty columns where there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def parts(rows: Iterable[Sequence[Any]], heavy: int | None = None) -> Iterator[list[Sequence[Any]]]:
    """Rows in order, as many at a time as one statement is given, by number and by the length of column ``heavy``."""
    part: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        value = row[heavy] if heavy is not None else None
        weight = len(value) if isinstance(value, (str, bytes)) else 0
        if part and (len(part) == PART_ROWS or size + weight > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += weight
    if part:
        yield part


def pair_of(prompt: asyncpg.Record) -> Pair:
    """The prompts that a prompt is compared with, if it names an agent."""
    return Pair(prompt["did"], prompt["space"], prompt["agent_uri"])


def place_of(prompt: asyncpg.Record) -> Place:
    """The place of a prompt, as the function ``pair_facts`` orders them."""
    compiled_at = prompt["compiled_at"]
    return Place(compiled_at is not None, compiled_at or EARLIEST, prompt["rkey"])


def key_in(row: asyncpg.Record) -> Key:
    """The key of a row that came from the database."""
    return Key(row["did"], row["space"], row["collection"], row["rkey"])


def short_key_in(row: asyncpg.Record) -> ShortKey:
    """The key of a row within the table of one collection."""
    return row["did"], row["space"], row["rkey"]


def short_keys(keys: Iterable[Key]) -> list[list[Any]]:
    """Columns did, space, rkey: the key within the table of one collection."""
    return columns(map(short_key, keys), 3)


def short_key(key: Key) -> ShortKey:
    """did, space, rkey: the key within the table of one collection."""
    return key.did, key.space, key.rkey


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
