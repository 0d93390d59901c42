"""The embedded PostgreSQL: who can reach it, where it works, and what it refuses. (What it survives: test_crashes.)"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
import uvloop

from indexer.embedded import EmbeddedPostgres, account, configuration
from indexer.embedded.account import Account
from indexer.embedded.folder import PREFIX
from indexer.embedded.programs import binaries_for
from indexer.errors import EmbeddedError
from tests.embedded.servers import (
    Make,
    alive,
    ask,
    exists,
    mode,
    needs_root,
    new_server,
    postmaster,
    rights,
    socket_dir,
)
from tests.postgres import TestCluster, chosen_bin_dir

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    """Give an open descriptor of a folder: a way to it that doesn't lead through the folders above."""
    fd = os.open(path, os.O_PATH)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Be another user for a while (root only)."""
    os.seteuid(pwd.getpwnam(name).pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("bits", "below"), [(0o700, ""), (0o755, ""), (0o755, "missing/data")])
async def test_existing_folders_keep_their_modes_and_owners(
    make: Make, tmp_path: Path, open_folder: Path, bits: int, below: str
) -> None:
    """Whether or not the server's user can walk to the data, no folder that was there is touched."""
    existing = (tmp_path if bits == 0o700 else open_folder) / "existing"
    existing.mkdir()
    existing.chmod(bits)
    before = rights(existing)
    server = make(existing / below)
    assert await ask(await server.start(), "select 1") == 1
    await server.stop()
    assert rights(existing) == before


async def test_only_a_private_socket_listens(make: Make, data_dir: Path) -> None:
    """Data and socket folder are 0700, there is no network listener, and nobody is trusted unasked."""
    server = make(data_dir)
    url = await server.start()
    assert (mode(data_dir), mode(data_dir / "postgres")) == (0o700, 0o700)
    folder = Path(str(await ask(url, "select split_part(current_setting('unix_socket_directories'), ',', 1)")))
    assert folder == data_dir / "postgres" or folder.is_relative_to("/proc/self/fd")
    assert mode(data_dir / "postgres/.s.PGSQL.5432") == 0o700
    assert await ask(url, "select current_setting('listen_addresses')") == ""
    rules = "select string_agg(type || ' ' || auth_method, ',') from pg_hba_file_rules"
    assert await ask(url, rules) == "local peer"
    assert server.dsn == url


@needs_root
async def test_as_root_the_server_is_a_system_user(make: Make, open_folder: Path) -> None:
    """PostgreSQL runs as letta-indexer, out of programs that only root can change."""
    await make(open_folder / "data").start()
    process = Path(f"/proc/{postmaster(open_folder / 'data')}")
    _, user, _ = rights(process)[process]
    assert pwd.getpwuid(user).pw_name == account.SYSTEM_USER
    program = Path((process / "cmdline").read_text().partition("\0")[0])
    assert all(owner == 0 and not bits & 0o022 for bits, owner, _ in rights(program).values())


@needs_root
async def test_another_user_is_refused(make: Make, data_dir: Path) -> None:
    """Another user can't reach the socket; and were the modes wide open, the server would still say no."""
    await make(data_dir).start()
    folder = data_dir / "postgres"
    with descriptor(folder) as way:  # past the closed folders above
        reached = f"/proc/self/fd/{way}"
        with acting_as("nobody"), socket.socket(socket.AF_UNIX) as plug, pytest.raises(PermissionError):
            plug.connect(f"{reached}/.s.PGSQL.5432")
        folder.chmod(0o711)
        (folder / ".s.PGSQL.5432").chmod(0o777)
        with acting_as("nobody"), pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="Peer auth"):
            await ask(configuration.url(reached), "select 1")
        folder.chmod(0o700)


ORDINARY = """
import asyncio, os, sys
from pathlib import Path
from indexer.embedded import EmbeddedPostgres
async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]), fast_for_tests=True, bin_dir=Path(sys.argv[2]))
    print(await server.start())
    print(os.stat(Path(sys.argv[1], "postgres/postmaster.pid")).st_uid, os.getuid())
    await server.ensure_running()
    await server.stop()
asyncio.run(main())
"""


@needs_root
def test_an_ordinary_user_runs_it_as_itself(open_folder: Path) -> None:
    """Without root's rights it works the same, the server being the user's own process."""
    nobody = pwd.getpwnam("nobody")
    programs = binaries_for(Account(nobody.pw_name, nobody.pw_uid, nobody.pw_gid), chosen_bin_dir())
    os.chown(open_folder, nobody.pw_uid, nobody.pw_gid)
    # Python and this repository may be where that user can't go: open descriptors take it there.
    with descriptor(Path(sys.base_prefix)) as python, descriptor(REPOSITORY) as here:
        prefix = f"/proc/self/fd/{python}"
        way = {"PYTHONHOME": prefix, "LD_LIBRARY_PATH": f"{prefix}/lib", "PYTHONPATH": f"/proc/self/fd/{here}"}

        def python_as_nobody(*words: str | Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [f"{prefix}/bin/python3", "-c", *words],
                env=way,
                user=nobody.pw_uid,
                group=nobody.pw_gid,
                extra_groups=[],
                pass_fds=(python, here),
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )

        if (probe := python_as_nobody("import indexer.embedded")).returncode != 0:
            pytest.skip(f"not run: another user cannot run this Python: {probe.stderr.strip()[-200:]}")
        outcome = python_as_nobody(ORDINARY, open_folder / "data", programs)
    assert outcome.returncode == 0, outcome.stderr
    url, owners = outcome.stdout.splitlines()
    assert url == configuration.url(str(open_folder / "data/postgres"))
    assert owners == f"{nobody.pw_uid} {nobody.pw_uid}"


