"""The daemon within the test's own process, where it can be met in moments that no process can be caught in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from indexer.config import load_settings
from indexer.daemon import Daemon, opened_store
from indexer.errors import SchemaError
from indexer.pipeline import Pipeline
from indexer.simulator import Relay
from indexer.store.lease import LeaseLostError, Leases
from tests.daemon_process import eventually


async def _writes(daemon: Daemon) -> bool:
    return daemon.role() == "writer"


@asynccontextmanager
async def writing(database: str, folder: Path) -> AsyncIterator[tuple[Daemon, asyncio.Task[None]]]:
    """A daemon that is the writer, and its run."""
    async with Relay() as relay:
        given = {"source": (relay.url,), "trust": "relay", "listen": "127.0.0.1:0"}
        settings = load_settings({**given, "database_url": database, "data_dir": str(folder)}, {}, None)
        async with opened_store(settings, makes=True) as store:
            daemon = Daemon(settings, store, announce=lambda _: None)
            run = asyncio.create_task(daemon.run())
            try:
                await eventually(partial(_writes, daemon))
                yield daemon, run
            finally:
                run.cancel()
                await asyncio.wait([run])


async def test_broken_schema_found_at_the_end_is_told_as_ever(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with our own state comes out as itself, also from the last commit: the exit code hangs on it."""

    async def flush(self: Pipeline) -> None:
        raise SchemaError("the schema is gone")

    async with writing(database, tmp_path) as (daemon, run):
        monkeypatch.setattr(Pipeline, "flush", flush)
        daemon.stop()
        with pytest.raises(SchemaError, match="the schema is gone"):
            await run


async def test_fault_at_the_moment_the_lease_is_lost(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fails ends the daemon, even if the lease is lost in the same moment: it doesn't go on without it."""
    both = asyncio.Event()

    def failing(error: Exception) -> Callable[..., Awaitable[None]]:
        async def fail(*_: object) -> None:
            await both.wait()
            raise error

        return fail

    monkeypatch.setattr(Leases, "renew", failing(LeaseLostError()))
    monkeypatch.setattr("indexer.store.Store.watch", failing(SchemaError("broken")))
    async with writing(database, tmp_path) as (_, run):
        await asyncio.sleep(1.5)  # until the renewal has begun
        both.set()
        with pytest.raises(SchemaError, match="broken"):
            async with asyncio.timeout(10):
                await asyncio.shield(run)
