"""What a test does to the reference PDS: make accounts, write, take back, and ask what the PDS holds.

    async with RealPds.start() as pds:
        alice = await pds.create_account("alice")
        uri, cid, rev = await alice.put_record(collection, rkey, record)

To share one process among tests, start it with :class:`tests.pds.process.PdsProcess` (a session fixture) and let
each test :meth:`RealPds.attach` to it: the client belongs to the test's own event loop. Accounts never collide.

Records are written with ``validate: false``, so that any collection and any content that is valid in the AT data
model gets in. One record may be at most about 150 kB as JSON (the PDS's limit for a request).
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from tests.pds.process import PdsProcess

JsonObject = dict[str, Any]


class PdsError(Exception):
    """The PDS refused a request: ``status`` is HTTP's, ``error`` the protocol's name for it, such as RepoNotFound."""

    def __init__(self, method: str, status: int, error: str, message: str) -> None:
        super().__init__(f"{method}: {status} {error}: {message}")
        self.status = status
        self.error = error


class Written(NamedTuple):
    """A record as written: ``cid`` in text form, ``rev`` the repository's after the write."""

    uri: str
    cid: str
    rev: str


class Listed(NamedTuple):
    """A record as the PDS holds it."""

    uri: str
    cid: str
    value: JsonObject


def create(collection: str, rkey: str, value: JsonObject) -> JsonObject:
    """A write for :meth:`Account.apply_writes`: a record that isn't there yet."""
    return _write("create", collection, rkey, value=value)


def update(collection: str, rkey: str, value: JsonObject) -> JsonObject:
    """A write for :meth:`Account.apply_writes`: new content for a record that is there."""
    return _write("update", collection, rkey, value=value)


def delete(collection: str, rkey: str) -> JsonObject:
    """A write for :meth:`Account.apply_writes`: a record that is there goes."""
    return _write("delete", collection, rkey)


def _write(action: str, collection: str, rkey: str, **content: JsonObject) -> JsonObject:
    return {"$type": f"com.atproto.repo.applyWrites#{action}", "collection": collection, "rkey": rkey, **content}


class RealPds:
    """A client of one running PDS; ``url`` and ``plc_url`` are ``http://…``, ``firehose_url`` is ``ws://…``."""

    def __init__(self, process: PdsProcess, http: aiohttp.ClientSession) -> None:
        self.url = process.url
        self.plc_url = process.plc_url
        self.firehose_url = process.url.replace("http://", "ws://", 1)
        self._admin = "Basic " + base64.b64encode(f"admin:{process.admin_password}".encode()).decode()
        self._http = http

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[RealPds]:
        """A PDS of one's own, empty, for the length of the block; see :meth:`PdsProcess.start`."""
        with PdsProcess.start() as process:
            async with cls.attach(process) as pds:
                yield pds

    @classmethod
    @asynccontextmanager
    async def attach(cls, process: PdsProcess) -> AsyncIterator[RealPds]:
        """A client of a PDS that runs already."""
        async with aiohttp.ClientSession() as http:
            yield cls(process, http)

    async def create_account(self, name: str) -> Account:
        """A new account with a handle that begins with ``name`` (3 to 11 letters) and is free for sure."""
        handle = unique_handle(name)
        credentials = {"handle": handle, "email": f"{handle}@example.test", "password": secrets.token_hex(8)}
        answer = await self.call("com.atproto.server.createAccount", credentials)
        return Account(self, answer["did"], answer["handle"], answer["accessJwt"])

    async def list_records(self, did: str, collection: str) -> list[Listed]:
        """Every record of a collection, whatever the number of pages."""
        query = {"repo": did, "collection": collection, "limit": "100"}
        records = await self._pages("com.atproto.repo.listRecords", "records", query)
        return [Listed(record["uri"], record["cid"], record["value"]) for record in records]

    async def get_record(self, did: str, collection: str, rkey: str) -> Listed | None:
        """One record, or None if the repository has none of that name."""
        try:
            record = await self.query("com.atproto.repo.getRecord", repo=did, collection=collection, rkey=rkey)
        except PdsError as refusal:
            if refusal.error != "RecordNotFound":
                raise
            return None
        return Listed(record["uri"], record["cid"], record["value"])

    async def repo_status(self, did: str) -> JsonObject:
        """``{did, active, status?, rev?}``; raises :class:`PdsError` (RepoNotFound) for a deleted account."""
        return await self.query("com.atproto.sync.getRepoStatus", did=did)

    async def list_repos(self) -> list[JsonObject]:
        """Every repository of this host: ``{did, head, rev, active, status?}``."""
        return await self._pages("com.atproto.sync.listRepos", "repos", {"limit": "1000"})

    async def latest_commit(self, did: str) -> tuple[str, str]:
        """The CID (text) and the rev of the repository's head."""
        answer = await self.query("com.atproto.sync.getLatestCommit", did=did)
        return answer["cid"], answer["rev"]

    async def get_repo(self, did: str) -> bytes:
        """The whole repository, a CAR v1."""
        method = "com.atproto.sync.getRepo"
        async with self._http.get(f"{self.url}/xrpc/{method}", params={"did": did}) as response:
            await _raise_for_refusal(method, response)
            return await response.read()

    async def did_document(self, did: str) -> JsonObject:
        """The DID document as the PLC directory serves it."""
        async with self._http.get(f"{self.plc_url}/{did}") as response:
            await _raise_for_refusal("PLC", response)
            document: JsonObject = await response.json(content_type=None)
            return document

    async def frames(self, cursor: int | None = 0) -> AsyncGenerator[bytes, None]:
        """The raw messages of subscribeRepos after ``cursor``; None: from now on. Ends only when it is closed."""
        url = f"{self.firehose_url}/xrpc/com.atproto.sync.subscribeRepos"
        params = {} if cursor is None else {"cursor": str(cursor)}
        async with self._http.ws_connect(url, params=params, max_msg_size=0) as socket:
            async for message in socket:
                yield message.data

    async def delete_account(self, did: str) -> None:
        """The host removes the account for good: its records, its repository and its past events."""
        await self.call("com.atproto.admin.deleteAccount", {"did": did}, authorization=self._admin)

    async def take_down(self, did: str, *, applied: bool = True) -> None:
        """The host hides the account (status ``takendown``), or shows it again with ``applied=False``."""
        subject = {"$type": "com.atproto.admin.defs#repoRef", "did": did}
        body = {"subject": subject, "takedown": {"applied": applied}}
        await self.call("com.atproto.admin.updateSubjectStatus", body, authorization=self._admin)

    async def query(self, method: str, **params: str) -> JsonObject:
        """An XRPC query without authorization; raises :class:`PdsError`."""
        async with self._http.get(f"{self.url}/xrpc/{method}", params=params) as response:
            await _raise_for_refusal(method, response)
            answer: JsonObject = await response.json()
            return answer

    async def call(self, method: str, body: JsonObject | None, *, authorization: str | None = None) -> JsonObject:
        """An XRPC procedure; gives {} where the method answers nothing; raises :class:`PdsError`."""
        headers = {} if authorization is None else {"Authorization": authorization}
        async with self._http.post(f"{self.url}/xrpc/{method}", json=body, headers=headers) as response:
            await _raise_for_refusal(method, response)
            answer: JsonObject = await response.json() if response.content_type == "application/json" else {}
            return answer

    async def _pages(self, method: str, field: str, query: Mapping[str, str]) -> list[JsonObject]:
        rows: list[JsonObject] = []
        page = await self.query(method, **query)
        while page[field]:
            rows += page[field]
            if "cursor" not in page:
                break
            page = await self.query(method, **query, cursor=page["cursor"])
        return rows


