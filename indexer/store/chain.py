"""Commits in a transaction: which continue what is held, which have to wait, and what is wanted because of it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

from indexer.model import Proposal, Reason, Undecided, Want, WantReason
from indexer.store.context import NOTHING, Context, Head, columns

EMPTY_TREE = "bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm"  # the root of a repository without records
DECIDABLE = frozenset({WantReason.UNKNOWN_KEY, WantReason.BAD_SIGNATURE, WantReason.GAP})  # pending may settle these
CHAINABLE = DECIDABLE | {WantReason.SYNC, WantReason.TOO_BIG, WantReason.MISSING_BLOCK}  # or a chain up to their rev
ASKED = frozenset({WantReason.BACKFILL, WantReason.CHECK, WantReason.RETURNED})  # due at once, whatever failed before

REPO_FRAMES, REPO_BYTES = 500, 16 << 20  # pending, per repository
TOTAL_FRAMES, TOTAL_BYTES = 50_000, 512 << 20  # pending, in all


def decide(context: Context) -> None:
    """Admit the changes of the proposals that continue what is held; the others wait. Needs the account locks."""
    batch = context.batch
    proposals: defaultdict[str, list[Proposal]] = defaultdict(list)
    for proposal in batch.proposals:
        if proposal.did in context.forgotten:
            context.applied.dropped[Reason.FORGOTTEN] += 1
        else:
            proposals[proposal.did].append(proposal)
    for did, group in proposals.items():
        held = context.held[did] = context.known.get(did, NOTHING)
        head = follow(context, held, sorted(group, key=lambda one: one.rev))
        if head != held:
            context.moved[did] = head
            context.applied.heads[did] = head.rev
    for did, (rev, data) in batch.confirmed.items():
        held = context.moved.get(did, context.known.get(did, NOTHING))
        if rev >= held.rev and (rev, data) != held:
            context.wants.append(Want(did, WantReason.SYNC, rev))


def follow(context: Context, held: Head, proposals: list[Proposal]) -> Head:
    """Take proposals of one repository, by rev, as far as they continue ``held``; the state they lead to."""
    for proposal in proposals:
        floor = max(held.rev, context.snapshot_revs.get(proposal.did, ""))
        if proposal.rev <= floor:
            context.applied.dropped[Reason.DUPLICATE] += 1
            context.settled.append(proposal)
            continue
        first = not held.rev
        if not first and (proposal.since, proposal.prev_data) != held:
            gap = Undecided(proposal.did, proposal.rev, WantReason.GAP, proposal.source, proposal.frame)
            context.waiting.append(gap)
            continue
        for change in proposal.changes:
            context.batch.add(change)
        if not proposal.moves:
            continue
        if first and proposal.prev_data != EMPTY_TREE:
            context.wants.append(Want(proposal.did, WantReason.FIRST_SEEN))
        context.settled.append(proposal)
        held = Head(proposal.rev, proposal.data)
    return held


async def hold(context: Context) -> None:
    """Keep what has to wait, as far as there is room, and record what is wanted and what isn't any more.

    After the repositories' new states were written.
    """
    if context.batch.confirmed:
        confirmed = ((did, rev, data) for did, (rev, data) in context.batch.confirmed.items())
        await context.execute("meet_fetch_wants", *columns(confirmed, 3), [reason.value for reason in CHAINABLE])
    waiting = [one for one in (*context.batch.undecided, *context.waiting) if one.did not in context.forgotten]
    forgotten = (Reason.FORGOTTEN for one in context.batch.undecided if one.did in context.forgotten)
    context.applied.dropped.update(forgotten)
    kept = await _with_room(context, waiting) if waiting else []
    rows = ((u.did, u.rev, digest_of(u.frame), u.source, u.reason.value, u.frame) for u in kept)
    await context.run("put_pending", rows, heavy=5)
    wants = [*context.batch.wants, *context.wants, *(Want(one.did, one.reason) for one in kept)]
    wants += [Want(did, WantReason.PENDING_FULL, rev) for did, rev in context.crowded.items()]
    await _want(context, [want for want in wants if want.did not in context.forgotten])


def digest_of(frame: bytes) -> str:
    """What tells two pending frames of one rev apart."""
    return hashlib.sha256(frame).hexdigest()


async def _with_room(context: Context, waiting: list[Undecided]) -> list[Undecided]:
    """Those of ``waiting`` that are kept: what is there already, and what there is room for."""
    dids = list({one.did for one in waiting})
    digests = list({digest_of(one.frame) for one in waiting})
    there = {tuple(row) for row in await context.fetch("pending_digests", dids, digests)}
    used = {row["did"]: [row["frames"], row["bytes"]] for row in await context.fetch("pending_sizes", dids)}
    (total,) = await context.fetch("pending_total")
    frames, size = total["frames"], total["bytes"]
    kept = []
    for one in waiting:
        place = (one.did, one.rev, digest_of(one.frame))
        own = used.setdefault(one.did, [0, 0])
        weight = len(one.frame)
        fits = own[0] < REPO_FRAMES and own[1] + weight <= REPO_BYTES
        if place in there:
            kept.append(one)
        elif fits and frames < TOTAL_FRAMES and size + weight <= TOTAL_BYTES:
            own[0], own[1], frames, size = own[0] + 1, own[1] + weight, frames + 1, size + weight
            there.add(place)
            kept.append(one)
        else:
            context.crowded[one.did] = max(one.rev, context.crowded.get(one.did, ""))
            context.applied.dropped[Reason.PENDING_FULL] += 1
    return kept


async def _want(context: Context, wants: list[Want]) -> None:
    """One row a repository: of several reasons for one the strongest decides whether it has to be fetched."""
    lost = {want.reason for want in wants if not want.did}
    for reason in sorted(lost):
        await context.execute("want_every_repo", reason.value, context.now)
    if lost:
        await context.execute("check_hidden", context.now)
        await context.execute("restart_discoveries")
    merged: dict[tuple[str, WantReason], Want] = {}
    for want in wants:
        if want.did:
            known = merged.get((want.did, want.reason), want)
            merged[want.did, want.reason] = max(want, known, key=lambda one: one.rev or "")
    rounds: Counter[str] = Counter()
    grouped: defaultdict[int, list[Want]] = defaultdict(list)
    for want in merged.values():  # an upsert takes each row once: a repository's second reason comes in a second one
        grouped[rounds[want.did]].append(want)
        rounds[want.did] += 1
    for group in grouped.values():
        rows = [(w.did, "decide" if w.reason in DECIDABLE else "fetch", w.rev, w.reason.value) for w in group]
        await context.run("put_wants", rows, context.now, [reason.value for reason in ASKED])
