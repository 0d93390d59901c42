"""Reading under everything that goes wrong: in the end the rows are the host's, and silence never deletes."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import pytest

from indexer.errors import Rejected
from indexer.keys import PublicKey
from indexer.outbound import FetchFailed, Outbound
from indexer.simulator.http_faults import AlterBody, BreakOff, Refuse, RequestFault
from indexer.spaces.client import SpaceClient
from indexer.spaces.commit import Judgement
from indexer.spaces.failures import SpaceUnavailable
from indexer.spaces.reader import Loaded, SpaceReader
from indexer.spaces.repo import Applied, ReloadReason, RepoState, Silent
from indexer.spaces.session import Secret, Session
from tests.spaces import captured
from tests.spaces.held import Held
from tests.spaces.logins import PREFIXES, Login

AGENT = "xyz.quasigod.lab.letta.agent/self"
PROMPT = "xyz.quasigod.lab.letta.compiledPrompt/3n2q7w3e4ddtw"
OTHER = "com.example.note/1"


async def test_captured_host_from_head_to_head(outbound: Outbound) -> None:
    """Against a double of the captured PDS, read at each of its heads: exactly what it listed, all proven."""
    held = Held(RepoState(captured.SPACE, captured.DID), PREFIXES)
    first, *_, last = captured.commits()

    async def key(fresh: bool) -> PublicKey:
        return captured.key()

    async with captured.CapturedHost(first) as pds:
        client = SpaceClient(Session(outbound, pds.url, captured.DID, Secret("x")), page=3)
        reader = SpaceReader(client, key, prefixes=PREFIXES)
        assert isinstance(await reader.read(held.state, io.BytesIO()), Silent)  # its CAR wasn't captured there
        held.take(await reader.poll(held.state))  # type: ignore[arg-type]
        for head in captured.commits():
            pds.head = head
            held.take(await reader.read(held.state, io.BytesIO()))
            assert held.state.rev == head
        assert held.cids() == captured.expected()
        assert held.loads == []
        fresh = Held(RepoState(captured.SPACE, captured.DID), PREFIXES)
        spool = io.BytesIO()
        fresh.take(await reader.read(fresh.state, spool))
    assert fresh.cids() == captured.expected()
    assert fresh.state == held.state
    assert {row.proof for row in (*held.rows.values(), *fresh.rows.values())} == {"space"}
    assert held.state.rev == last


async def test_first_a_load_then_polls(login: Login) -> None:
    """An empty repository is silent, the first reading of a written one a load, and from then on polls do."""
    assert isinstance(await login.read(), Silent)
    login.write((AGENT, {"x": 1}))
    reading = await login.read()
    assert isinstance(reading, Loaded)
    assert (reading.reason, reading.rewound) == (None, False)
    for number in range(12):
        login.write((PROMPT, {"n": number}), (OTHER, {"n": number}), (PROMPT, {"n": -number}))
    assert isinstance(await login.read(), Applied)
    assert len(login.held.versions) == 23
    assert login.held.cids() == login.truth()
    assert len(login.held.loads) == 1


async def test_silence_deletes_nothing(login: Login) -> None:
    """A host that answers as if there were no space, for polls or for loads, changes nothing; then all goes on."""
    login.write((AGENT, {"x": 1}))
    await login.read()
    before = login.held.cids()
    login.pds.silence(login.space)
    for _ in range(3):
        assert isinstance(await login.read(), Silent)
    assert login.held.cids() == before
    login.pds.silence(login.space, silent=False)
    login.write((PROMPT, {"x": 1}))
    assert isinstance(await login.read(), Applied)
    assert login.held.cids() == login.truth()


async def test_deleted_space_is_said_or_silent(login: Login) -> None:
    """A space that vanished without a word is silent; only the host's word that it was deleted is evidence."""
    login.write((AGENT, {"x": 1}))
    await login.read()
    login.pds.delete_space(login.space)
    assert isinstance(await login.read(), Silent)
    login.pds.delete_space(login.space, announced=True)
    with pytest.raises(SpaceUnavailable) as caught:
        await login.read()
    assert caught.value.state == "space_deleted"
    assert login.held.cids()


async def test_compacted_log_is_loaded(login: Login) -> None:
    """Whatever the host has forgotten of its log, nothing is missed: the repository is loaded whole."""
    login.write((AGENT, {"x": 1}), (PROMPT, {"x": 1}))
    await login.read()
    for keep, reason in ((0, ReloadReason.WRONG_HEAD), (1, ReloadReason.WRONG_HASH)):
        login.write((PROMPT, {"keep": keep}))
        login.write((PROMPT, None))
        login.write((PROMPT, {"again": keep}))
        login.pds.compact(login.space, login.did, keep)
        reading = await login.read()
        assert isinstance(reading, Loaded)
        assert reading.reason is reason
        assert login.held.cids() == login.truth()


async def test_host_reset_to_a_backup_is_loaded(login: Login) -> None:
    """A host that lost what it had shows an earlier state: the load says that it goes back."""
    login.write((AGENT, {"x": 1}))
    backup = login.pds.repositories[login.space, login.did].copy()
    login.write((PROMPT, {"x": 1}))
    await login.read()
    login.pds.restore(backup)
    reading = await login.read()
    assert isinstance(reading, Loaded)
    assert (reading.reason, reading.rewound) == (ReloadReason.REWOUND, True)
    login.write((AGENT, {"x": 2}))
    assert isinstance(await login.read(), Applied)
    assert login.held.cids() == login.truth()


async def test_new_key_is_found_without_a_load(login: Login) -> None:
    """When the account has a new key its document is asked once, and the poll goes on."""
    login.write((AGENT, {"x": 1}))
    await login.read()
    login.account.key = login.pds.repositories[login.space, login.did].key = login.network.new_key()
    login.write((PROMPT, {"x": 1}))
    assert isinstance(await login.read(), Applied)
    assert login.fresh_keys == 1
    assert {row.proof for row in login.held.rows.values()} == {"space"}


