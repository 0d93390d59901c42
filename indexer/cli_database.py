"""What the commands about the database do: ``db init``, ``db url`` and ``db psql``."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, unquote, urlsplit

from indexer.config import Settings
from indexer.daemon import opened_store
from indexer.embedded import EmbeddedPostgres, binaries


async def initialize(settings: Settings) -> bool:
    """Create the schema, also beside other tables; False where it is there."""
    async with opened_store(settings) as store:
        return await store.initialize()


async def url_of(settings: Settings) -> str:
    """The URL of the database; an embedded one is started if it does not run."""
    async with _running_database(settings) as dsn:
        return dsn


async def psql(settings: Settings, arguments: list[str]) -> int:
    """Run psql to its end. The URL goes in by the environment, where other users don't see it."""
    program = shutil.which("psql") or str(binaries() / "psql")
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # ctrl-C is for psql alone
    async with _running_database(settings) as dsn:
        variables = {**os.environ, **connection_variables(dsn)}
        process = await asyncio.create_subprocess_exec(program, *arguments, env=variables)
        return await process.wait()


@asynccontextmanager
async def _running_database(settings: Settings) -> AsyncIterator[str]:
    """The URL of the database, embedded or not; the embedded server runs at least as long as the block."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    try:
        yield await embedded.start()
    finally:
        await embedded.stop()


def connection_variables(dsn: str) -> dict[str, str]:
    """What libpq reads from the environment in place of a connection URL."""
    parts = urlsplit(dsn)
    found = {
        "host": parts.hostname,
        "port": str(parts.port) if parts.port else None,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
        **dict(parse_qsl(parts.query)),
    }
    return {f"PG{name.upper()}": value for name, value in found.items() if value}
