"""What strangers, hosts and operators can do to repair: nothing stops, nothing loops, nothing is lost in silence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from aiohttp import web

from indexer.batch import Batch
from indexer.keys import PublicKey
from indexer.model import AccountChange, HandleChange, Reason, Want, WantReason
from indexer.reading import Reading
from indexer.simulator import events
from indexer.simulator.clock import iso
from indexer.simulator.http_faults import AlterBody, RequestFault
from indexer.simulator.service import Handler, refused
from indexer.store import Store, writer
from indexer.store.audits import Audits
from indexer.store.claims import ClaimLostError
from indexer.store.repairs import Repairs
from indexer.trust import Tracked
from tests import frames
from tests.frames import AGENT, DID, PROMPT, STRANGER, dag_cbor, key, prompt
from tests.indexing import Sql, untrue_flags
from tests.trust.parts import Clock, Directory, Silence, kept_of, proving, wants
from tests.trust.scene import Scene
from tests.trust.steps import NOW, claim, commit, fetch_wanted, gone, head, put, rev, rows, snapshot, undecided, write

ALL = (PROMPT + "/",)


class Deactivated(RequestFault):
    """The host says that the repository is of a deactivated account."""

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The refusal, as the lexicon words it."""
        return refused("RepoDeactivated", "not given out", status=400)


@dataclass(slots=True)
class Naming:
    """A repository whose tree names these CIDs under these paths; ``read`` counts the blocks it was asked for."""

    names: dict[str, bytes]
    blocks: dict[bytes, bytes]
    read: int = 0
    commit: object = field(default_factory=lambda: SimpleNamespace(did=DID, rev=rev(5)))

    def paths(self, prefixes: tuple[str, ...]) -> list[tuple[str, bytes]]:
        """All of them."""
        return [(path, cid) for path, cid in self.names.items() if path.startswith(prefixes)]

    def block(self, cid: bytes) -> bytes:
        """The block, asked for once more."""
        self.read += 1
        return self.blocks[cid]


def naming(paths: list[str], block: bytes) -> Naming:
    """A repository that names one block under all of these paths."""
    cid = frames.cid_of(block)
    return Naming(dict.fromkeys(paths, cid), {cid: block})


def reading(repository: Naming, kept: dict[str, tuple[str, str]] | None = None, *, most: int = 1_000) -> Reading:
    """What is read of it."""
    made = Reading(repository, kept or {})  # type: ignore[arg-type]
    made.take(ALL, quota_rows=most, quota_bytes=1 << 30)
    return made


# What a tree can name


def test_block_named_often_is_held_once() -> None:
    """A block under a thousand keys is decoded and held once: memory follows what a host had to send."""
    repository = naming([f"{PROMPT}/{key(number)}" for number in range(1_000)], dag_cbor(prompt()))
    made = reading(repository)
    assert (len(made.changes), len({id(change.record) for change in made.changes}), repository.read) == (1_000, 1, 1)


def test_records_over_the_quota_are_counted_not_read() -> None:
    """What a repository holds beyond an account's quota is left out, and counted."""
    made = reading(naming([f"{PROMPT}/{key(number)}" for number in range(30)], dag_cbor(prompt())), most=10)
    assert (len(made.changes), made.dropped) == (10, {Reason.QUOTA: 20})


def test_rows_that_are_right_are_not_read() -> None:
    """A block is read where the row is another, or of a later rev than the repository; else its CID is enough."""
    paths = [f"{PROMPT}/{key(number)}" for number in range(3)]
    block = dag_cbor(prompt())
    cid = reading(naming(paths[:1], block)).changes[0].cid
    assert cid is not None
    kept = {paths[0]: (cid, rev(5)), paths[1]: (cid, rev(6)), paths[2]: ("other", rev(1))}
    made = reading(naming(paths, block), kept)
    assert [change.record is None for change in made.changes] == [True, False, False]


def test_what_cannot_be_used_of_a_repository_is_kept_to_be_looked_into() -> None:
    """Keys that no row can have, and blocks that are no record, are counted each, and the first of them kept."""
    made = reading(naming([f"{PROMPT}/{key(1)}", f"{PROMPT}/"], b"\xff"))
    assert made.dropped == {Reason.UNDECODABLE_RECORD: 1, Reason.BAD_PATH: 1}
    assert [(error.reason.value, block) for error, block in made.refused] == [
        ("undecodable_record", b"\xff"),
        ("bad_path", b""),
    ]


