"""The server's processes, read off /proc, and the programs we run beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from indexer.embedded.account import Account
from indexer.errors import EmbeddedError

_PATIENCE = 600  # seconds a program may take (initdb on a slow disk)
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGCONNECT_TIMEOUT": "5"}


def run(
    command: Sequence[str | Path], *, account: Account | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end (as ``account``, if given) and return its exit code and what it printed.

    Its environment is ours alone: no PGHOST or PGDATA of the user's gets in. Raises OSError if it cannot be run,
    EmbeddedError if it doesn't end in time.
    """
    switch = account is not None and account.switch
    try:
        return subprocess.run(  # noqa: S603 (our own programs, no shell)
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=pass_fds,
            user=account.uid if account and switch else None,
            group=account.gid if account and switch else None,
            extra_groups=[] if switch else None,
        )
    except subprocess.TimeoutExpired:
        raise EmbeddedError(f"{command[0]} did not end within {_PATIENCE} s") from None


def spawn_server(command: Sequence[str | Path], *, account: Account, lock: int, log: int) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own: a ctrl-C in our terminal is ours to hear, not its.

    It inherits the descriptor ``lock``; ours may be closed afterwards. Raises OSError if it cannot be run.
    """
    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=_ENVIRONMENT,
        cwd="/",
        umask=0o077,
        start_new_session=True,
        pass_fds=(lock,),
        user=account.uid if account.switch else None,
        group=account.gid if account.switch else None,
        extra_groups=[] if account.switch else None,
    )


def belongs(pid: int, folder: os.stat_result) -> bool:
    """Whether the process ``pid`` is a PostgreSQL at work in ``folder`` (not one that got its number since).

    A server's working directory is its data folder. Where the kernel doesn't show it to us (root in a container
    without CAP_SYS_PTRACE), the program's name and its user have to do.
    """
    process = Path(f"/proc/{pid}")
    try:
        if process.joinpath("comm").read_text().strip() != "postgres":
            return False
        with contextlib.suppress(PermissionError):
            return os.path.samestat(process.joinpath("cwd").stat(), folder)
        return process.stat().st_uid == folder.st_uid
    except (FileNotFoundError, ProcessLookupError):
        return False


def visible_servers(folder: os.stat_result) -> list[int]:
    """Return the ids of all PostgreSQL processes at work in ``folder``, as far as the kernel shows them to us."""
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [pid for pid in numbers if _works_in(pid, folder)]


def _works_in(pid: int, folder: os.stat_result) -> bool:
    try:
        inside = os.path.samestat(Path(f"/proc/{pid}/cwd").stat(), folder)
    except OSError:
        return False
    return inside and belongs(pid, folder)


def number_taken(pid: int, folder: os.stat_result) -> bool:
    """Whether ``pid``, once a server of ``folder``, is the number of something else by now."""
    return Path(f"/proc/{pid}").exists() and not belongs(pid, folder)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each of ``pids`` that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
