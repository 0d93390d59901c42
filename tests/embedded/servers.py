"""What the tests of the embedded PostgreSQL ask of a server, and how they make one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from indexer.embedded import EmbeddedPostgres
from tests.postgres import chosen_bin_dir

Make = Callable[[Path | None], EmbeddedPostgres]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not run: needs root")


def new_server(data_dir: Path | None) -> EmbeddedPostgres:
    """Return a server without care for power cuts; a temporary one if ``data_dir`` is None."""
    return EmbeddedPostgres(data_dir, temporary=data_dir is None, fast_for_tests=True, bin_dir=chosen_bin_dir())


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


def exists(path: Path) -> bool:
    """Whether there is anything at a path."""
    return os.path.lexists(path)


def alive(pid: int) -> bool:
    """Whether a process runs (one that is dead but not yet buried doesn't)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def socket_dir(url: str) -> Path:
    """Return the folder of the socket that a URL names (one without signs that a URL escapes)."""
    return Path(url.partition("host=")[2].partition("&")[0])


def mode(path: Path) -> int:
    """Return the permission bits of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def rights(path: Path) -> dict[Path, tuple[int, int, int]]:
    """Return mode and owners of a folder and of all above it."""
    found = ((each, each.stat()) for each in (path, *path.parents))
    return {each: (status.st_mode, status.st_uid, status.st_gid) for each, status in found}
