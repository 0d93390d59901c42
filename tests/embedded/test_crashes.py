"""The embedded PostgreSQL after any kind of end: killed, hung, shared, half made. The data is there."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from indexer.embedded import cluster, folder
from indexer.embedded.account import server_account
from indexer.errors import EmbeddedError
from tests.embedded.servers import Make, alive, ask, exists, mode, needs_root, postmaster, socket_dir
from tests.postgres import chosen_bin_dir

NUMBERS = itertools.count()
REPOSITORY = Path(__file__).parents[2]
OWNER = """
import asyncio, sys
from pathlib import Path
from indexer.embedded import EmbeddedPostgres
async def main():
    folder, programs = (Path(word) if word else None for word in sys.argv[1:])
    server = EmbeddedPostgres(folder, temporary=folder is None, fast_for_tests=True, bin_dir=programs)
    print(await server.start(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@asynccontextmanager
async def owner(data_dir: Path | None) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Another process that starts the server and then does nothing; killed at the latest when the block ends."""
    words = ["" if path is None else str(path) for path in (data_dir, chosen_bin_dir())]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, *words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def remember(url: str) -> int:
    """Store a number that :func:`remembered` finds again, in the place of any older one; return it."""
    number = next(NUMBERS)
    connection = await asyncpg.connect(url)
    await connection.execute(f"drop table if exists kept; create table kept as select {number} as a")
    await connection.close()
    return number


async def remembered(url: str) -> object:
    """Return what :func:`remember` stored last."""
    return await ask(url, "select a from kept")


async def test_a_killed_server_is_started_again(make: Make, data_dir: Path) -> None:
    """After kill -9 of the server, the same URL leads to the same data; asked twice, nothing more happens."""
    server = make(data_dir)
    url = await server.start()
    kept = await remember(url)
    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert await server.ensure_running() == url
    assert await remembered(url) == kept
    running = postmaster(data_dir)
    assert await server.ensure_running() == url
    assert postmaster(data_dir) == running


async def test_the_server_of_a_killed_process_is_taken_over(make: Make, data_dir: Path) -> None:
    """After kill -9 of the process that started it, the next one uses the server that runs on, and stops it."""
    async with owner(data_dir) as (url, process):
        kept = await remember(url)
        process.kill()
        await process.wait()
    running = postmaster(data_dir)
    server = make(data_dir)
    assert await remembered(await server.start()) == kept
    assert postmaster(data_dir) == running
    await server.stop()
    assert not alive(running)


async def test_both_killed(make: Make, data_dir: Path) -> None:
    """After kill -9 of server and process, the next one starts a new server on the same data."""
    async with owner(data_dir) as (url, process):
        kept = await remember(url)
        process.kill()
        os.kill(postmaster(data_dir), signal.SIGKILL)
        await process.wait()
    assert await remembered(await make(data_dir).start()) == kept


async def test_a_backend_that_outlives_its_server_is_ended(
    make: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed server's child, still busy with a query, is gone before a new server touches the data."""
    monkeypatch.setattr(cluster, "_DYING", 0.2)
    server = make(data_dir)
    url = await server.start()
    kept = await remember(url)
    connection = await asyncpg.connect(url)
    backend = connection.get_server_pid()
    endless = asyncio.ensure_future(
        connection.execute("select count(*) from (select generate_series(1, 1e12::bigint)) s")
    )
    while not await ask(url, f"select state = 'active' from pg_stat_activity where pid = {backend}"):
        pass
    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert await remembered(await server.ensure_running()) == kept
    assert not alive(backend)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await endless


async def test_a_hung_server_is_replaced(make: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that no longer answers is ended, by force if need be, and a new one started."""
    monkeypatch.setattr(cluster, "_DEAF", 1)
    monkeypatch.setattr(cluster, "_HUNG", 0.2)
    monkeypatch.setattr(cluster, "_DYING", 0.2)
    server = make(data_dir)
    kept = await remember(await server.start())
    hung = postmaster(data_dir)
    os.kill(hung, signal.SIGSTOP)
    assert await remembered(await server.ensure_running()) == kept
    assert not alive(hung)


async def test_lock_files_that_name_a_living_stranger(make: Make, data_dir: Path) -> None:
    """Lock files of a dead server don't stop a start, even if their process id is somebody else's by now."""
    server = make(data_dir)
    kept = await remember(await server.start())
    await server.stop()
    pgdata = data_dir / "postgres"
    account = server_account(pgdata.stat().st_uid)
    switch = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.switch else {}
    stranger = subprocess.Popen(["sleep", "600"], **switch)  # type: ignore[call-overload]  # noqa: ASYNC220
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (pgdata / name).write_text(f"{stranger.pid}\n{pgdata}\n1\n5432\n{pgdata}\n\n  1 1\nready   \n")
            os.chown(pgdata / name, account.uid, account.gid)
        assert await remembered(await server.start()) == kept
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_two_share_a_data_folder(make: Make, data_dir: Path) -> None:
    """The second joins the first one's server; who started it stops it; the other then starts it again."""
    first, second = make(data_dir), make(data_dir)
    urls = await asyncio.gather(first.start(), second.start())
    assert urls[0] == urls[1]
    kept = await remember(urls[0])
    guest, starter = (second, first) if first._owner is not None else (first, second)
    shared = postmaster(data_dir)
    await guest.stop()
    assert await remembered(urls[0]) == kept
    await guest.start()
    assert postmaster(data_dir) == shared
    await starter.stop()
    assert not alive(shared)
    assert await remembered(await guest.ensure_running()) == kept
    await guest.stop()
    with pytest.raises((OSError, asyncpg.PostgresError)):
        await ask(urls[0], "select 1")


async def test_ctrl_c_is_not_the_servers(make: Make, data_dir: Path) -> None:
    """The server has a session of its own: a terminal's ctrl-C, sent to our process group, doesn't reach it."""
    await make(data_dir).start()
    server = postmaster(data_dir)
    assert os.getsid(server) == os.getpgid(server) == server


async def test_a_half_made_folder_is_made_again(make: Make, tmp_path: Path) -> None:
    """What a killed initdb leaves behind is no obstacle, and never taken for data."""
    half = tmp_path / "data/postgres.new/base"
    half.mkdir(parents=True)
    (half.parent / "PG_VERSION").write_text("18\n")
    assert await ask(await make(tmp_path / "data").start(), "select 1") == 1
    assert os.listdir(tmp_path / "data") == ["postgres"]  # noqa: PTH208


async def test_a_killed_temporary_one_is_swept_up(make: Make) -> None:
    """The next temporary server ends and removes one whose process was killed; one in use it leaves alone."""
    in_use = await make(None).start()
    async with owner(None) as (url, process):
        left = socket_dir(url)
        orphan = int((left / "postmaster.pid").read_text().split()[0])
        process.kill()
        await process.wait()
    assert alive(orphan)
    await make(None).start()
    assert not alive(orphan)
    assert not exists(left.parent)
    assert await ask(in_use, "select 1") == 1


async def test_a_removed_folder_is_made_anew(make: Make, open_folder: Path) -> None:
    """If somebody removes the data under the running server, that server is ended and an empty one made."""
    server = make(open_folder / "data")
    url = await server.start()
    await remember(url)
    old = postmaster(open_folder / "data")
    subprocess.run(["rm", "-r", open_folder / "data"], check=True)  # noqa: ASYNC221
    assert await ask(await server.ensure_running(), "select to_regclass('kept') is null") is True
    assert not alive(old)


@needs_root
async def test_root_joins_what_a_user_started(make: Make, tmp_path: Path) -> None:
    """Data that belongs to an ordinary user is served as that user, and stays its own."""
    server = make(tmp_path / "data")
    kept = await remember(await server.start())
    await server.stop()
    subprocess.run(["chown", "-R", "nobody", tmp_path / "data"], check=True)  # noqa: ASYNC221
    assert await remembered(await server.start()) == kept
    status = Path(f"/proc/{postmaster(tmp_path / 'data')}/status").read_text()  # noqa: ASYNC240
    assert f"\nUid:\t{server_account(None).uid}" not in status
    assert mode(tmp_path / "data/postgres") == 0o700


async def test_a_start_that_takes_too_long_elsewhere(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process never ends its start or stop, ours gives up with a clear message, not never."""
    monkeypatch.setattr(folder, "_LONGEST_START", 0.0)
    (tmp_path / "data").mkdir(mode=0o700)
    with folder.exclusively(tmp_path / "data"), pytest.raises(EmbeddedError, match="another process"):
        await make(tmp_path / "data").start()
