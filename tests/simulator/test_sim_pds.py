"""The simulated PLC directory, PDS and their faults, asked over HTTP as an indexer would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import aiohttp
import pytest
from aiohttp import ClientSession

from indexer.simulator import World
from indexer.simulator.alterations import cut_car
from indexer.simulator.archive import read_car
from indexer.simulator.dagcbor import cid_text
from indexer.simulator.http_faults import AlterBody, BreakOff, Hang, Refuse, RequestFault, Slow
from indexer.simulator.keys import did_key
from indexer.simulator.oracle import PREFIX
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from indexer.simulator.service import Service
from indexer.simulator.stream import PATH

SYNC = "/xrpc/com.atproto.sync."


@pytest.fixture
def world() -> World:
    """A world of six accounts with some life behind it, all of them active."""
    world = World(seed=4, p256=0.5, legacy=0.5, weights={"hide": 0, "delete_account": 0, "new_account": 0})
    world.run(120)
    return world


@pytest.fixture
async def pds(world: World) -> AsyncIterator[Pds]:
    """A PDS that hosts everybody."""
    async with Pds(world) as pds:
        yield pds


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    """A client that gives up instead of hanging."""
    async with ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def json_of(http: ClientSession, url: str, **query: str) -> tuple[int, dict[str, object]]:
    """Status and JSON body of an answer."""
    async with http.get(url, params=query) as response:
        return response.status, await response.json(content_type=None)


async def bytes_of(http: ClientSession, url: str, **query: str) -> bytes:
    """The body of an answer that must be good."""
    async with http.get(url, params=query) as response:
        assert response.status == 200
        return await response.read()


async def test_the_directory_serves_documents_of_both_forms(world: World, http: ClientSession) -> None:
    """Multikey and the older key types come as the network knows them; ``/data`` names the did:key."""
    types = set()
    async with Directory(world) as plc:
        for did, account in world.accounts.items():
            status, document = await json_of(http, f"{plc.url}/{did}")
            assert (status, document) == (200, world.documents()[did])
            types.add(account.document()["verificationMethod"][0]["type"])
            _, data = await json_of(http, f"{plc.url}/{did}/data")
            assert data["verificationMethods"] == {"atproto": did_key(account.key)}
        assert len(plc.requests) == 2 * len(world.accounts)
    assert len(types) >= 2


async def test_the_directory_knows_unknown_from_given_up(world: World, http: ClientSession) -> None:
    """404 for a DID that never was, 410 for one that is no more."""
    did = next(iter(world.accounts))
    world.delete_account(did, tombstone=True)
    async with Directory(world) as plc:
        assert (await json_of(http, f"{plc.url}/did:plc:nobody"))[0] == 404
        assert (await json_of(http, f"{plc.url}/{did}"))[0] == 410
    assert did not in world.documents()


async def test_a_repository_can_be_fetched(world: World, pds: Pds, http: ClientSession) -> None:
    """``getRepo`` is the whole repository under its head; status and latest commit agree with it."""
    for did, expected in world.expected().accounts.items():
        roots, blocks = read_car(await bytes_of(http, pds.url + SYNC + "getRepo", did=did))
        assert cid_text(roots[0]) == cid_text(blocks[0][0])
        assert {record.cid for record in expected.records.values()} <= {cid_text(cid) for cid, _ in blocks}
        _, latest = await json_of(http, pds.url + SYNC + "getLatestCommit", did=did)
        assert latest == {"cid": cid_text(roots[0]), "rev": expected.rev}
        _, status = await json_of(http, pds.url + SYNC + "getRepoStatus", did=did)
        assert status == {"did": did, "active": True, "rev": expected.rev}
        _, described = await json_of(http, pds.url + "/xrpc/com.atproto.repo.describeRepo", repo=expected.handle)
        assert (described["did"], described["didDoc"]) == (did, world.documents()[did])


async def test_a_single_record_comes_with_its_proof(world: World, pds: Pds, http: ClientSession) -> None:
    """``getRecord`` holds the record's block; for a key that isn't there it holds none, but still the commit."""
    uri, record = next(iter(world.expected().records.items()))
    did, path = uri.removeprefix("at://").split("/", 1)
    collection, rkey = path.split("/")
    url = pds.url + SYNC + "getRecord"
    _, blocks = read_car(await bytes_of(http, url, did=did, collection=collection, rkey=rkey))
    _, without = read_car(await bytes_of(http, url, did=did, collection=collection, rkey="nothing"))
    assert record.cid in {cid_text(cid) for cid, _ in blocks}
    assert without[0] == blocks[0]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("deactivated", "RepoDeactivated"),
        ("suspended", "RepoSuspended"),
        ("takendown", "RepoTakendown"),
        ("deleted", "RepoNotFound"),
    ],
)
async def test_a_hidden_account_is_refused_by_its_reason(
    world: World, pds: Pds, http: ClientSession, status: str, error: str
) -> None:
    """Repositories of accounts that are not active are not given out, and the error says why."""
    did = next(iter(world.accounts))
    if status == "deleted":
        world.delete_account(did)
    else:
        world.set_status(did, status)
    for method in ("getRepo", "getLatestCommit", "getRecord"):
        code, body = await json_of(http, pds.url + SYNC + method, did=did)
        assert (code, body["error"]) == (400, error)
    code, body = await json_of(http, pds.url + SYNC + "getRepoStatus", did=did)
    assert body == {"did": did, "active": False, "status": status} if status != "deleted" else code == 400


async def test_repositories_are_listed_page_by_page(world: World, pds: Pds, http: ClientSession) -> None:
    """Pages of both listings hold every account once; hidden ones only ``listRepos``, deleted ones neither."""
    collection = PREFIX + "compiledPrompt"
    hidden, deleted, *_ = world.accounts
    world.set_status(hidden, "deactivated")
    world.delete_account(deleted)
    having = {record.did for record in world.expected().records.values() if record.collection == collection}
    for method, expected in (("listReposByCollection", having), ("listRepos", world.accounts.keys() - {deleted})):
        found, query = [], {"collection": collection, "limit": "2"}
        while True:
            _, page = await json_of(http, pds.url + SYNC + method, **query)
            repos = page["repos"]
            assert isinstance(repos, list)
            found += [repo["did"] for repo in repos]
            if "cursor" not in page:
                break
            query["cursor"] = str(page["cursor"])
        assert sorted(found) == sorted(expected)


async def test_handles_resolve(world: World, pds: Pds, http: ClientSession) -> None:
    """By the well-known path of the handle's host and by XRPC."""
    account = next(iter(world.accounts.values()))
    async with http.get(pds.url + "/.well-known/atproto-did", headers={"Host": account.handle}) as response:
        assert await response.text() == account.did
    url = pds.url + "/xrpc/com.atproto.identity.resolveHandle"
    assert await json_of(http, url, handle=account.handle) == (200, {"did": account.did})
    assert (await json_of(http, url, handle="nobody.test"))[0] == 400


