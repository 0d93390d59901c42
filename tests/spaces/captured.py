"""The captured exchanges of a reference PDS (tests/captures/space-a), and a host that answers as it did.

The capture holds polls at four heads. From the operations and commits in them, :class:`CapturedHost` answers any
``since``, ``limit`` and ``cursor`` at any of these heads, byte for byte what the PDS signed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from indexer.cbor import cid_bytes, encode_json
from indexer.keys import PublicKey, signing_key
from indexer.simulator.archive import CID_LENGTH, varint
from indexer.simulator.dagcbor import Link, cid_of, encode
from indexer.simulator.service import Service, refused
from indexer.spaces.commit import read_commit

FOLDER: Final = Path(__file__).parent.parent / "captures" / "space-a"
PREFIXES: Final = ("xyz.quasigod.lab.letta.",)
_OPS: Final = "com.atproto.space.listRepoOps"

Body = dict[str, Any]


@cache
def _capture() -> Body:
    loaded: Body = json.loads((FOLDER / "exchanges.json").read_text(encoding="utf-8"))
    return loaded


def exchanges(method: str | None = None) -> list[Body]:
    """Every exchange, or those of one method, in order."""
    return [one for one in _capture()["exchanges"] if method in (None, one["method"])]


def step(number: int) -> Body:
    """The answer of one step, by its number in the capture."""
    body: Body = next(one for one in exchanges() if one["step"] == number)["body"]
    return body


DID: Final[str] = _capture()["did"]
SPACE: Final[str] = _capture()["space"]
DOCUMENT: Final[Body] = _capture()["didDoc"]
CAR: Final = (FOLDER / "24-getRepo.car").read_bytes()
WHOLE_LOG: Final = 21
POLLS: Final = ((4,), (5,), (6, 7, 8, 9, 10, 11), (12, 13, 14, 15, 16, 17), (18, 19, 20))
"""Steps of the polls that followed one another, each up to a commit."""


@cache
def key() -> PublicKey:
    """The author's key."""
    return signing_key(DOCUMENT, DID)


@cache
def expected() -> dict[str, str]:
    """URI and CID of every record at the end, as the PDS itself listed them."""
    listed = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return {entry["uri"]: entry["cid"] for entry in listed}


@cache
def commits() -> dict[str, Body]:
    """A commit of every head that the capture saw, by rev, oldest first."""
    found = (one["body"]["commit"] for one in exchanges(_OPS) if "commit" in one.get("body", {}))
    return {commit["rev"]: commit for commit in found}


@cache
def values() -> dict[str, Body]:
    """Every record's value that the capture holds, by CID."""
    operations = (op for one in exchanges(_OPS) for op in one["body"].get("ops", ()))
    return {op["cid"]: op["value"] for op in operations if "value" in op}


def log(head: str) -> list[Body]:
    """The operations up to ``head``, with values where they are the last word on their record there."""
    operations = [op for op in step(WHOLE_LOG)["ops"] if op["rev"] <= head]
    last = {(op["collection"], op["rkey"]): op["rev"] for op in operations}
    current = {op["cid"] for op in operations if last[op["collection"], op["rkey"]] == op["rev"]}
    return [bare(op) | ({"value": values()[op["cid"]]} if op["cid"] in current - {None} else {}) for op in operations]


def bare(operation: Body) -> Body:
    """An operation without its value."""
    return {name: field for name, field in operation.items() if name != "value"}


def page(head: str, since: str, cursor: str, limit: int) -> Body:
    """One answer of ``listRepoOps`` at ``head``."""
    after = cursor.partition("/")[0] or since
    following = [op for op in log(head) if op["rev"] > after]
    found = following[:limit]
    end = {"cursor": f"{found[-1]['rev']}/0"} if len(found) == limit else {"commit": commits()[head]}
    return {"ops": found} | end


def pages(head: str, since: str, limit: int) -> Iterator[Body]:
    """Every page of a poll."""
    cursor = ""
    while True:
        body = page(head, since, cursor, limit)
        yield body
        if "cursor" not in body:
            return
        cursor = body["cursor"]


def records_at(head: str) -> dict[str, str]:
    """Path and CID of every record at ``head``."""
    found: dict[str, str] = {}
    for op in log(head):
        path = f"{op['collection']}/{op['rkey']}"
        found.pop(path, None)
        if op["cid"] is not None:
            found[path] = op["cid"]
    return found


def rows_at(head: str) -> dict[str, str]:
    """URI and CID of every record under our prefix at ``head``."""
    return {f"{SPACE}/{DID}/{path}": cid for path, cid in records_at(head).items() if path.startswith(PREFIXES)}


def car_at(head: str) -> bytes:
    """The repository at ``head`` as ``getRepo`` gives it, made of the captured values and the captured commit."""
    commit = read_commit(commits()[head])
    assert commit is not None
    fields = {"ver": commit.version} | {name: getattr(commit, name) for name in ("hash", "ikm", "mac", "sig", "rev")}
    records = sorted(records_at(head).items(), key=lambda item: (len(item[0]), item[0]))
    blocks = [encode(fields), encode({path: Link(cid_bytes(cid)) for path, cid in records})]
    header = encode({"version": 1, "roots": [Link(cid_of(block)) for block in blocks]})
    blocks += [encode_json(values()[cid]) for _, cid in records]
    sections = (varint(CID_LENGTH + len(block)) + cid_of(block) + block for block in blocks)
    return varint(len(header)) + header + b"".join(sections)


class CapturedHost(Service):
    """The reference PDS at one of its heads.

    The whole CAR was captured at the last head only; with ``rebuilt`` those of the others are made of what was.
    """

    def __init__(self, head: str, *, rebuilt: bool = False) -> None:
        super().__init__()
        self.head = head
        self._rebuilt = rebuilt

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server answers."""
        return [
            web.post("/xrpc/com.atproto.server.createSession", self._create_session),
            web.get("/xrpc/com.atproto.space.listSpaces", self._list_spaces),
            web.get("/xrpc/com.atproto.space.listRepoOps", self._list_repo_ops),
            web.get("/xrpc/com.atproto.space.getRepo", self._get_repo),
        ]

    async def _create_session(self, request: web.Request) -> web.Response:
        return web.json_response({"accessJwt": "a", "refreshJwt": "r", "handle": "sp1.test", "did": DID})

    async def _list_spaces(self, request: web.Request) -> web.Response:
        return web.json_response(step(1))

    async def _list_repo_ops(self, request: web.Request) -> web.Response:
        query = request.query
        return web.json_response(
            page(self.head, query.get("since", ""), query.get("cursor", ""), int(query.get("limit", "1000")))
        )

    async def _get_repo(self, request: web.Request) -> web.Response:
        if self.head != max(commits()) and self._rebuilt:
            return web.Response(body=car_at(self.head), content_type="application/vnd.ipld.car")
        if self.head != max(commits()):
            return refused("RepoNotFound", "not captured")
        return web.Response(body=CAR, content_type="application/vnd.ipld.car")
