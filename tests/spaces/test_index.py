"""A simulated host's spaces followed into a database: whatever goes wrong, the rows are the host's in the end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from indexer.outbound import Outbound
from indexer.pipeline import utc_now
from indexer.simulator.http_faults import AlterBody, BreakOff, Refuse, RequestFault
from indexer.simulator.repository import Write
from indexer.simulator.service import Handler, refused
from indexer.spaces.session import Secret
from indexer.store.spaces import Spaces
from tests.indexing import Sql
from tests.spaces.followed import Followed, followed
from tests.spaces.letta import AGENT_PATH, CONVERSATION_PATH, OTHER_PATH, PROMPT_PATH, agent, conversation, prompt
from tests.spaces.logins import TYPE

KEPT = "select records, marks from letta_store.repo where space <> ''"
COUNTED = """
    select (select count(*) from letta_store.conversation) + (select count(*) from letta_store.compiled_prompt)
        + (select count(*) from letta_store.agent) + (select count(*) from letta_store.message)
        + (select count(*) from letta_store.other_record) as records,
        (select count(*) from letta_store.recompile) + (select count(*) from letta_store.conversation_version) as marks
"""
HISTORY = "select rkey, cid, previous_cid, kind, superseded from letta.recompile"


@pytest.fixture
async def login(database: str, sql: Sql) -> AsyncIterator[Followed]:
    """An account with one empty space, and an empty index."""
    async with followed(database, sql) as login:
        yield login


def start(login: Followed) -> str:
    """Write an agent, a conversation and its prompt to the space; gives the agent's URI."""
    repo = f"{login.space}/{login.did}"
    uri = f"{repo}/{AGENT_PATH}"
    login.write(
        (AGENT_PATH, agent(primaryConversation=f"{repo}/{CONVERSATION_PATH}")),
        (CONVERSATION_PATH, conversation(uri)),
        (PROMPT_PATH, prompt(uri, repo=repo)),
    )
    return uri


async def is_counted(login: Followed) -> None:
    """What the quotas go by is what is there."""
    assert [tuple(row) for row in await login.sql.fetch(KEPT)] == [tuple(*await login.sql.fetch(COUNTED))]


async def test_first_a_load_then_polls_from_the_stored_rev(login: Followed) -> None:
    """A new repository is loaded whole; whoever follows after a restart polls from the rev stored with the rows."""
    uri = start(login)
    assert await login.round()
    await login.is_true()
    login.pds.requests.clear()
    rev = login.write((PROMPT_PATH, prompt(uri, system="new")), (OTHER_PATH, {"x": 1}))
    assert await login.round()
    await login.is_true()
    assert not any("getRepo" in request for request in login.pds.requests)
    assert await login.sql.fetchval("select rev from letta.repo where space <> ''") == rev
    assert await login.states() == {login.source: "ended", f"space:{login.account.handle}": "ended"}
    await is_counted(login)


async def test_evidence_within_a_space(login: Followed) -> None:
    """Within its space a prompt goes stale by its agent and fresh by a compile, nothing else does it need."""
    uri = start(login)
    await login.round()
    assert await login.sql.fetchval("select freshness from letta.compiled_prompt") == "fresh"
    login.write((AGENT_PATH, agent("new")))
    await login.round()
    (row,) = await login.sql.fetch("select freshness, evidence from letta.compiled_prompt")
    assert (row["freshness"], uri in row["evidence"]) == ("stale", True)
    login.write((PROMPT_PATH, prompt(uri, system="new")))
    await login.round()
    await login.is_true()
    assert await login.sql.fetchval("select freshness from letta.compiled_prompt") == "fresh"