async def test_an_account_moves_from_one_host_to_another(world: World, pds: Pds, http: ClientSession) -> None:
    """After a migration only the new host knows the repository, and only its firehose carries it; a relay has all."""
    did, *others = world.accounts
    world.take()
    async with Pds(world, adopt=False) as second, Pds(world, everything=True) as relay:
        world.migrate(did, second.url)
        world.put(did, "com.example.note/a", {})
        world.put(others[0], "com.example.note/a", {})
        frames = world.take()
        assert [len(frames), world.accounts[did].pds] == [5, second.url]
        for host, statuses in ((pds, (400, 200)), (second, (200, 400)), (relay, (200, 200))):
            host.publish(frames)
            assert (
                tuple([(await json_of(http, host.url + SYNC + "getRepoStatus", did=d))[0] for d in (did, others[0])])
                == statuses
            )
        assert [host.stream.seq - world.seq for host in (pds, second, relay)] == [0, -1, 0]


async def test_the_firehose_replays_and_goes_on(world: World, pds: Pds, http: ClientSession) -> None:
    """``subscribeRepos`` of a PDS answers a cursor as the relay does, and both sides can end it."""
    world.take()
    start = world.seq
    pds.publish(first := world.run(10))
    async with http.ws_connect(f"{pds.url}{PATH}?cursor={start}", heartbeat=5) as socket:
        assert [await socket.receive_bytes() for _ in first] == first
        pds.publish(second := world.run(10))
        assert [await socket.receive_bytes() for _ in second] == second
        await pds.disconnect()
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    async with http.ws_connect(pds.url + PATH) as socket:
        await pds.stream.subscribed(2)
    assert pds.stream.cursors == [start, None]