async def test_new_key_is_found_for_a_load(login: Login) -> None:
    """A first load that the key we know doesn't prove is judged once more with the account's present key."""
    login.write((AGENT, {"x": 1}))
    login.account.key = login.pds.repositories[login.space, login.did].key = login.network.new_key()
    reading = await login.read()
    assert reading.state.judgement is Judgement.PROVEN  # type: ignore[union-attr]
    assert login.fresh_keys == 1


async def test_unprovable_repository_is_followed_and_proven_later(login: Login) -> None:
    """A host that signs with another key is loaded once, unproven, then polled; when it proves again, loaded again."""
    login.write((AGENT, {"x": 1}))
    await login.read()
    repository = login.pds.repositories[login.space, login.did]
    own, repository.key = repository.key, login.network.new_key()
    kinds, judgements = [], []
    for number in range(4):
        login.write((PROMPT, {"n": number}))
        if number == 2:
            repository.key = own
        kinds.append(type(await login.read()))
        judgements.append(login.held.state.judgement)
        assert login.held.cids() == login.truth()
    assert kinds == [Loaded, Applied, Loaded, Applied]
    assert judgements == [Judgement.BAD_SIGNATURE] * 2 + [Judgement.PROVEN] * 2
    assert {row.proof for row in login.held.rows.values()} == {"space"}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
async def test_cut_archive_is_refused(login: Login, share: float) -> None:
    """A CAR that is whole as HTTP goes but cut short is refused, and what is held stays."""
    login.write((AGENT, {"x": 1}), (PROMPT, {"y": 2}))
    login.pds.inject(AlterBody("getRepo", lambda car: car[: int(len(car) * share)], times=1))
    with pytest.raises(Rejected):
        await login.read()
    assert login.held.state.rev == ""
    await login.read()
    assert login.held.cids() == login.truth()


FAULTS: list[Callable[[random.Random], RequestFault]] = [
    lambda rng: Refuse(rng.choice(("getRepo", "listRepoOps", "refreshSession")), status=500, times=1),
    lambda rng: BreakOff("listRepoOps", fraction=rng.random(), times=1),
    lambda rng: BreakOff("getRepo", fraction=rng.random(), times=1),
    lambda rng: AlterBody("getRepo", lambda body: body[: rng.randrange(len(body))], times=1),
    lambda rng: AlterBody("getRepo", lambda body: _flipped(rng, body), times=1),
    lambda rng: AlterBody("listRepoOps", lambda body: _flipped(rng, body), times=1),
    lambda rng: AlterBody("listRepoOps", lambda body: b'{"ops": []}', times=1),
    lambda rng: Refuse("listRepoOps", status=401, times=1),
]


@pytest.mark.parametrize("seed", range(12))
async def test_any_trouble_converges(login: Login, seed: int) -> None:
    """Writes, faults, compactions, backups, silence and expired logins in any order: when it is over, all is right.

    At no time does a row stand that the host never had, and none goes while the host is silent.
    """
    life = Life(login, random.Random(seed))
    for _ in range(30):
        life.step()
        fault = login.pds.inject(life.rng.choice(FAULTS)(life.rng)) if life.rng.random() < 0.6 else None
        before = login.held.cids()
        try:
            silent = isinstance(await login.read(), Silent)
        except (FetchFailed, Rejected):
            silent = True
        assert not silent or login.held.cids() == before
        assert all(cid in life.ever[uri] for uri, cid in login.held.cids().items())
        if fault is not None:
            login.pds.cure(fault)
    login.pds.silence(login.space, silent=False)
    login.write((OTHER, {"end": True}))
    await login.read()
    assert login.held.cids() == login.truth()
    assert login.held.state.rev == login.pds.repositories[login.space, login.did].rev
    assert {row.proof for row in login.held.rows.values()} <= {"space"}


class Life:
    """What a host goes through; ``ever`` holds every CID that a record had."""

    def __init__(self, login: Login, rng: random.Random) -> None:
        self.rng = rng
        self.ever: dict[str, set[str]] = {}
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
                pds.silence(space, silent=self.rng.random() < 0.5)
            case 4:
                self._backup = pds.repositories[space, did].copy()
            case 5:
                pds.restore(self._backup.copy())
            case _:
                self._write()
        for uri, cid in self._login.truth().items():
            self.ever.setdefault(uri, set()).add(cid)

    def _write(self) -> None:
        writes: list[tuple[str, object]] = []
        present = set(self._login.pds.repositories[self._login.space, self._login.did].records)
        for path in self.rng.choices([AGENT, PROMPT, PROMPT + "x", OTHER], k=self.rng.randint(1, 8)):
            gone = path in present and self.rng.random() < 0.3
            writes.append((path, None if gone else {"n": self.rng.randrange(5)}))
            (present.discard if gone else present.add)(path)
        self._login.write(*writes)


def _flipped(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    changed[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"\xff", b'{"ops": 5}', b"\x0a" * 200])
async def test_failures_are_ours(login: Login, body: bytes) -> None:
    """Whatever a host sends for a poll or a load, what is raised is of our own tree, and what is held stays."""
    login.write((AGENT, {"x": 1}))
    await login.read()
    login.pds.inject(AlterBody("listRepoOps", lambda _: body))
    login.pds.inject(AlterBody("getRepo", lambda _: body))
    for state in (login.held.state, RepoState(login.space, login.did)):
        with pytest.raises((FetchFailed, Rejected)):
            await login.reader.read(state, io.BytesIO())
    assert login.held.cids() == login.truth()