@dataclass(slots=True)
class Account:
    """An account and the session of its owner."""

    pds: RealPds
    did: str
    handle: str
    access_jwt: str

    async def put_record(self, collection: str, rkey: str, record: JsonObject) -> Written:
        """Writes a record over whatever is there. The same content again makes no commit and keeps the rev."""
        body = {"repo": self.did, "collection": collection, "rkey": rkey, "record": record, "validate": False}
        return await self._written("com.atproto.repo.putRecord", body)

    async def create_record(self, collection: str, record: JsonObject, rkey: str | None = None) -> Written:
        """Writes a new record, under a TID of the PDS's choice if ``rkey`` is None."""
        body = {"repo": self.did, "collection": collection, "record": record, "validate": False}
        return await self._written("com.atproto.repo.createRecord", body if rkey is None else {**body, "rkey": rkey})

    async def delete_record(self, collection: str, rkey: str) -> str:
        """Removes a record, gives the rev after that. One that isn't there makes no commit and keeps the rev."""
        body = {"repo": self.did, "collection": collection, "rkey": rkey}
        return await self._rev(await self.call("com.atproto.repo.deleteRecord", body))

    async def apply_writes(self, writes: Sequence[JsonObject]) -> str:
        """Up to 200 of :func:`create`, :func:`update` and :func:`delete` in one commit; gives its rev."""
        body = {"repo": self.did, "validate": False, "writes": list(writes)}
        return await self._rev(await self.call("com.atproto.repo.applyWrites", body))

    async def update_handle(self, name: str) -> str:
        """Takes a new handle that begins with ``name`` (3 to 11 letters), and gives it."""
        handle = unique_handle(name)
        await self.call("com.atproto.identity.updateHandle", {"handle": handle})
        self.handle = handle
        return handle

    async def deactivate(self) -> None:
        """The owner hides the account until :meth:`activate`."""
        await self.call("com.atproto.server.deactivateAccount", {})

    async def activate(self) -> None:
        """The owner brings the account back."""
        await self.call("com.atproto.server.activateAccount", None)

    async def delete_account(self) -> None:
        """Removes the account for good; see :meth:`RealPds.delete_account`."""
        await self.pds.delete_account(self.did)

    async def call(self, method: str, body: JsonObject | None) -> JsonObject:
        """An XRPC procedure in the owner's name; raises :class:`PdsError`."""
        return await self.pds.call(method, body, authorization=f"Bearer {self.access_jwt}")

    async def _written(self, method: str, body: JsonObject) -> Written:
        answer = await self.call(method, body)
        return Written(answer["uri"], answer["cid"], await self._rev(answer))

    async def _rev(self, answer: JsonObject) -> str:
        if "commit" in answer:
            rev: str = answer["commit"]["rev"]
            return rev
        return (await self.pds.latest_commit(self.did))[1]


def unique_handle(name: str) -> str:
    """A handle of the test host's domain that nobody has."""
    return f"{name}-{secrets.token_hex(3)}.test"


async def _raise_for_refusal(method: str, response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    answer = await response.json() if response.content_type == "application/json" else {}
    raise PdsError(method, response.status, answer.get("error", ""), answer.get("message", text))