async def fetch(http: ClientSession, service: Service, did: str) -> bytes:
    """The repository as a fault lets it through."""
    return await bytes_of(http, service.url + SYNC + "getRepo", did=did)


async def test_a_refusal_has_its_status_and_its_time_to_wait(world: World, pds: Pds, http: ClientSession) -> None:
    """429 with ``Retry-After``, as often as asked for; then, or elsewhere, all is well."""
    did = next(iter(world.accounts))
    fault = pds.inject(Refuse("getRepo?", status=429, retry_after="7", times=2))
    for _ in range(2):
        async with http.get(pds.url + SYNC + "getRepo", params={"did": did}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert (await json_of(http, pds.url + SYNC + "getRepoStatus", did=did))[0] == 200
    assert await fetch(http, pds, did)
    assert fault.injected == 2
    other = pds.inject(Refuse())
    assert (await json_of(http, pds.url + SYNC + "getRepo", did=did))[0] == 503
    pds.cure(other)
    assert await fetch(http, pds, did)


async def test_a_server_that_hangs_answers_when_released(world: World, pds: Pds, http: ClientSession) -> None:
    """The request is taken and counted, the answer comes only after the release."""
    did = next(iter(world.accounts))
    fault = pds.inject(Hang("getRepo"))
    waiting = asyncio.ensure_future(fetch(http, pds, did))
    await pds.requested("getRepo")
    for _ in range(3):  # others are served meanwhile
        assert (await json_of(http, pds.url + SYNC + "getLatestCommit", did=did))[0] == 200
    assert (fault.injected, waiting.done()) == (1, False)
    fault.release()
    assert await waiting == world.accounts[did].repository.export()


async def test_a_body_can_come_slowly_broken_off_or_altered(world: World, pds: Pds, http: ClientSession) -> None:
    """Slow is complete, broken off is an error of the connection, altered is complete and wrong."""
    did = next(iter(world.accounts))
    proper = world.accounts[did].repository.export()
    slow = pds.inject(Slow("getRepo", pieces=5, pause=0, times=1))
    assert await fetch(http, pds, did) == proper
    broken = pds.inject(BreakOff("getRepo", times=1))
    with pytest.raises(aiohttp.ClientPayloadError):
        await fetch(http, pds, did)
    cut = pds.inject(AlterBody("getRepo", lambda car: cut_car(car, Random(1), inside=False), times=1))
    shorter = await fetch(http, pds, did)
    assert len(read_car(shorter)[1]) < len(read_car(proper)[1])
    assert [fault.injected for fault in (slow, broken, cut)] == [1, 1, 1]
    assert await fetch(http, pds, did) == proper


async def test_a_fault_must_say_what_it_does(pds: Pds, http: ClientSession) -> None:
    """The base misbehaves in no way of its own: using it is an error of the test that does."""
    fault = pds.inject(RequestFault("getRepo"))
    async with http.get(pds.url + SYNC + "getRepo") as response:
        assert (response.status, fault.injected) == (500, 1)
