"""Where the embedded PostgreSQL finds its programs, its user and its folders."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexer.embedded import EmbeddedPostgres, account, binaries, default_data_dir, programs, server_version
from indexer.embedded.account import Account
from indexer.embedded.folder import PREFIX, fits_socket, trusted
from indexer.embedded.processes import run
from indexer.embedded.programs import WHEEL, version_of
from indexer.errors import EmbeddedError
from tests.embedded.servers import needs_root

REPOSITORY = Path(__file__).parents[2]


def test_the_newest_postgresql_of_the_wheel_is_used() -> None:
    """Of the versions the wheel brings, the highest is taken, with its client programs, without importing it."""
    versions = [version_of(path.parent) for path in binaries().parents[1].glob("pginstall*/bin/postgres")]
    assert server_version() == max(versions, key=lambda version: [int(part) for part in version.split(".")])
    assert all((binaries() / name).is_file() for name in ("psql", "pg_dump", "pg_isready", "initdb"))
    code = f"import sys, indexer.embedded as e; e.binaries(); sys.exit('{WHEEL}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


@needs_root
def test_a_copy_for_the_system_user_is_whole_and_safe(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user can run the copy, nobody but root can change it, and one that others could change is refused."""
    monkeypatch.setattr(programs, "COPIES", open_folder / "copies")
    nobody = pwd.getpwnam("nobody")
    user = Account(nobody.pw_name, nobody.pw_uid, nobody.pw_gid)
    copy = programs.binaries_for(user, None)
    for name in ("postgres", "initdb", "psql", "pg_isready"):
        assert server_version() in run([copy / name, "--version"], account=user).stdout
    assert not any(path.stat().st_mode & 0o022 for path in (open_folder / "copies").rglob("*"))
    assert [path.name for path in (open_folder / "copies").iterdir()] == [copy.relative_to(open_folder).parts[1]]
    assert programs.binaries_for(user, None) == copy
    copy.parents[2].chmod(0o777)
    with pytest.raises(EmbeddedError, match="only root can write"):
        programs.binaries_for(user, None)


@pytest.mark.parametrize("left", ["", "postgres.new", "throw-away"])
def test_data_that_is_not_there_is_not_made(left: str, tmp_path: Path) -> None:
    """Who only reads makes nothing, also in a folder that is there: empty, or left by one that was being made."""
    (tmp_path / left).mkdir(exist_ok=True)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(EmbeddedError, match=f"no index in {tmp_path}"):
        asyncio.run(EmbeddedPostgres(tmp_path, makes=False).start())
    assert set(tmp_path.rglob("*")) == before


def test_programs_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel, or with programs out of the server's reach or none at all, the message says so."""
    monkeypatch.setattr(programs, "WHEEL", "no_such_wheel")
    with pytest.raises(EmbeddedError, match=r"letta-indexer\[embedded\].*--database-url"):
        binaries.__wrapped__()
    with pytest.raises(EmbeddedError, match="does not run on this system"):
        version_of(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    stranger = Account("stranger", os.geteuid() + 1, os.getegid() + 1)
    with pytest.raises(EmbeddedError, match="the user stranger cannot reach"):
        programs.binaries_for(stranger, closed)


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