async def test_what_was_overridden_unseen_is_history_without_a_value(login: Followed) -> None:
    """Versions that the host no longer has are in the history as such: no kind is invented, none is left out."""
    uri = start(login)
    await login.round()
    for number in range(3):
        login.write((PROMPT_PATH, prompt(uri, memory=f"m{number + 2}")))
    await login.round()
    rows = await login.sql.fetch(HISTORY + " order by rev")
    assert [(row["kind"], row["superseded"]) for row in rows] == [
        ("first", False),
        (None, True),
        (None, True),
        (None, False),
    ]
    assert [row["previous_cid"] for row in rows] == [None, *(row["cid"] for row in rows[:-1])]
    assert await login.sql.fetchval("select recompiles from letta.compiled_prompt") == 3
    await is_counted(login)


async def test_versions_of_one_batch_keep_their_order(login: Followed) -> None:
    """Several writes of one record in one batch share a rev: the history has them in the order of the log, all."""
    uri = start(login)
    await login.round()
    first, second = prompt(uri, memory="a"), prompt(uri, memory="b")
    login.write((PROMPT_PATH, first), (PROMPT_PATH, second), (PROMPT_PATH, first), (PROMPT_PATH, second))
    login.write((PROMPT_PATH, first), (PROMPT_PATH, first))
    await login.round()
    await login.is_true()
    log = login.pds.repositories[login.space, login.did].log
    wanted = [one.cid for one in log if one.path == PROMPT_PATH and one.cid != one.prev]
    rows = await login.sql.fetch(HISTORY)
    assert len(rows) == len(wanted)
    assert await login.sql.fetchval("select recompiles from letta.compiled_prompt") == len(wanted) - 1
    assert await login.sql.fetchval("select previous_cid from letta.compiled_prompt") == wanted[-2]
    await is_counted(login)


async def test_deleted_and_made_anew_in_one_batch(login: Followed) -> None:
    """A record deleted and written again in one batch is there, with a new history; one deleted for good is gone."""
    uri = start(login)
    await login.round()
    login.write((PROMPT_PATH, None), (PROMPT_PATH, prompt(uri, memory="again")), (CONVERSATION_PATH, None))
    await login.round()
    await login.is_true()
    assert [row["kind"] for row in await login.sql.fetch(HISTORY)] == ["first"]
    assert await login.sql.fetchval("select count(*) from letta_store.conversation_version") == 0
    login.write((PROMPT_PATH, None))
    await login.round()
    await login.is_true()
    assert await login.sql.fetch(HISTORY) == []
    await is_counted(login)


class Lost(RequestFault):
    """The host says that it has no such repository."""

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The refusal instead of the proper answer."""
        return refused("RepoNotFound", "Could not find repo for space")


async def test_silence_deletes_nothing(login: Followed) -> None:
    """A host that says nothing, whether the space vanished or it has a bad day, takes no row away."""
    start(login)
    await login.round()
    before = await login.rows()
    login.pds.silence(login.space)
    assert await login.round()
    assert await login.rows() == before
    login.pds.silence(login.space, silent=False)
    login.pds.delete_space(login.space)
    assert await login.round()
    assert await login.rows() == before
    lost = login.pds.inject(Lost("listRepoOps"))
    assert await login.round()
    assert await login.rows() == before
    login.pds.cure(lost)
    for body in (b'{"ops": []}', b'{"spaces": []}'):
        fault = login.pds.inject(AlterBody("list", lambda _, body=body: body))  # type: ignore[misc]
        await login.round()
        login.pds.cure(fault)
        assert await login.rows() == before


async def test_a_space_that_is_said_to_be_deleted_is_gone(login: Followed) -> None:
    """SpaceDeleted is evidence: rows, history, state and source of the repository go."""
    start(login)
    await login.round()
    login.pds.delete_space(login.space, announced=True)
    assert await login.round()
    assert await login.rows() == {}
    assert await login.sql.fetch(HISTORY) == []
    assert await login.sql.fetch("select from letta.repo where space <> ''") == []
    assert login.source not in await login.states()


async def test_a_host_that_went_back_is_followed_back(login: Followed) -> None:
    """A host restored from a backup has its earlier state in the index, later versions in no history."""
    uri = start(login)
    backup = login.pds.repositories[login.space, login.did].copy()
    login.write((PROMPT_PATH, prompt(uri, memory="lost")), (f"{CONVERSATION_PATH}x", conversation(uri)))
    await login.round()
    login.pds.restore(backup)
    await login.round()
    await login.is_true()
    held = await login.rows()
    assert {row["cid"] for row in await login.sql.fetch(HISTORY)} <= set(held.values())
    login.write((AGENT_PATH, agent("newer")))
    await login.round()
    await login.is_true()
    await is_counted(login)


async def test_an_unproven_commit_is_stored_with_its_reason(login: Followed) -> None:
    """What a commit of the host doesn't prove is kept, unverified, and letta.repo says why; proven later, it is."""
    start(login)
    await login.round()
    repository = login.pds.repositories[login.space, login.did]
    own, repository.key = repository.key, login.network.new_key()
    login.write((AGENT_PATH, agent("new")))
    await login.round()
    await login.is_true(proof=None)
    assert await login.sql.fetchval("select judgement from letta.repo where space <> ''") == "bad_signature"
    repository.key = own
    login.write((AGENT_PATH, agent("newer")))
    await login.round()
    await login.is_true()
    assert await login.sql.fetchval("select judgement from letta.repo where space <> ''") == "proven"


