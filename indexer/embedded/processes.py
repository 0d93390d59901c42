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


def servers(folder: os.stat_result, account: Account) -> set[int]:
    """Return the ids of all PostgreSQL processes of ``account`` at work in ``folder``: that is their working folder."""
    return _at_work((int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()), folder, account)


def belongs(pid: int, folder: os.stat_result, account: Account) -> bool:
    """Whether ``pid`` is one of :func:`servers`, and not a process that got its number since."""
    return pid in _at_work([pid], folder, account)


def number_taken(pid: int, folder: os.stat_result, account: Account) -> bool:
    """Whether ``pid``, once a server of ``folder``, is the number of something else by now."""
    return Path(f"/proc/{pid}").exists() and not belongs(pid, folder, account)


def _at_work(pids: Iterable[int], folder: os.stat_result, account: Account) -> set[int]:
    found, hidden = set[int](), []
    for pid in pids:
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if process.joinpath("comm").read_text() == "postgres\n" and account.owns(process.stat()):
                try:
                    if os.path.samestat(process.joinpath("cwd").stat(), folder):
                        found.add(pid)
                except PermissionError:
                    hidden.append(pid)
    return found | _seen_by(account, hidden, folder) if hidden and account.switch else found


def _seen_by(account: Account, pids: Sequence[int], folder: os.stat_result) -> set[int]:
    """Look with the eyes of ``account``: root without CAP_SYS_PTRACE (in a container) isn't shown the folder."""
    listing = run(["stat", "-L", "-c", "%n %d %i", *(f"/proc/{pid}/cwd" for pid in pids)], account=account).stdout
    wanted = f"{folder.st_dev} {folder.st_ino}"
    rows = (line.partition(" ") for line in listing.splitlines())
    return {int(name.split("/")[2]) for name, _, place in rows if place == wanted}


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each of ``pids`` that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
