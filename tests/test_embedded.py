"""The embedded PostgreSQL: who can reach it, where it works, and what it refuses. (Crashes: test_embedded_crashes.)"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
import uvloop

from indexer.embedded import EmbeddedPostgres, account, binaries, configuration, default_data_dir, server_version
from indexer.embedded.account import Account
from indexer.embedded.binaries import WHEEL, binaries_for, version_of
from indexer.embedded.folder import PREFIX, fits_socket, trusted
from indexer.errors import EmbeddedError
from tests.postgres import TestCluster, chosen_bin_dir

Make = Callable[[Path | None], EmbeddedPostgres]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not run: needs root")
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
async def make() -> object:
    """Make servers without care for power cuts, and stop them at the end of the test."""
    made: list[EmbeddedPostgres] = []

    def server(data_dir: Path | None) -> EmbeddedPostgres:
        made.append(
            EmbeddedPostgres(data_dir, temporary=data_dir is None, fast_for_tests=True, bin_dir=chosen_bin_dir())
        )
        return made[-1]

    yield server
    for each in made:
        await each.stop()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A new folder that every user can walk into (pytest's own are closed to all but one)."""
    folder = Path(tempfile.mkdtemp(prefix="test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def ask(url: str, sql: str) -> object:
    """Return the one value that a query gives."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def postmaster(data_dir: Path) -> int:
    """Return the process id of the server that works in a data folder."""
    return int((data_dir / "postgres/postmaster.pid").read_text().split()[0])


def mode(path: Path) -> int:
    """Return the permission bits of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def rights(path: Path) -> dict[Path, tuple[int, int, int]]:
    """Return mode and owners of a folder and of all above it."""
    found = ((each, each.stat()) for each in (path, *path.parents))
    return {each: (status.st_mode, status.st_uid, status.st_gid) for each, status in found}


@pytest.mark.parametrize("closed", [True, False])
async def test_existing_folders_keep_their_modes_and_owners(
    make: Make, tmp_path: Path, open_folder: Path, closed: bool
) -> None:
    """Whether or not the server's user can walk to the data, no folder that was there is touched."""
    existing = (tmp_path if closed else open_folder) / "existing"
    existing.mkdir(mode=0o750)
    existing.chmod(0o700 if closed else 0o755)
    before = rights(existing)
    for data_dir in (existing, existing / "missing/data"):
        server = make(data_dir)
        assert await ask(await server.start(), "select 1") == 1
        await server.stop()
    assert rights(existing) == before


async def test_only_a_private_socket_listens(make: Make, tmp_path: Path) -> None:
    """Data and socket folder are 0700, there is no network listener, and nobody is trusted unasked."""
    data_dir = tmp_path / "data"
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
    assert pwd.getpwuid(process.stat().st_uid).pw_name == account.SYSTEM_USER
    program = (process / "exe").resolve()
    assert all(each.stat().st_uid == 0 and not each.stat().st_mode & 0o002 for each in (program, *program.parents))


@needs_root
async def test_another_user_is_refused(make: Make, tmp_path: Path) -> None:
    """Another user can't reach the socket; and were the modes wide open, the server would still say no."""
    data_dir = tmp_path / "data"
    await make(data_dir).start()
    folder = data_dir / "postgres"
    way = os.open(folder, os.O_PATH)  # past the closed folders above
    reached = f"/proc/self/fd/{way}"
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with socket.socket(socket.AF_UNIX) as plug, pytest.raises(PermissionError):
            plug.connect(f"{reached}/.s.PGSQL.5432")
        os.seteuid(0)
        folder.chmod(0o711)
        (folder / ".s.PGSQL.5432").chmod(0o777)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="Peer authentication failed"):
            await ask(configuration.url(reached), "select 1")
    finally:
        os.seteuid(0)
        os.close(way)
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
    python, here = os.open(sys.base_prefix, os.O_PATH), os.open(REPOSITORY, os.O_PATH)
    outcome = subprocess.run(
        [f"/proc/self/fd/{python}/bin/python3", "-c", ORDINARY, open_folder / "data", programs],
        env={"PYTHONHOME": f"/proc/self/fd/{python}", "PYTHONPATH": f"/proc/self/fd/{here}"},
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        pass_fds=(python, here),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(python)
    os.close(here)
    if "Permission denied" in outcome.stderr and "postgres" not in outcome.stderr:
        pytest.skip(f"not run: another user cannot run this Python: {outcome.stderr.strip()[-200:]}")
    assert outcome.returncode == 0, outcome.stderr
    url, owners = outcome.stdout.splitlines()
    assert url == configuration.url(str(open_folder / "data/postgres"))
    assert owners == f"{nobody.pw_uid} {nobody.pw_uid}"


async def test_a_path_too_long_for_a_socket(make: Make, tmp_path: Path) -> None:
    """However deep the data lies, the socket has a short path in a private folder, gone after the end."""
    data_dir = tmp_path / ("deep" * 12) / ("deeper" * 12) / "data"
    server = make(data_dir)
    url = await server.start()
    assert await ask(url, "select 1") == 1
    folder = Path(url.partition("host=")[2].partition("&")[0])
    assert len(bytes(folder)) < 90
    assert mode(folder) == 0o700
    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert await server.ensure_running() == url
    assert await ask(url, "select 1") == 1
    await server.stop()
    assert not folder.exists()


async def test_any_sign_in_a_path(make: Make, tmp_path: Path) -> None:
    """Signs that mean something in a URL, a list or a shell do no harm in the name of a data folder."""
    data_dir = tmp_path / "a, b%20c'd\"e$f&g?h#ü"
    assert await ask(await make(data_dir).start(), "select 1") == 1


async def test_data_of_another_major_version_is_refused(make: Make, tmp_path: Path) -> None:
    """A folder another PostgreSQL wrote is left alone, and the message names both versions and the way out."""
    data_dir = tmp_path / "data"
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
    folder = Path(url.partition("host=")[2].partition("&")[0])
    process = Path("/proc", (folder / "postmaster.pid").read_text().split()[0])
    assert folder.parent.name.startswith(PREFIX)
    assert process.exists()
    await server.stop()
    assert not folder.parent.exists()
    assert not process.exists()
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


async def test_the_environment_has_no_say(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    url = await make(tmp_path / "data").start()
    monkeypatch.delenv("PGOPTIONS")
    assert await ask(url, "select current_user || ' ' || current_database()") == "letta_indexer letta_indexer"


async def test_it_works_under_uvloop(tmp_path: Path) -> None:
    """The daemon's event loop, which cannot start processes as another user itself, makes no difference."""

    async def life() -> object:
        server = EmbeddedPostgres(tmp_path / "data", fast_for_tests=True, bin_dir=chosen_bin_dir())
        answer = await ask(await server.start(), "select 1")
        await server.stop()
        return answer

    assert await asyncio.to_thread(uvloop.run, life()) == 1


async def test_a_server_that_will_not_start_says_why(make: Make, tmp_path: Path) -> None:
    """The error carries PostgreSQL's own words; once the cause is gone, the same object works."""
    server = make(tmp_path / "data")
    await server.start()
    await server.stop()
    conf = tmp_path / "data/postgres/postgresql.conf"
    right = conf.read_text()
    conf.write_text(right + "shared_buffers = many\n")
    with pytest.raises(EmbeddedError, match=r"did not start in .*shared_buffers"):
        await server.start()
    conf.write_text(right)
    assert await ask(await server.start(), "select 1") == 1


def test_the_newest_postgresql_of_the_wheel_is_used() -> None:
    """Of the versions the wheel brings, the highest is taken, with its client programs, without importing it."""
    versions = [version_of(path.parent) for path in binaries().parents[1].glob("pginstall*/bin/postgres")]
    assert server_version() == max(versions, key=lambda version: [int(part) for part in version.split(".")])
    assert all((binaries() / name).is_file() for name in ("psql", "pg_dump", "pg_isready", "initdb"))
    code = f"import sys, indexer.embedded as e; e.binaries(); sys.exit('{WHEEL}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_where_the_data_goes_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has a folder of the system; a user the one of the XDG specification, where a relative value is void."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/letta-indexer")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ann")
    for value, expected in ("/d", "/d"), ("", "/home/ann/.local/share"), ("d", "/home/ann/.local/share"):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert default_data_dir() == Path(expected, "letta-indexer")


def test_no_user_to_run_as_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a system user, and no way to create one, the message says what to do; so for a uid without a name."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account, "SYSTEM_USER", "no-such-user-here")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(EmbeddedError, match=r"`useradd --system no-such-user-here`"):
        account.server_account(None)
    with pytest.raises(EmbeddedError, match="belongs to root"):
        account.server_account(0)
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    with pytest.raises(EmbeddedError, match="has no name"):
        account.server_account(None)
    with pytest.raises(EmbeddedError, match="belongs to user id 5"):
        account.server_account(5)


def test_only_folders_of_our_own_making_are_trusted(tmp_path: Path) -> None:
    """A socket folder is used again only if it is ours, private, no symbolic link, and named as we name them."""
    me = Account("me", os.geteuid(), os.getegid())
    good = tmp_path / f"{PREFIX}a"
    good.mkdir(mode=0o700)
    link = tmp_path / f"{PREFIX}b"
    link.symlink_to(good)
    assert trusted(good, me)
    assert not trusted(good, Account("other", me.uid + 1, me.gid))
    assert not trusted(link, me)
    assert not trusted(tmp_path, me)
    assert not trusted(tmp_path / f"{PREFIX}missing", me)
    good.chmod(0o770)
    assert not trusted(good, me)


def test_the_longest_socket_path() -> None:
    """107 bytes are the limit of the kernel's address, counted in bytes and with the socket's name."""
    assert fits_socket(Path("/" + "a" * 92))
    assert not fits_socket(Path("/" + "a" * 93))
    assert not fits_socket(Path("/ü"))


async def test_the_suite_s_databases(tmp_path: Path) -> None:
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
