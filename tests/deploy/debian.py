"""PostgreSQL as Debian packages it: its programs, its way of letting users in, a superuser called postgres."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.programs import run

# What Debian's pg_hba.conf says, but that the superuser's name on the socket is not compared with the process's user.
_ACCESS = "local all postgres trust\nlocal all all peer\nhost all all 127.0.0.1/32 scram-sha-256\n"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class DebianPostgres:
    """A running cluster: on 127.0.0.1 with passwords, on the socket in ``folder`` for the superuser."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Where the superuser gets in."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"


@contextmanager
def debian_postgres() -> Iterator[DebianPostgres]:
    """A fresh cluster of the newest PostgreSQL that Debian has installed; the test is skipped where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("not run: needs Debian's PostgreSQL (apt-get install postgresql)")
    programs = found[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="debian-"))
    data = folder / "main"
    cluster = DebianPostgres(programs, folder, free_port())
    try:
        _own(folder)
        _as_owner(programs / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        (data / "pg_hba.conf").write_text(_ACCESS, encoding="ascii")
        options = f"-p {cluster.port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _as_owner(programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        yield cluster
    finally:
        if (data / "postmaster.pid").exists():
            _as_owner(programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> str | None:
    """The user that PostgreSQL runs as where we are root, which it refuses to be."""
    return "postgres" if os.geteuid() == 0 else None


def _own(folder: Path) -> None:
    if (owner := _owner()) is not None:
        entry = pwd.getpwnam(owner)
        os.chown(folder, entry.pw_uid, entry.pw_gid)


def _as_owner(*command: str | Path) -> None:
    owner = _owner()
    prefix = () if owner is None else ("runuser", "-u", owner, "--")
    code, said = run(*prefix, *command, cwd=Path("/"))
    if code != 0:
        raise subprocess.CalledProcessError(code, str(command[0]), said)
