"""Permissioned spaces in the store: one author's repository in one space, led from one state to the next.

What is read of a space comes in order and is proven as a whole, so a repository moves only from the very state it was
read from: tombstones and pending are not needed, and two readers can't both move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from indexer.batch import Batch, Key, key_of
from indexer.errors import BatchRefused, SchemaError
from indexer.model import COMPILED_PROMPT, Change, Proof, Reason, Record
from indexer.store.claims import drop_rows, drop_versions, rows_of
from indexer.store.connection import fetch
from indexer.store.context import Applied, Context
from indexer.store.history import keep_passed, version_row
from indexer.store.lease import Lease, hold_lease
from indexer.store.rows import read_states, require_locks
from indexer.store.statements import HISTORY_TABLES, PROMPTS, RECORD_TABLES, statement
from indexer.store.writer import Step, transact
from indexer.syntax import LAST_TID

if TYPE_CHECKING:
    from indexer.store import Store


BEFORE = 1_000_000  # taken off ordinals: versions that were overridden come before the row of the same rev


class StateMovedError(Exception):
    """The repository was led on by somebody else, or its space is forgotten: read its state again."""


@dataclass(frozen=True, slots=True)
class SpaceState:
    """How far one author's repository in a space has been read; ``rev`` is '' for not at all."""

    space: str
    did: str
    rev: str
    lthash: bytes
    judgement: str


@dataclass(frozen=True, slots=True)
class Version:
    """A version that a later operation overrode before we saw it; without ``record`` its CID is all that is known."""

    key: Key
    rev: str
    ordinal: int
    cid: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class Move:
    """What leads a repository from one state to another.

    ``changes`` are in order, at most a delete and a put for each record. ``whole``: they are all of the repository,
    and what isn't among them is gone. ``proof`` is what every row of the repository has from then on.
    """

    before: SpaceState
    after: SpaceState
    changes: Sequence[Change]
    superseded: Sequence[Version] = ()
    whole: bool = False
    proof: Proof | None = None


class Spaces:
    """What the reader of spaces does in the store, under a lease if it is the daemon's.

    Raises what :class:`indexer.store.Store` does, and LeaseLostError.
    """

    def __init__(self, store: Store, lease: Lease | None = None) -> None:
        self._store = store
        self._lease = lease

    async def states(self, did: str) -> dict[str, SpaceState]:
        """How far this author's repositories have been read, by space."""
        async with self._store.connection("read") as connection:
            rows = await fetch(connection, "space_states", [did])
        return {
            row["space"]: SpaceState(row["space"], row["did"], row["rev"], row["lthash"], row["judgement"])
            for row in rows
        }

    async def is_forgotten(self, space: str, did: str) -> bool:
        """Whether a space is not to be indexed again, or nothing of this author."""
        async with self._store.connection("read") as connection:
            (row,) = await fetch(connection, "is_forgotten_space", space, did)
        return bool(row["forgotten"])

    async def note(self, account: str, space: str, state: str, detail: str | None, now: datetime) -> None:
        """Record what a followed account (``space`` is '') or one of its repositories is doing."""
        async with self._store.connection("read") as connection, connection.transaction():
            await connection.execute(
                statement("put_space_source_state"), account, space, state, detail and detail[:500], now
            )
            await hold_lease(connection, self._lease)

    async def move(self, move: Move, now: datetime) -> Applied:
        """Write what leads a repository on, with its new state and cursor. Raises StateMovedError.

        What the database refuses is left out and counted.
        """
        try:
            return await self._move(move, now)
        except BatchRefused as error:
            if not await self._takes(_without(move, _items(move)), now):
                raise SchemaError(f"the database refuses what holds no record: {error}") from error
            refused = await self._refused(move, _items(move), now)
        applied = await self._move(_without(move, refused), now)
        applied.dropped[Reason.REFUSED_BY_DATABASE] += len(refused)
        return applied

    async def _move(self, move: Move, now: datetime, *, rehearsed: bool = False) -> Applied:
        batch = Batch()
        for change in _puts(move):
            batch.add(change)

        async def before(context: Context) -> None:
            await _hold_state(context, move.before)
            await (_replace(context, move) if move.whole else _delete(context, move))
            await _remember(context, move.superseded)

        async def after(context: Context) -> None:
            await _conclude(context, move)
            if rehearsed:
                raise _RehearsedError

        return await self._transact(batch, {move.after.did}, now, before, after)

    async def _refused(self, move: Move, items: list[Change | Version], now: datetime) -> list[Change | Version]:
        """Those of ``items`` that the database refuses, found by trying parts of them; nothing is written."""
        others = [item for item in _items(move) if not any(item is one for one in items)]
        if not items or await self._takes(_without(move, others), now):
            return []
        middle = len(items) // 2
        if not middle:
            return items
        return await self._refused(move, items[:middle], now) + await self._refused(move, items[middle:], now)

    async def _takes(self, move: Move, now: datetime) -> bool:
        """Whether the database would take a move; nothing is written."""
        try:
            await self._move(move, now, rehearsed=True)
        except _RehearsedError:
            return True
        except BatchRefused:
            return False
        raise AssertionError("unreachable")

    async def remove(self, space: str, dids: Sequence[str], now: datetime, *, forget: bool = False) -> Applied:
        """Take everything of a space away, of these authors or of all; with ``forget`` it is not indexed again."""
        async with self._store.connection("repair") as connection:
            if forget:  # in a transaction of its own, which waits for those that write: what they wrote is seen below
                await connection.execute(statement("forget_space"), space)
            authors = {row["did"] for row in await fetch(connection, "space_authors", space)}
        chosen = authors & set(dids) if dids else authors

        async def before(context: Context) -> None:
            for did in sorted(chosen):
                rows = await rows_of(context, did, space)
                await drop_rows(context, rows, (), LAST_TID)
            for table in HISTORY_TABLES:
                context.mark(await context.fetch("purge_space_history", list(chosen), space, table=table), -1)

        async def after(context: Context) -> None:
            await context.execute("untrack_space", list(chosen), space)
            await context.execute("drop_space_sources", space, list(dids) or None)

        return await self._transact(Batch(), chosen, now, before, after)

    async def _transact(
        self, batch: Batch, dids: set[str], now: datetime, before: Step[None], after: Step[None]
    ) -> Applied:
        async with self._store.connection("repair") as connection:
            applied, _ = await transact(
                connection, batch, self._store.limits, now, dids=dids, before=before, after=after, lease=self._lease
            )
            return applied


