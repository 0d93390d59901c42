"""What the repair worker does in the store: claim a want, settle it from pending, reconcile a snapshot, or fail."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from indexer.batch import Batch, Key, key_of
from indexer.model import COMPILED_PROMPT, CONVERSATION, Change, WantReason
from indexer.store.chain import CHAINABLE, DECIDABLE
from indexer.store.context import Context, by_table, columns, key_in, short_keys
from indexer.store.rows import note_deleted, require_locks
from indexer.store.statements import RECORD_TABLES


class ClaimLostError(Exception):
    """The claim doesn't stand any more: nothing may be written for it.

    Somebody else holds it, the want is gone, or the account was hidden, came back or was purged meanwhile.
    """


@dataclass(frozen=True, slots=True)
class Claim:
    """A want taken on: what was wanted and what was held when it was."""

    id: UUID
    did: str
    rev: str
    want: str
    want_no: int
    reasons: frozenset[WantReason]
    wanted_rev: str | None
    attempts: int
    behind: int
    status: str
    hidden: bool
    status_time: datetime
    purged_rev: str
    signing_key: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending commit as it came."""

    rev: str
    digest: str
    source: str
    reason: WantReason
    frame: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at ``rev``, proven: every record under ``prefixes`` of paths, as changes at that rev.

    A change without a record stands for a row that was right when the repository was read.
    ``overruled`` are the digests of pending commits that don't count either where it ``replaces`` or ``overrules``:
    the host was asked about them often enough.
    """

    did: str
    rev: str
    data: str
    changes: tuple[Change, ...]
    prefixes: tuple[str, ...] = ("",)  # what isn't under them is left as it is: it was followed once
    replaces: bool = False  # the host went back: nothing newer counts
    overrules: bool = False  # a newer rev is signed by nobody: unproven rows above it don't count
    rewrites: bool = False  # rows are written again also where their CID is right: their values are in doubt
    overruled: tuple[str, ...] = ()

    def as_batch(self) -> Batch:
        """A batch that locks what reconciling touches."""
        batch = Batch()
        for change in self.changes:
            batch.add(change)
        return batch


async def hold_claim(context: Context, claim: Claim, *, shown: bool = False) -> None:
    """Raise ClaimLostError unless the claim still stands, of an account that is ``shown``. Needs the account's lock."""
    rows = await context.fetch("claim_state", claim.did)
    if not rows or rows[0]["claim_id"] != claim.id or rows[0]["want"] is None:
        raise ClaimLostError
    if (rows[0]["hidden"], rows[0]["purged_rev"]) != (claim.hidden, claim.purged_rev):
        raise ClaimLostError
    if shown and rows[0]["hidden"]:
        raise ClaimLostError


async def settle(context: Context, claim: Claim, dropped: list[Waiting], now: datetime) -> bool:
    """After proposals out of pending were decided: forget what is settled; whether the want is met by that.

    It isn't if another was recorded since the claim.
    """
    settled = {proposal.rev for proposal in context.settled}
    gone = [w for w in await _pending(context, claim.did) if w.rev in settled or w in dropped]
    if gone:
        await context.execute("drop_pending", *columns(((claim.did, w.rev, w.digest) for w in gone), 3))
    (left,) = await context.fetch("pending_left", claim.did)
    wants = (*context.batch.wants, *context.wants)
    fetches = [want for want in wants if want.did == claim.did and want.reason not in DECIDABLE]
    head = context.applied.heads.get(claim.did, context.held.get(claim.did, (claim.rev, None))[0])
    if left["count"] or fetches or claim.did in context.crowded or not _is_chained(claim, head):
        return False
    return bool(await context.fetch("clear_want", claim.did, claim.want_no, now))


def _is_chained(claim: Claim, head: str) -> bool:
    """Whether a chain of proven commits up to ``head`` is all that was wanted: nothing up to it can be missing."""
    if claim.want == "decide":
        return True
    return claim.wanted_rev is not None and claim.wanted_rev <= head and claim.reasons <= CHAINABLE


async def conclude(context: Context, claim: Claim, snapshot: Snapshot, now: datetime) -> bool:
    """After a snapshot: clear the want, or leave what is pending above it to be decided.

    False if another want was recorded since the claim: that one stays.
    """
    (left,) = await context.fetch("pending_left", claim.did)
    if left["count"]:
        return bool(await context.fetch("keep_deciding", claim.did, claim.want_no))
    return bool(await context.fetch("clear_want", claim.did, claim.want_no, now))


async def _pending(context: Context, did: str) -> list[Waiting]:
    return [waiting_of(row) for row in await context.fetch("pending_of", did)]


def waiting_of(row: asyncpg.Record) -> Waiting:
    """A pending commit out of its row."""
    return Waiting(row["rev"], row["digest"], row["source"], WantReason(row["reason"]), row["frame"])


