"""The simulated host of spaces, held against the captured exchanges of the reference PDS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from indexer.simulator.archive import read_car
from indexer.simulator.dagcbor import cid_of, decode
from indexer.simulator.network import Network
from indexer.simulator.repository import Write
from indexer.simulator.spaces import SpacesPds

CAPTURE = Path(__file__).parent.parent / "captures" / "space-a"
EXCHANGES: list[dict[str, Any]] = json.loads((CAPTURE / "exchanges.json").read_text(encoding="utf-8"))["exchanges"]
TYPE = "xyz.quasigod.lab.letta.space"
METHODS = ("listSpaces", "listRepoOps", "getRepo", "getLatestCommit")


class Twin:
    """A simulated account that does what the captured one did: the same operations in the same order."""

    def __init__(self, pds: SpacesPds, network: Network, session: aiohttp.ClientSession) -> None:
        self.pds = pds
        self.did = network.create_account().did
        self.space = pds.create_space(self.did, TYPE, "self")
        self._network = network
        self._session = session
        self._token = ""
        self._revs: dict[str, str] = {}

    async def sign_in(self) -> None:
        """Log in with an app password."""
        url = f"{self.pds.url}/xrpc/com.atproto.server.createSession"
        content = {"identifier": self.did, "password": self.pds.add_app_password(self.did)}
        async with self._session.post(url, json=content) as response:
            self._token = (await response.json())["accessJwt"]

    def catch_up(self, rev: str) -> None:
        """Do what the captured account did up to ``rev``; values are its own where they were captured."""
        values = {
            op["cid"]: op["value"] for one in EXCHANGES for op in one.get("body", {}).get("ops", ()) if "value" in op
        }
        log = next(one for one in EXCHANGES if one["step"] == 21)["body"]["ops"]
        for op in log:
            if op["rev"] <= rev and op["rev"] not in self._revs:
                value = None if op["cid"] is None else values.get(op["cid"], {"cid": op["cid"]})
                write = Write(f"{op['collection']}/{op['rkey']}", value)
                self._revs[op["rev"]] = self.pds.write(self.space, self.did, write)

    async def ask(self, exchange: dict[str, Any]) -> tuple[int, str, bytes]:
        """Status, media type and body of the answer to a captured request, its DID, space and revs translated."""
        params = {name: self._translated(text) for name, text in exchange["params"].items()}
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self.pds.url}/xrpc/{exchange['method']}"
        async with self._session.get(url, params=params, headers=headers) as response:
            return response.status, response.content_type, await response.read()

    def _translated(self, text: str) -> str:
        if text.startswith("at://"):
            return self.space
        if text.startswith("did:"):
            return self.did
        rev, slash, index = text.partition("/")
        return self._revs.get(rev, rev) + slash + index


@pytest.fixture
async def twin() -> AsyncIterator[Twin]:
    """An account logged in to an empty space."""
    network = Network()
    async with SpacesPds(network) as pds, aiohttp.ClientSession() as session:
        twin = Twin(pds, network, session)
        await twin.sign_in()
        yield twin


def shape(value: Any, key: str = "") -> Any:
    """A JSON value with its leaves replaced by what they are: the form of an answer without its content."""
    if key == "value":
        return "value"
    if isinstance(value, dict):
        return {name: shape(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if key in ("collection", "rkey", "error", "ver", "$type") or value is None:
        return value
    return "bytes " + str(len(value)) if key == "$bytes" else type(value).__name__


def seen_by(number: int) -> str:
    """The head at a step of the capture: what was written when it was taken."""
    heads = [
        one["body"]["commit"]["rev"] for one in EXCHANGES if one["step"] >= number and "commit" in one.get("body", {})
    ]
    return heads[0] if heads else "z"


async def test_answers_have_the_captured_form(twin: Twin) -> None:
    """Asked what the reference PDS was asked, at the same heads, it gives answers of the same form, page by page."""
    compared = 0
    for exchange in EXCHANGES:
        if exchange["method"].rpartition(".")[2] not in METHODS:
            continue
        if exchange["step"] > 3:
            twin.catch_up(seen_by(exchange["step"]))
        status, media_type, body = await twin.ask(exchange)
        assert (status, media_type) == (exchange["status"], exchange["contentType"])
        if "file" not in exchange:
            assert shape(json.loads(body)) == shape(exchange["body"]), exchange["step"]
        compared += 1
    assert compared == len(EXCHANGES) - 1  # listRecords is left out: nobody asks for it


@pytest.mark.parametrize(("step", "name"), [(24, "24-getRepo.car"), (25, "25-getRepo.car")])
async def test_archives_have_the_captured_form(twin: Twin, step: int, name: str) -> None:
    """The CAR has the same roots, the same index keys in the same order, and the same records where it has any."""
    twin.catch_up("z")
    exchange = next(one for one in EXCHANGES if one["step"] == step)
    _, _, body = await twin.ask(exchange)
    theirs, ours = read_car((CAPTURE / name).read_bytes()), read_car(body)
    assert len(ours[0]) == len(theirs[0]) == 2
    assert [cid for cid, _ in ours[1][:2]] == ours[0]
    assert shape_of_commit(ours[1][0][1]) == shape_of_commit(theirs[1][0][1])
    assert list(decode(ours[1][1][1])[0]) == list(decode(theirs[1][1][1])[0])
    assert ours[1][2:] == theirs[1][2:]
    assert all(cid == cid_of(block) for cid, block in ours[1])


def shape_of_commit(block: bytes) -> dict[str, object]:
    """Fields of a commit, with the length of what are bytes."""
    return {name: len(field) if isinstance(field, bytes) else type(field) for name, field in decode(block)[0].items()}


async def test_hash_is_the_captured_one(twin: Twin) -> None:
    """The same records have the hash that the reference PDS signed: the simulator's own LtHash is right."""
    twin.catch_up("z")
    exchange = next(one for one in EXCHANGES if one["step"] == 23)
    _, _, body = await twin.ask(exchange)
    assert json.loads(body)["commit"]["hash"] == exchange["body"]["commit"]["hash"]


async def test_others_see_nothing(twin: Twin) -> None:
    """Without a login, with a wrong one, or for another's repository, there is no answer."""
    exchange = next(one for one in EXCHANGES if one["step"] == 4)
    twin.did, did = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", twin.did
    assert (await twin.ask(exchange))[0] == 403
    twin.did = did
    twin._token = ""
    assert (await twin.ask(exchange))[0] == 401
    twin._token = "x"
    assert (await twin.ask(exchange))[0] == 400
