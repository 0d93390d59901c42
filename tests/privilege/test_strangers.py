"""What strangers answer, in documents, refusals and headers, is told by no log, metric, page or state, at any level."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from websockets.asyncio.server import ServerConnection

from indexer.simulator import events
from indexer.simulator.http_faults import RequestFault
from indexer.simulator.network import Account, Network
from indexer.simulator.pds import Pds
from indexer.simulator.plc import Directory
from indexer.simulator.repository import Write
from indexer.simulator.service import Handler
from tests.daemon_process import daemon, eventually
from tests.frames import AGENT, VALID, error_frame, frame
from tests.indexing import Sql
from tests.networks import cursor_at
from tests.privilege.telling import asked, kept, said
from tests.sources.peers import host

CANARY = "qcanary7x"
SERVICE = {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer"}


@dataclass(frozen=True, slots=True)
class Words:
    """An answer: status, body, media type, headers."""

    status: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Says(RequestFault):
    """The host answers requests with ``part`` in them by these words, with the canary in every header it can."""

    def __init__(self, part: str, words: Words) -> None:
        super().__init__(part)
        self._words = words

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """That answer."""
        words = self._words
        headers = {"X-Canary": CANARY, "Server": CANARY, "Retry-After": CANARY, "ETag": CANARY, **words.headers}
        return web.Response(
            status=words.status, reason=CANARY, body=words.body, content_type=words.kind, headers=headers
        )


ERROR = f'{{"error": "{CANARY}", "message": "{CANARY}", "{CANARY}": ["{CANARY}"]}}'.encode()
AWAY = f'{{"error": "RepoNotFound", "message": "{CANARY}"}}'.encode()
TEXT = CANARY.encode() * 50
REDIRECTS = (f"/{CANARY}?{CANARY}#{CANARY}", f"https://{CANARY}:{CANARY}@127.0.0.1:1/{CANARY}", f"{CANARY}://{CANARY}")
ANSWERS = (  # of a directory, or of an account's host
    Words(500, ERROR),
    Words(400, ERROR),
    Words(403, TEXT, "text/html"),
    Words(400, AWAY),
    Words(404, ERROR),
    Words(200, TEXT, "text/plain"),
    Words(200, TEXT, "application/vnd.ipld.car"),
    Words(200, TEXT, "application/vnd.ipld.car", {"Content-Encoding": CANARY}),
    *(Words(302, TEXT, "text/html", {"Location": target}) for target in REDIRECTS),
)


BUSY = Words(429, ERROR)  # of a host of its own, since it is left alone from then on


def documents(account: Account) -> list[Words]:
    """DID documents with the canary where a reader could stumble over it."""
    sound = account.document()
    method = {"id": f"{account.did}#atproto", "type": "Multikey", "controller": account.did}
    changes: list[dict[str, Any]] = [
        {"id": f"did:plc:{CANARY}"},
        {"id": CANARY},
        *({"verificationMethod": [method | {"publicKeyMultibase": text}]} for text in (CANARY, "z" + CANARY)),
        {"verificationMethod": [method | {"type": CANARY}]},
        {"verificationMethod": CANARY},
        {"service": [SERVICE | {"serviceEndpoint": CANARY}]},
        {"service": [SERVICE | {"serviceEndpoint": f"http://127.0.0.1:1/{CANARY}?{CANARY}"}]},
        {"service": [SERVICE | {"serviceEndpoint": f"http://{CANARY}:{CANARY}@127.0.0.1:1"}]},
        {"alsoKnownAs": [f"at://{CANARY}.example.com", f"at://{CANARY}"], "service": [], CANARY: CANARY},
    ]
    whole = [json.dumps(sound | change).encode() for change in changes]
    return [Words(200, body) for body in (*whole, CANARY.encode(), f'"{CANARY}"'.encode(), f'["{CANARY}"]'.encode())]


def spoiled(network: Network, directory: Directory, pds: Pds, busy: Pds) -> list[Account]:
    """An account for each way in which its document or its repository can't be had."""
    accounts = [network.create_account()]
    accounts[0].pds = busy.url
    busy.inject(Says("", BUSY))
    for service, words in ((service, words) for service in (directory, pds) for words in ANSWERS):
        account = network.create_account()
        service.inject(Says(account.did.rpartition(":")[2], words))
        accounts.append(account)
    for number in range(len(documents(accounts[0]))):
        account = network.create_account()
        directory.inject(Says(account.did.rpartition(":")[2], documents(account)[number]))
        accounts.append(account)
    return accounts


class Source:
    """A firehose that says the canary in every way of ending a connection, then sends all at once and is quiet."""

    def __init__(self, frames: list[bytes]) -> None:
        self.connections = 0
        self._frames = frames

    async def follow(self, connection: ServerConnection) -> None:
        """One connection: closed with words, an error frame, both; the fourth stays."""
        self.connections += 1
        if self.connections in (2, 3):
            await connection.send(error_frame(CANARY, CANARY))
        if self.connections < 4:
            await connection.close(4000 + self.connections, CANARY)
            return
        for one in self._frames:
            await connection.send(one)
        await connection.wait_closed()


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_no_stranger_is_quoted(database: str, sql: Sql, log_format: str) -> None:
    """The whole daemon, at its most talkative, amid hosts that answer with a word in everything: it is told nowhere."""
    network = Network(clock=lambda: datetime.now(UTC))
    async with Directory(network) as directory, Pds(network) as pds, Pds(network, adopt=False) as busy:
        sound = network.create_account(f"{CANARY}.test")
        failing = spoiled(network, directory, pds, busy)
        for account in (sound, *failing):
            network.put(account.did, f"{AGENT}/self", VALID[AGENT]() | {"name": CANARY, CANARY: CANARY})
        for account in failing:  # has changed since, unseen: it has to be fetched
            network.apply(account.did, [Write(f"{AGENT}/self", None)])
            network.sync(account.did)
        network.emit(events.identity(sound.did, f"{CANARY}.example.com", **network.stamp()))
        network.emit(frame(f"#{CANARY}", {CANARY: CANARY, **network.stamp()}))
        source = Source(network.take())
        async with host(source.follow) as where:
            arguments = (
                *("--plc-url", directory.url, "--allow-private-hosts", "--database-url", database),
                *("--source", where.url.partition("/xrpc")[0], "--trust", "verify"),
            )
            async with daemon(*arguments, "--log-level", "debug", "--log-format", log_format) as process:
                await process.announced()
                told: list[str] = []

                async def tried() -> bool:
                    told.extend(await kept(sql))
                    return not {account.did for account in failing} & await untried(sql)

                await eventually(lambda: names_agent(sql))
                await cursor_at(sql, network.seq)
                await eventually(tried)
                told += [*await asked(process), *await kept(sql)]
                assert await process.stop() == 0
                told += said(process)
    assert source.connections == 4
    assert sum("want not met yet" in line for line in told) > len(ANSWERS) + len(documents(sound))
    assert [line for line in told if CANARY in line] == []


async def names_agent(sql: Sql) -> bool:
    """Whether the sound account's record is there, canary and all."""
    return bool(await sql.fetchval("select true from letta.agent where name = $1 and verified", CANARY))


async def untried(sql: Sql) -> set[str]:
    """The accounts whose repositories are wanted and whose trouble isn't known yet."""
    rows = await sql.fetch("select did from letta.repo where want is not null and last_error is null")
    return {row["did"] for row in rows}
