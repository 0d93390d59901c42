"""Where the embedded PostgreSQL finds its programs, its user and its folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexer.embedded import account, binaries, default_data_dir, server_version
from indexer.embedded.account import Account
from indexer.embedded.binaries import WHEEL, version_of
from indexer.embedded.folder import PREFIX, fits_socket, trusted
from indexer.errors import EmbeddedError

REPOSITORY = Path(__file__).parents[2]


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