class _RehearsedError(Exception):
    """A transaction that was only tried: it is rolled back."""


def _puts(move: Move) -> list[Change]:
    return [change for change in move.changes if change.cid is not None]


def _items(move: Move) -> list[Change | Version]:
    """What the database might refuse."""
    return [*_puts(move), *move.superseded]


def _without(move: Move, left_out: Sequence[Change | Version]) -> Move:
    """The move without these records and versions."""
    ids = {id(item) for item in left_out}
    changes = [change for change in move.changes if id(change) not in ids]
    return replace(move, changes=changes, superseded=[one for one in move.superseded if id(one) not in ids])


async def _hold_state(context: Context, state: SpaceState) -> None:
    """Raise StateMovedError unless the repository is where it was read from. Needs the author's lock."""
    await context.execute("hold_forgotten_spaces")
    (known,) = await context.fetch("is_forgotten_space", state.space, state.did)
    rows = await context.fetch("space_state", state.did, state.space)
    if known["forgotten"] or (rows[0]["rev"] if rows else "") != state.rev:
        raise StateMovedError
    await read_states(context, [state.did])


async def _delete(context: Context, move: Move) -> None:
    """Delete what the changes delete, with its history: what they put comes after. Raises LocksMissedError."""
    gone = [key_of(change) for change in move.changes if change.cid is None]
    prompts = [key for key in gone if key.collection == COMPILED_PROMPT]
    if prompts:
        require_locks(context, await context.run("kept_rows", prompts, table=PROMPTS))
    await drop_rows(context, gone, (), LAST_TID)


async def _replace(context: Context, move: Move) -> None:
    """Leave of the repository what the load has too; what differs is put, what isn't in it goes."""
    kept = await rows_of(context, move.after.did, move.after.space)
    wanted = dict(context.batch.puts)
    rev = move.after.rev
    stays = {k for k, row in kept.items() if k in wanted and wanted[k].cid == row["cid"] and row["rev"] <= rev}
    goes = [k for k, row in kept.items() if k not in stays and (k not in wanted or row["rev"] >= rev)]
    await drop_rows(context, goes, wanted, LAST_TID)
    await drop_versions(context, rev, [key for key, row in kept.items() if row["rev"] > rev])
    context.batch.puts = {key: change for key, change in wanted.items() if key not in stays}
    context.batch.versions = {
        version: change for version, change in context.batch.versions.items() if version[0] in context.batch.puts
    }


async def _remember(context: Context, superseded: Sequence[Version]) -> None:
    """Keep the versions of prompts that came in between, as far as there is room."""
    prompts = [one for one in superseded if one.key.collection == COMPILED_PROMPT]
    if prompts and context.has_room(prompts[0].key.did, prompts[0].key.space):
        rows = [version_row(one.key, one.rev, one.cid, one.record, one.ordinal - BEFORE) for one in prompts]
        await keep_passed(context, rows)


async def _conclude(context: Context, move: Move) -> None:
    """Note the new state, and what every row is proven by."""
    after = move.after
    if move.whole:
        for table in RECORD_TABLES:
            await context.execute("raise_space_proofs", after.did, after.space, move.proof, table=table)
    await context.execute("put_space_state", after.did, after.space, after.rev, after.lthash, after.judgement)
    await context.execute("put_space_cursor", after.did, after.space, after.rev, context.now)