async def test_a_revoked_password_is_a_state_and_no_loop(login: Followed) -> None:
    """A password that is refused ends the following with a state of its own; the host isn't asked on and on."""
    start(login)
    await login.round()
    (password,) = (login.password,)
    login.pds.revoke(login.did, password)
    login.pds.expire_access()
    login.pds.requests.clear()
    assert not await login.round(once=False)
    assert len(login.pds.requests) <= 2
    assert login.said[-1] == "refused"
    assert (await login.states())[f"space:{login.account.handle}"] == "refused"
    detail = await login.sql.fetchval("select detail from letta.source where state = 'refused' limit 1")
    assert "app password" in detail
    assert password not in detail
    assert repr(Secret(password)) not in detail
    await login.is_true()


async def test_only_the_spaces_that_are_wanted(login: Followed) -> None:
    """A space that isn't wanted is not read; by default all of the account's are."""
    other = login.pds.create_space(login.did, TYPE, "other")
    start(login)
    login.pds.write(other, login.did, Write(AGENT_PATH, agent()))
    await login.round(wanted=lambda space: space == other)
    assert {uri.rsplit("/", 3)[0] for uri in await login.rows()} == {other}
    await login.round()
    await login.is_true()


async def test_what_somebody_forgot_is_not_indexed_again(login: Followed) -> None:
    """``forget`` of a space takes all of it away while it is followed, and it stays away; others stay."""
    other = login.pds.create_space(login.did, TYPE, "se_f")
    start(login)
    login.pds.write(other, login.did, Write(AGENT_PATH, agent()))
    outbound = Outbound(allow_private_hosts=True)
    follower = login.follower(outbound)
    assert await follower.run()
    assert len(await login.rows()) == 4
    await Spaces(login.index.store).remove(other, (), utc_now(), forget=True)
    for _ in range(2):
        login.pds.write(other, login.did, Write(AGENT_PATH, agent("new")))
        assert await follower.run()  # of before, and then one that begins anew
        await outbound.aclose()
        outbound = Outbound(allow_private_hosts=True)
        follower = login.follower(outbound)
        assert {uri.rsplit("/", 3)[0] for uri in await login.rows()} == {login.space}
        assert set(await login.states()) == {login.source, f"space:{login.account.handle}"}
    await outbound.aclose()