async def test_a_path_too_long_for_a_socket(make: Make, tmp_path: Path) -> None:
    """However deep the data lies, whatever signs are in its path, the socket's is short and plain, in a private folder.

    A new server after a crash uses the folder again; after an end in good order it is gone.
    """
    data_dir = tmp_path / ("deep" * 12) / ("deeper" * 12) / "a, b%20c'd\"e$f&g?h#ü"
    server = make(data_dir)
    url = await server.start()
    assert await ask(url, "select 1") == 1
    folder = socket_dir(url)
    assert len(bytes(folder)) < 90
    assert mode(folder) == 0o700
    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert await server.ensure_running() == url
    assert await ask(url, "select 1") == 1
    await server.stop()
    assert not exists(folder)


async def test_data_of_another_major_version_is_refused(make: Make, data_dir: Path) -> None:
    """A folder another PostgreSQL wrote is left alone, and the message names both versions and the way out."""
    server = make(data_dir)
    await server.start()
    await server.stop()
    version = data_dir / "postgres/PG_VERSION"
    right = version.read_text()
    version.write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"written by PostgreSQL 9.*PostgreSQL \d\d.*--data-dir"):
        await server.start()
    version.write_text(right)
    assert await ask(await server.start(), "select 1") == 1


async def test_a_temporary_one_leaves_nothing(make: Make) -> None:
    """After its stop there is neither a process nor a folder of a temporary server."""
    server = make(None)
    url = await server.start()
    folder = socket_dir(url)
    process = int((folder / "postmaster.pid").read_text().split()[0])
    assert folder.parent.name.startswith(PREFIX)
    assert alive(process)
    await server.stop()
    assert not exists(folder.parent)
    assert not alive(process)
    with pytest.raises(EmbeddedError, match="not been started"):
        _ = server.dsn


async def test_safe_by_default(tmp_path: Path) -> None:
    """What is committed is on disk, pages carry checksums, text is UTF-8 in the order of its bytes."""
    server = EmbeddedPostgres(tmp_path / "data", bin_dir=chosen_bin_dir())
    url = await server.start()
    names = "fsync", "synchronous_commit", "full_page_writes", "data_checksums", "server_encoding"
    values = [await ask(url, f"select current_setting('{name}')") for name in names]
    assert values == ["on", "on", "on", "on", "UTF8"]
    assert await ask(url, "select array_agg(w order by w) from unnest(array['b','a','B','é','A']) w") == [*"ABabé"]
    assert await ask(url, "select upper('é')") == "É"
    await server.stop()


async def test_the_environment_has_no_say(make: Make, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables meant for another PostgreSQL neither misdirect the server nor the URL it gives."""
    nonsense = {
        "PGHOST": "192.0.2.1",
        "PGPORT": "1",
        "PGDATABASE": "x",
        "PGUSER": "x",
        "PGDATA": "/x",
        "PGOPTIONS": "-x",
    }
    for name, value in nonsense.items():
        monkeypatch.setenv(name, value)
    url = await make(data_dir).start()
    monkeypatch.delenv("PGOPTIONS")
    assert await ask(url, "select current_user || ' ' || current_database()") == "letta_indexer letta_indexer"


async def test_it_works_under_uvloop(data_dir: Path) -> None:
    """The daemon's event loop, which cannot start processes as another user itself, makes no difference."""

    async def life() -> object:
        server = new_server(data_dir)
        answer = await ask(await server.start(), "select 1")
        await server.stop()
        return answer

    assert await asyncio.to_thread(uvloop.run, life()) == 1


async def test_a_server_that_will_not_start_says_why(make: Make, data_dir: Path) -> None:
    """The error carries PostgreSQL's own words; once the cause is gone, the same object works."""
    server = make(data_dir)
    await server.start()
    await server.stop()
    conf = data_dir / "postgres/postgresql.conf"
    right = conf.read_text()
    conf.write_text(right + "shared_buffers = many\n")
    with pytest.raises(EmbeddedError, match=r"did not start in .*shared_buffers"):
        await server.start()
    conf.write_text(right)
    assert await ask(await server.start(), "select 1") == 1


async def test_the_suite_s_databases() -> None:
    """A clone has the template's content, is nobody else's, and is gone after the test, also while in use."""
    cluster = TestCluster()
    await cluster.start()
    try:
        await cluster.create_template("create table t (a int); insert into t values (7)")
        async with cluster.fresh_database() as one, cluster.fresh_database() as two:
            assert await ask(one, "with d as (delete from t returning a) select a from d") == 7
            assert await ask(two, "select count(*) from t") == 1
            lingering = await asyncpg.connect(one)
        assert await ask(cluster.url, "select count(*) from pg_database where datname like 'test_%'") == 0
        lingering.terminate()
        assert await ask(await cluster.empty(), "select to_regclass('t') is null") is True
    finally:
        await cluster.stop()
