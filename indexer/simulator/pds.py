"""A PDS on loopback: the public methods of ``com.atproto.sync`` an indexer needs, and a firehose.

It also stands in for a relay (``everything``): then it answers for all accounts, wherever they are hosted.
Lexicons ``com.atproto.sync.*``, ``com.atproto.repo.describeRepo``, ``com.atproto.identity.resolveHandle``; handle
resolution over HTTPS well-known as in the handle specification (here over HTTP, by the Host header).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from aiohttp import WSCloseCode, web

from indexer.simulator import events
from indexer.simulator.dagcbor import cid_text
from indexer.simulator.network import Account, Network
from indexer.simulator.service import Service, refused
from indexer.simulator.stream import PATH, Stream

CAR = "application/vnd.ipld.car"
_HIDDEN = {"deactivated": "RepoDeactivated", "suspended": "RepoSuspended", "takendown": "RepoTakendown"}


class Pds(Service):
    """A host of those accounts of a network that name its URL as theirs.

    On entering, all accounts come to it (``adopt``, the default) and new ones will; with ``adopt`` False they only
    come by :meth:`Network.migrate`. ``everything`` makes it a relay. ``stream`` is its firehose.
    """

    def __init__(self, network: Network, *, port: int = 0, adopt: bool = True, everything: bool = False) -> None:
        super().__init__(port=port)
        self.stream = Stream()
        self._network = network
        self._adopt = adopt and not everything
        self._everything = everything
        self._open: set[web.WebSocketResponse] = set()

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server answers."""
        sync = "/xrpc/com.atproto.sync."
        return [
            web.get(sync + "getRepo", self._get_repo),
            web.get(sync + "getRepoStatus", self._get_repo_status),
            web.get(sync + "getLatestCommit", self._get_latest_commit),
            web.get(sync + "getRecord", self._get_record),
            web.get(sync + "listRepos", self._list_repos),
            web.get(sync + "listReposByCollection", self._list_repos_by_collection),
            web.get("/xrpc/com.atproto.repo.describeRepo", self._describe_repo),
            web.get("/xrpc/com.atproto.identity.resolveHandle", self._resolve_handle),
            web.get("/.well-known/atproto-did", self._well_known),
            web.get(PATH, self._subscribe),
        ]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._adopt:
            self._network.pds = self.url
            for account in self._network.accounts.values():
                account.pds = self.url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()
        await super().__aexit__(kind, error, trace)

    def publish(self, frames: Iterable[bytes]) -> None:
        """Put those frames that concern accounts hosted here on the firehose."""
        self.stream.publish(frame for frame in frames if self._everything or self._concerned(frame))

    async def disconnect(self, code: int = WSCloseCode.SERVICE_RESTART) -> None:
        """Close every firehose connection."""
        await asyncio.gather(*(socket.close(code=code) for socket in list(self._open)))

    def _concerned(self, frame: bytes) -> bool:
        body = events.parse(frame)[1]
        account = self._network.accounts.get(body.get("repo") or body.get("did") or "")
        return account is not None and self._hosts(account)

    def _hosts(self, account: Account) -> bool:
        return self._everything or account.pds == self.url

    def _find(self, did: str | None) -> Account | web.Response:
        """The account if its repository may be read here, else the reference's refusal."""
        account = self._network.accounts.get(did or "")
        if account is None or not self._hosts(account) or account.status == "deleted":
            return refused("RepoNotFound", f"Could not find repo for DID: {did}")
        if not account.active:
            return refused(_HIDDEN.get(account.status, "RepoNotFound"), f"Repo is {account.status}: {did}")
        return account

    async def _get_repo(self, request: web.Request) -> web.Response:
        found = self._find(request.query.get("did"))
        if isinstance(found, web.Response):
            return found
        return web.Response(body=found.repository.export(), content_type=CAR)

    async def _get_record(self, request: web.Request) -> web.Response:
        found = self._find(request.query.get("did"))
        if isinstance(found, web.Response):
            return found
        path = f"{request.query.get('collection')}/{request.query.get('rkey')}"
        return web.Response(body=found.repository.proof(path), content_type=CAR)

    async def _get_latest_commit(self, request: web.Request) -> web.Response:
        found = self._find(request.query.get("did"))
        if isinstance(found, web.Response):
            return found
        return web.json_response({"cid": cid_text(found.repository.cid), "rev": found.repository.rev})

    async def _get_repo_status(self, request: web.Request) -> web.Response:
        did = request.query.get("did")
        account = self._network.accounts.get(did or "")
        if account is None or not self._hosts(account) or account.status == "deleted":
            return refused("RepoNotFound", f"Could not find repo for DID: {did}")
        return web.json_response(_status(account))

    async def _list_repos(self, request: web.Request) -> web.Response:
        hosted = [a for a in self._network.accounts.values() if self._hosts(a) and a.status != "deleted"]
        page, cursor = _page(hosted, request)
        repos = [{"head": cid_text(a.repository.cid), "rev": a.repository.rev} | _status(a) for a in page]
        return web.json_response({"repos": repos} | cursor)

    async def _list_repos_by_collection(self, request: web.Request) -> web.Response:
        prefix = request.query.get("collection", "") + "/"
        having = [
            account
            for account in self._network.accounts.values()
            if self._hosts(account) and account.active and _has(account, prefix)
        ]
        page, cursor = _page(having, request)
        return web.json_response({"repos": [{"did": account.did} for account in page]} | cursor)

    async def _describe_repo(self, request: web.Request) -> web.Response:
        found = self._find(self._did_of(request.query.get("repo", "")))
        if isinstance(found, web.Response):
            return found
        return web.json_response(
            {
                "handle": found.handle,
                "did": found.did,
                "didDoc": found.document(),
                "collections": sorted({path.split("/")[0] for path in found.repository.records}),
                "handleIsCorrect": True,
            }
        )

    async def _resolve_handle(self, request: web.Request) -> web.Response:
        did = self._did_of(request.query.get("handle", ""))
        return web.json_response({"did": did}) if did else refused("HandleNotFound", "Unable to resolve handle")

    async def _well_known(self, request: web.Request) -> web.Response:
        did = self._did_of(request.host.split(":")[0])
        return web.Response(text=did) if did else web.Response(status=404, text="User not found")

    def _did_of(self, name: str) -> str | None:
        """The DID of an account hosted here, by its handle or DID."""
        hosted = (a for a in self._network.accounts.values() if self._hosts(a) and a.status != "deleted")
        return next((account.did for account in hosted if name in (account.did, account.handle)), None)

    async def _subscribe(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self._open.add(socket)
        asked = request.query.get("cursor")
        following = asyncio.ensure_future(self.stream.follow(int(asked) if asked else None, socket.send_bytes))
        reading = asyncio.ensure_future(socket.receive())  # answers pings, and returns when the subscriber leaves
        try:
            await asyncio.wait((following, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(socket)
            following.cancel()
            reading.cancel()
            await asyncio.gather(following, reading, return_exceptions=True)
            await socket.close()
        return socket


def _status(account: Account) -> dict[str, object]:
    if account.active:
        return {"did": account.did, "active": True, "rev": account.repository.rev}
    return {"did": account.did, "active": False, "status": account.status}


def _has(account: Account, prefix: str) -> bool:
    return any(path.startswith(prefix) for path in account.repository.records)


def _page(accounts: list[Account], request: web.Request) -> tuple[list[Account], dict[str, str]]:
    """``limit`` accounts after ``cursor`` (a DID) in DID order, and the next cursor if more follow."""
    limit = int(request.query.get("limit", "500"))
    after = request.query.get("cursor", "")
    following = sorted((account for account in accounts if account.did > after), key=lambda account: account.did)
    page = following[:limit]
    return page, {"cursor": page[-1].did} if len(following) > limit else {}
