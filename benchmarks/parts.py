"""The indexer's own parts over a database, joined as the daemon joins them, and databases to put them over."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from indexer.config import load_settings
from indexer.daemon import build_pipeline, keep_out_of_collections
from indexer.embedded import EmbeddedPostgres
from indexer.intake import Intake
from indexer.keys import PublicKey
from indexer.metrics import Metrics
from indexer.pipeline import Pipeline
from indexer.sources.base import Source
from indexer.store import Store
from indexer.store.statements import schema_sql
from indexer.trust import Proof, Tracked, Word

if TYPE_CHECKING:
    Sql: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Sql = asyncpg.Connection

TEMPLATE = "template_of_benchmarks"


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands between a source and SQL."""

    store: Store
    metrics: Metrics
    pipeline: Pipeline
    intake: Intake

    def server_time(self) -> float:
        """Seconds of processor time that the writer's process of the server, which is on this machine, has taken."""
        fields = Path(f"/proc/{self.store._processes['write']}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check(self, last: int) -> None:
        """Raise unless everything up to ``last`` was committed and nothing was dropped: a figure has to be of work."""
        dropped = {reason: count for reason, count in self.metrics._dropped.items() if count}
        if self.intake.committed != last or dropped:
            raise AssertionError(f"committed {self.intake.committed} of {last}, dropped {dropped}")


@asynccontextmanager
async def opened_parts(url: str, source: Source, trust: str, keys: Mapping[str, str]) -> AsyncIterator[Parts]:
    """The parts over the database at ``url``, their writer running, with the settings' defaults.

    ``trust`` is that of the setting; with ``verify`` the accounts' ``keys`` (did:key by DID) are at hand.
    """

    async def dsn() -> str:
        return url

    settings = load_settings({"database_url": url, "data_dir": "."}, {}, None)
    store = Store(dsn)
    await store.open()
    metrics = Metrics(clock=time)
    pipeline = build_pipeline(settings, store, metrics)
    tracked = Tracked()
    pipeline.listen(tracked.learn)
    for did, key in keys.items():
        tracked.learn_key(did, PublicKey.parse(key))
    intake = Intake(pipeline, source, Proof(pipeline, tracked) if trust == "verify" else Word(pipeline), None)
    keep_out_of_collections()
    writer = asyncio.create_task(pipeline.write())
    try:
        yield Parts(store, metrics, pipeline, intake)
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        await store.close()


class Server:
    """An embedded PostgreSQL of the run's own, with the durability that the daemon's has."""

    def __init__(self) -> None:
        self._server = EmbeddedPostgres(None, temporary=True)
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Start it, and make the database that others are copies of."""
        await self._server.start()
        await self._administer(f"create database {TEMPLATE} template template0")
        connection = await asyncpg.connect(self._url(TEMPLATE))
        await connection.execute(schema_sql())
        await connection.close()

    async def stop(self) -> None:
        """Stop it and remove its data."""
        await self._server.stop()

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The URL of a fresh database with our schema; dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        await self._administer(f"create database {name} template {TEMPLATE}")
        try:
            yield self._url(name)
        finally:
            await self._administer(f"drop database {name} with (force)")
            await self._administer("checkpoint")  # what one figure left to write is no part of the next

    async def version(self) -> str:
        """The server's version."""
        connection = await asyncpg.connect(self._server.dsn)
        try:
            return str(await connection.fetchval("show server_version"))
        finally:
            await connection.close()

    def _url(self, name: str) -> str:
        return urlunsplit(urlsplit(self._server.dsn)._replace(path=f"/{name}"))

    async def _administer(self, sql: str) -> None:
        connection = await asyncpg.connect(self._server.dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()
