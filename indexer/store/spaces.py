"""Permissioned spaces in the store: one author's repository in one space, led from one state to the next.

What is read of a space comes in order and is proven as a whole, so a repository moves only from the very state it was
read from: tombstones and pending are not needed, and two readers can't both move it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from indexer.batch import Batch, Key, key_of
from indexer.model import COMPILED_PROMPT, Change, Proof, Record
from indexer.store.claims import drop_rows, rows_of
from indexer.store.connection import fetch, translated
from indexer.store.context import Applied, Context, by_table, columns
from indexer.store.rows import note_deleted
from indexer.store.statements import HISTORY_TABLES, RECORD_TABLES
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
    """What the reader of spaces does in the store. Raises what :class:`indexer.store.Store` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def states(self, did: str) -> dict[str, SpaceState]:
        """How far this author's repositories have been read, by space."""
        async with self._store.connection("read") as connection:
            with translated():
                rows = await fetch(connection, "space_states", [did])
        return {
            row["space"]: SpaceState(row["space"], row["did"], row["rev"], row["lthash"], row["judgement"])
            for row in rows
        }

    async def is_forgotten(self, space: str) -> bool:
        """Whether a space is not to be indexed again."""
        async with self._store.connection("read") as connection:
            with translated():
                (row,) = await fetch(connection, "is_forgotten_space", space)
        return bool(row["exists"])

    async def move(self, move: Move, now: datetime) -> Applied:
        """Write what leads a repository on, with its new state and cursor. Raises StateMovedError."""
        batch = Batch()
        for change in move.changes:
            if change.cid is not None:
                batch.add(change)

        async def before(context: Context) -> None:
            await _hold_state(context, move.before)
            await (_replace(context, move) if move.whole else _delete(context, move))

        async def after(context: Context) -> None:
            await _conclude(context, move)

        return await self._transact(batch, {move.after.did}, now, before, after)

    async def remove(self, space: str, dids: Sequence[str], now: datetime, *, forget: bool = False) -> Applied:
        """Take everything of a space away, of these authors or of all; with ``forget`` it is not indexed again."""
        async with self._store.connection("read") as connection:
            with translated():
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
            if forget:
                await context.execute("forget_space", space)
                await context.execute("drop_space_cursors", space)
                await context.execute("drop_space_letters", space)

        return await self._transact(Batch(), chosen, now, before, after)

    async def _transact(
        self, batch: Batch, dids: set[str], now: datetime, before: Step[None], after: Step[None]
    ) -> Applied:
        async with self._store.connection("repair") as connection:
            with translated():
                applied, _ = await transact(
                    connection, batch, self._store.limits, now, dids=dids, before=before, after=after
                )
                return applied


async def _hold_state(context: Context, state: SpaceState) -> None:
    """Raise StateMovedError unless the repository is where it was read from. Needs the author's lock."""
    (forgotten,) = await context.fetch("is_forgotten_space", state.space)
    rows = await context.fetch("space_state", state.did, state.space)
    if forgotten["exists"] or (rows[0]["rev"] if rows else "") != state.rev or state.did in context.forgotten:
        raise StateMovedError


async def _delete(context: Context, move: Move) -> None:
    """Delete the rows that the changes delete, with their history: what they put comes after."""
    gone = [key_of(change) for change in move.changes if change.cid is None]
    for table, keys in by_table(gone).items():
        note_deleted(context, await context.fetch("drop_rows", *columns(keys, 4), table=table))
    await drop_rows(context, gone, (), LAST_TID)


async def _replace(context: Context, move: Move) -> None:
    """Leave of the repository what the load has too; what differs is put, what isn't in it goes."""
    kept = await rows_of(context, move.after.did, move.after.space)
    wanted = dict(context.batch.puts)
    rev = move.after.rev
    stays = {k for k, row in kept.items() if k in wanted and wanted[k].cid == row["cid"] and row["rev"] <= rev}
    goes = [k for k, row in kept.items() if k not in stays and (k not in wanted or row["rev"] >= rev)]
    await drop_rows(context, goes, wanted, LAST_TID)
    context.batch.puts = {key: change for key, change in wanted.items() if key not in stays}
    context.batch.versions = {
        version: change for version, change in context.batch.versions.items() if version[0] in context.batch.puts
    }


def _row(one: Version) -> tuple[object, ...]:
    value = None if one.record is None else one.record.value
    digests = None if one.record is None else json.dumps(one.record.digests)
    return one.key.did, one.key.space, one.key.rkey, one.rev, one.ordinal - BEFORE, one.cid, value, digests


async def _conclude(context: Context, move: Move) -> None:
    """Note the new state, what every row is proven by, and the versions in between."""
    after = move.after
    prompts = [_row(one) for one in move.superseded if one.key.collection == COMPILED_PROMPT]
    if prompts:
        keep = context.limits.keep_content
        context.mark(await context.fetch("put_superseded", *columns(prompts, 8), keep), 1)
    if move.whole:
        for table in RECORD_TABLES:
            await context.execute("raise_space_proofs", after.did, after.space, move.proof, table=table)
    await context.execute("put_space_state", after.did, after.space, after.rev, after.lthash, after.judgement)
    source = f"space:{after.space}#{after.did}"
    await context.execute("put_space_cursor", source, after.rev, context.now, context.now)