async def test_row_that_changed_since_it_was_right_is_read_again(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A snapshot that didn't read a record because its row was right is given up if that row is another by then."""
    await write(store, commit(1, put("a", "one", 1)))
    unread = replace(put("a", "one", 5), record=None)
    held = await fetch_wanted(store, repairs)
    await write(store, commit(2, put("a", "two", 2)))
    with pytest.raises(ClaimLostError):
        await repairs.reconcile(held, snapshot(5, unread), NOW)
    assert await rows(sql) == {"a": ("two", rev(2), "repo")}
    await repairs.reconcile(held, snapshot(5, replace(put("a", "two", 5), record=None)), NOW)
    assert (await rows(sql), (await head(sql))[0]) == ({"a": ("two", rev(2), "repo")}, rev(5))


# A narrower filter


async def test_snapshot_leaves_what_is_not_followed_any_more(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A repository read under a narrower filter says nothing of rows and tombstones outside it."""
    both = [put(name, "one", 1, collection=kind) for kind, name in ((PROMPT, "p"), (AGENT, "a"), (AGENT, "b"))]
    await write(store, commit(1, *both), commit(2, gone("b", 2, collection=AGENT), gone("q", 2)))
    await repairs.reconcile(await fetch_wanted(store, repairs), replace(snapshot(5), prefixes=ALL), NOW)
    assert set(await rows(sql)) == {"a"}
    assert [row["rkey"] for row in await sql.fetch("select rkey from letta_store.tombstone")] == ["b"]


async def test_source_read_with_more_before_is_widened_again(repairs: Repairs) -> None:
    """A run with a narrower filter narrows every source: when the wider one is back, all is wanted anew."""

    def covers(patterns: list[str]) -> bool:
        return set(patterns) <= {PROMPT}

    await repairs.widen("one", [PROMPT, AGENT], lambda before: True, None)
    await repairs.widen("two", [PROMPT], lambda before: True, None)
    await repairs.narrow([PROMPT], covers, None)  # type: ignore[arg-type]
    assert await repairs.filters() == {"one": [PROMPT], "two": [PROMPT]}
    assert await repairs.widen("one", [PROMPT, AGENT], lambda before: {PROMPT, AGENT} <= set(before), None)


# Hosts


@pytest.mark.parametrize("word", ["a\0", "\ud800", "Away!", "x" * 65])
async def test_any_status_of_a_host_is_survived(one: Scene, word: str) -> None:
    """A host may call an account's state what it likes: what is no word counts as inactive."""
    body = json.dumps({"did": one.did, "active": False, "status": word}).encode()
    one.pds.inject(AlterBody("getRepoStatus", lambda _: body))
    await one.parts.take([one.told("deactivated")])
    await one.settle()
    assert (await one.shown(), await one.status()) == (0, "inactive")


async def test_host_that_contradicts_itself_is_left_alone(one: Scene) -> None:
    """A host that refuses a repository as deactivated but calls the account active hides nothing, and costs backoff."""
    one.pds.inject(Deactivated("sync.getRepo?"))
    await one.parts.repairs.want([Want(one.did, WantReason.BACKFILL)], one.clock())
    for tries in range(1, 5):
        await one.settle()
        assert (await one.shown(), await one.status()) == (2, "active")
        assert await one.sql.fetchval("select attempts from letta_store.repo") == tries
        one.clock.turn(hours=1)


async def test_correction_of_a_host_does_not_begin_the_tries_anew(one: Scene) -> None:
    """An account that is back by its host's word is fetched when its time has come: only an event makes it due."""
    one.pds.inject(Deactivated("sync.getRepo?"))
    await one.parts.repairs.want([Want(one.did, WantReason.BACKFILL)], one.clock())
    await one.parts.mend(tries=3)
    await one.parts.take([one.told("deactivated")])
    assert await one.shown() == 0
    await one.parts.ask()
    assert (await one.shown(), await one.status()) == (2, "active")
    assert await one.sql.fetchval("select attempts from letta_store.repo") == 3
    assert WantReason.OUTDATED_CURSOR in (await wants(one.sql))[one.did]


async def test_account_that_is_back_is_not_purged(one: Scene) -> None:
    """A deletion confirmed while the account came back takes nothing away."""
    await one.parts.take([one.told("deleted")])
    (check,) = await one.parts.repairs.due_checks(one.clock(), 1)
    one.clock.turn(seconds=1)
    back = events.account(one.did, "active", seq=one.network.seq, time=iso(one.clock.now))
    await one.parts.take([back])
    assert await one.parts.repairs.purge(check, rev(9), one.clock()) is None
    assert await one.shown() == 2
    assert await one.sql.fetchval("select purged_rev from letta_store.account") == ""


async def test_hidden_account_is_not_reconciled(store: Store, repairs: Repairs, sql: Sql) -> None:
    """No repository of a hidden account is written, also if it was hidden when its want was taken on."""
    held = await fetch_wanted(store, repairs)
    await sql.execute("update letta_store.account set active = false, status = 'deactivated'")
    with pytest.raises(ClaimLostError):
        await repairs.reconcile(replace(held, hidden=True), snapshot(5, put("a", "one", 5)), NOW)
    assert await sql.fetchval("select count(*) from letta_store.compiled_prompt") == 0


# Identities


async def test_pending_is_kept_with_what_is_kept(store: Store, repairs: Repairs, sql: Sql) -> None:
    """An account that nobody knows is left with its commits if there is something of it, and then to be fetched."""
    await write(store, commit(1, put("a", "one", 1)), held=(undecided(3), undecided(3, did=STRANGER)))
    assert [await repairs.untrack(did) for did in (DID, STRANGER)] == [False, True]
    assert [row["did"] for row in await sql.fetch("select did from letta_store.pending")] == [DID]
    assert [(row["did"], row["want"]) for row in await sql.fetch("select did, want from letta_store.repo")] == [
        (DID, "fetch")
    ]


async def test_identity_counts_while_a_check_is_put_off(store: Store, repairs: Repairs, sql: Sql) -> None:
    """A check that failed and waits keeps no identity out; an identity event that came meanwhile does."""
    await write(store, commit(1))
    event, later = Batch(handles={DID: HandleChange(DID, NOW, None, confirm=True)}), NOW + timedelta(seconds=9)
    await store.apply(event, NOW)
    await repairs.postpone_check(DID, NOW, NOW + timedelta(hours=1))
    assert await repairs.put_identity(DID, "a key", None, None, later, later)
    await store.apply(event, later)
    await repairs.postpone_check(DID, NOW, NOW + timedelta(hours=1))  # of before: it knows nothing of the event
    assert not await repairs.put_identity(DID, "an old key", None, None, NOW, later)
    assert await sql.fetchval("select signing_key from letta_store.account") is None


async def test_account_that_nobody_knows_is_not_tracked(database: str, sql: Sql) -> None:
    """After the last try at an unknown DID nothing of it is left, in memory neither."""
    async with proving(database, Directory({}), Silence()) as parts:
        parts.tracked.follow(STRANGER)
        await parts.repairs.want([Want(STRANGER, WantReason.BACKFILL)], parts.clock())
        await parts.mend(tries=3)
        assert STRANGER not in parts.tracked
        assert set(await kept_of(sql, STRANGER)) == {"account"}


def test_keys_are_at_hand_as_text() -> None:
    """A key known from before is parsed when it is first asked for."""
    text = "did:key:zQ3shqwJEJyMBsBXCWyCBpUBMqxcon9oHB7mCvx4sSpMdLJwc"
    tracked = Tracked()
    tracked.follow(DID, rev(1), text)
    assert tracked.key(DID) == PublicKey.parse(text)
    assert tracked.key(DID) is tracked.key(DID)
    tracked.forget(DID)
    assert (tracked.key(DID), DID in tracked) == (None, False)


# Bounds


async def test_probes_are_bounded(store: Store, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many accounts a stranger makes up: so many are asked about at a time, the others counted."""
    monkeypatch.setattr(writer, "MOST_PROBES", 2)
    dids = [f"did:plc:{letter * 24}" for letter in "cdef"]
    assert (await store.apply(Batch(probes=set(dids)), NOW)).dropped == {Reason.QUOTA: 2}
    known = [row["did"] for row in await sql.fetch("select did from letta_store.probe")]
    assert len(known) == 2
    assert (await store.apply(Batch(probes=set(known)), NOW)).dropped == {}


async def test_accounts_kept_out_are_not_fetched(database: str, sql: Sql) -> None:
    """``--only`` and ``--deny`` bind repair too: what is wanted of others waits, and isn't waited for."""
    async with proving(database, Directory({}), host := Silence(), clock=Clock(NOW), only=(DID,)) as parts:
        await parts.repairs.want([Want(STRANGER, WantReason.BACKFILL)], NOW)
        await parts.mend(tries=2)
        assert host.asked == 0
        error = await sql.fetchval("select last_error from letta.repo where did = $1", STRANGER)
        assert error == "kept out by --only or --deny"
        assert await parts.repairs.open_wants(3, NOW, None, [STRANGER]) == (0, 0)
        assert await parts.repairs.open_wants(3, NOW) == (1, 0)


async def test_some_workers_keep_clear_of_what_fails(store: Store, repairs: Repairs) -> None:
    """A want that was tried more than once is not for those workers, a new one is."""
    for _ in range(2):
        held = await claim(repairs) if await _wanted(store, DID) else None
        assert held is not None
        await repairs.release(held, NOW, "no answer")
    assert await repairs.claim(NOW, 1, tries=1) == []
    await _wanted(store, STRANGER)
    assert [one.did for one in await repairs.claim(NOW, 1, tries=1)] == [STRANGER]
    assert [one.did for one in await repairs.claim(NOW, 1)] == [DID]


async def _wanted(store: Store, did: str) -> bool:
    await write(store, wanted=(Want(did, WantReason.SYNC),))
    return True


# What is told of it


async def test_operation_refused_in_a_pending_commit_is_told(one: Scene) -> None:
    """What can't be used of a commit that waited for a key is counted and set aside like that of any other, once."""
    one.network.rotate_key(one.did, resign=False)
    one.network.put(one.did, f"{PROMPT}/..", prompt())
    await one.happen()
    await one.settle()
    await one.parts.index.pipeline.flush()
    assert one.parts.index.sample("dropped_total", reason="bad_path") == 1
    reasons = await one.sql.fetch("select reason, did from letta_store.dead_letter")
    assert [tuple(row) for row in reasons] == [("bad_path", one.did)]


async def test_flags_are_repaired_without_a_fetch(store: Store, sql: Sql) -> None:
    """Flags that aren't what the records say are computed anew, of prompts without an agent too; nothing is wanted."""
    await write(store, commit(1, put("a", "one", 1), put("b", "two", 1)))
    await sql.execute("update letta_store.freshness set freshness = 'stale', stale_reasons = '{memory_changed}'")
    wrong = [str(row["uri"]) for row in await Audits(store).untrue_flags()]
    assert len(wrong) == 2
    await Audits(store).refresh(wrong, NOW)
    assert (await untrue_flags(sql), await wants(sql)) == ([], {})


async def test_flags_without_a_prompt_are_found_and_dropped(store: Store, sql: Sql) -> None:
    """Flags of a prompt that isn't there are wrong too: they would be counted for ever."""
    await write(store, commit(1, put("a", "one", 1), put("b", "two", 1)))
    await sql.execute("delete from letta_store.compiled_prompt where rkey = 'b'")
    (wrong,) = await Audits(store).untrue_flags()
    assert (wrong["uri"], wrong["stored"], wrong["computed"]) == (f"at://{DID}/{PROMPT}/b", "unverified", None)
    await Audits(store).refresh([str(wrong["uri"])], NOW)
    assert (await untrue_flags(sql), await Audits(store).untrue_flags()) == ([], [])
    assert await sql.fetchval("select count(*) from letta_store.freshness") == 1


async def test_state_told_in_vain_does_not_stop_the_rest(store: Store, sql: Sql) -> None:
    """An account's state that the database refuses is set aside alone."""
    states = {did: AccountChange(did, NOW, False, word) for did, word in ((DID, "a\0"), (STRANGER, "deactivated"))}
    await store.apply(Batch(accounts=states), NOW)
    assert await sql.fetchval("select status from letta_store.account where did = $1", STRANGER) == "deactivated"