async def reconcile(context: Context, snapshot: Snapshot) -> None:
    """Delete what vanished, raise proofs, and leave in the batch what has to be put: the rows as of the snapshot.

    Needs the account locks; raises LocksMissedError, and ClaimLostError where a row that was right when the repository
    was read isn't any more.
    """
    kept = await rows_of(context, snapshot.did, "", snapshot.prefixes)
    # Who holds the claim has it from an account that is shown: what its host gives out now is no replay.
    context.snapshot_revs[snapshot.did] = context.purged_revs[snapshot.did] = ""
    counts_for_nothing = snapshot.overrules, snapshot.replaces
    scope = list(snapshot.prefixes)
    context.mark(await context.fetch("drop_tombstones", snapshot.did, snapshot.rev, *counts_for_nothing, scope), -1)
    wanted = {key_of(change): change async for change in context.paced(snapshot.changes)}
    decided = {key: row async for key, row in context.paced(kept.items()) if _is_decided(row, snapshot)}
    rows = context.paced(decided.items())
    stays = {key async for key, row in rows if key in wanted and _is_right(row, wanted[key], snapshot)}
    # An upsert alone would find its rev too low where a row that counts for nothing has a greater one.
    goes = [k for k, row in decided.items() if k not in stays and (k not in wanted or row["rev"] >= snapshot.rev)]
    await drop_rows(context, goes, wanted, snapshot.rev)
    await drop_versions(context, snapshot.rev, [key for key, row in decided.items() if row["rev"] > snapshot.rev])
    for table, keys in by_table(key for key in stays if not kept[key]["proven"]).items():
        await context.execute("raise_proofs", *columns(keys, 4), table=table)
    overtaken = kept.keys() - decided.keys()
    changes = context.paced(wanted.items())
    context.batch.puts = {key: change async for key, change in changes if key not in stays and key not in overtaken}
    if any(change.record is None for change in context.batch.puts.values()):
        raise ClaimLostError
    versions = ((key, change) for key, change in context.batch.puts.items() if _has_history(key))
    context.batch.versions = {(key, change.rev, change.cid or ""): change for key, change in versions}
    await context.execute("drop_pending_up_to", snapshot.did, snapshot.rev, list(snapshot.overruled))
    await context.execute("put_snapshot", snapshot.did, snapshot.rev, snapshot.data, snapshot.replaces)


def _is_decided(row: asyncpg.Record, snapshot: Snapshot) -> bool:
    """Whether a snapshot has the say over a row: it is not newer, or its rev counts for nothing."""
    return row["rev"] <= snapshot.rev or snapshot.replaces or (snapshot.overrules and not row["proven"])


def _is_right(row: asyncpg.Record, change: Change, snapshot: Snapshot) -> bool:
    """Whether a row that a snapshot decides says what the snapshot does, and is no newer."""
    return row["cid"] == change.cid and row["rev"] <= snapshot.rev and not snapshot.rewrites


def _has_history(key: Key) -> bool:
    return key.collection in (COMPILED_PROMPT, CONVERSATION)


async def rows_of(
    context: Context, did: str, space: str, prefixes: tuple[str, ...] = ("",)
) -> dict[Key, asyncpg.Record]:
    """Every row of one repository whose path has one of these prefixes.

    Raises LocksMissedError for prompts that name an agent of an account not locked.
    """
    rows: dict[Key, asyncpg.Record] = {}
    for table in RECORD_TABLES:
        found = await context.fetch("repo_rows", did, space, table=table)
        rows.update((key_in(row), row) for row in found if f"{row['collection']}/{row['rkey']}".startswith(prefixes))
    require_locks(context, rows.values())
    return rows


async def drop_rows(context: Context, gone: Iterable[Key], wanted: Container[Key], last: str) -> None:
    """Delete rows, and the history up to the rev ``last`` of those that aren't wanted any more."""
    keys = list(gone)
    for table, group in by_table(keys).items():
        note_deleted(context, await context.fetch("drop_rows", *columns(group, 4), table=table))
    for collection, name in (
        (COMPILED_PROMPT, "delete_recompiles"),
        (CONVERSATION, "delete_conversation_versions"),
    ):
        vanished = [(k.did, k.space, k.rkey, last) for k in keys if k.collection == collection and k not in wanted]
        if vanished:
            context.mark(await context.fetch(name, *columns(vanished, 4)), -1)


async def drop_versions(context: Context, rev: str, overruled: list[Key]) -> None:
    """Take the history above ``rev`` away of keys whose newer rows don't count."""
    for collection, table in ((COMPILED_PROMPT, "recompile"), (CONVERSATION, "conversation_version")):
        keys = [key for key in overruled if key.collection == collection]
        if keys:
            gone = await context.fetch("drop_versions_above", *short_keys(keys), rev, table=table)
            context.mark(gone, -1)