FAULTS: list[Callable[[random.Random], RequestFault]] = [
    lambda rng: Refuse(rng.choice(("getRepo", "listRepoOps", "listSpaces", "createSession")), status=503, times=1),
    lambda rng: Refuse("com.atproto.space.", status=429, retry_after="0", times=1),
    lambda rng: BreakOff("listRepoOps", fraction=rng.random(), times=1),
    lambda rng: BreakOff("getRepo", fraction=rng.random(), times=1),
    lambda rng: AlterBody("getRepo", lambda body: body[: rng.randrange(len(body))], times=1),
    lambda rng: AlterBody("listRepoOps", lambda body: _flipped(rng, body), times=1),
    lambda rng: AlterBody("listRepoOps", lambda body: b'{"ops": []}', times=1),
    lambda rng: AlterBody("listSpaces", lambda body: b'{"spaces": []}', times=1),
    lambda rng: Refuse("listRepoOps", status=401, times=1),
]


def _flipped(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    changed[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("seed", range(5))
async def test_any_trouble_converges(login: Followed, seed: int) -> None:
    """Writes, faults, compactions, backups, silence and expired logins in any order: when it is over, all is right.

    At no time is there a row that the host never had, and none goes while the host is silent.
    """
    life = Life(login, random.Random(seed))
    for _ in range(16):
        life.step()
        fault = login.pds.inject(life.rng.choice(FAULTS)(life.rng)) if life.rng.random() < 0.6 else None
        before = await login.rows()
        await login.round()
        rows = await login.rows()
        assert all(cid in life.ever[uri] for uri, cid in rows.items())
        assert not life.silent or rows == before
        if fault is not None:
            login.pds.cure(fault)
    login.pds.silence(login.space, silent=False)
    login.write((OTHER_PATH, {"end": True}))
    assert await login.round()
    await login.is_true()
    await is_counted(login)


class Life:
    """What a host goes through; ``ever`` holds every CID that a record had."""

    def __init__(self, login: Followed, rng: random.Random) -> None:
        self.rng = rng
        self.ever: dict[str, set[str]] = {}
        self.silent = False
        self._login = login
        self._backup = login.pds.repositories[login.space, login.did].copy()

    def step(self) -> None:
        """One thing that happens, often a batch of writes."""
        pds, space, did = self._login.pds, self._login.space, self._login.did
        match self.rng.randrange(10):
            case 0:
                pds.compact(space, did, self.rng.randrange(4))
            case 1:
                pds.expire_access()
            case 2:
                pds.expire_access()
                pds.expire_refresh()
            case 3:
                self.silent = self.rng.random() < 0.5
                pds.silence(space, silent=self.silent)
            case 4:
                self._backup = pds.repositories[space, did].copy()
            case 5:
                pds.restore(self._backup.copy())
            case _:
                self._write()
        for path, held in pds.repositories[space, did].records.items():
            self.ever.setdefault(f"{space}/{did}/{path}", set()).add(held.cid)

    def _write(self) -> None:
        uri = f"{self._login.space}/{self._login.did}/{AGENT_PATH}"
        writes: list[tuple[str, object]] = []
        present = set(self._login.pds.repositories[self._login.space, self._login.did].records)
        paths = [AGENT_PATH, PROMPT_PATH, PROMPT_PATH, f"{PROMPT_PATH}x", CONVERSATION_PATH, OTHER_PATH]
        for path in self.rng.choices(paths, k=self.rng.randint(1, 8)):
            gone = path in present and self.rng.random() < 0.3
            system, memory = self.rng.choice(("old", "new")), self.rng.choice(("m1", "m2"))
            at = f"2026-11-01T10:00:0{self.rng.randrange(10)}Z"
            value = {
                AGENT_PATH: agent(system),
                CONVERSATION_PATH: conversation(uri, title=memory),
                OTHER_PATH: {"n": memory},
            }.get(path, prompt(uri, system, memory, at))
            writes.append((path, None if gone else value))
            (present.discard if gone else present.add)(path)
        self._login.write(*writes)
