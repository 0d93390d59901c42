"""The data folder as seen from outside the server: files, locks and the place of the socket.

Root works here in folders that an unprivileged user may own. So everything goes through an open descriptor of the
folder, follows no symbolic link, and replaces files by renaming: that user cannot lead us anywhere else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from indexer.embedded.account import Account
from indexer.errors import EmbeddedError

PREFIX = "letta-indexer-"
_SOCKET = ".s.PGSQL.5432"
_LOCK_FILES = ("postmaster.pid", f"{_SOCKET}.lock")
_LONGEST_SOCKET = 107  # bytes, sockaddr_un.sun_path without its NUL
_LOG = "postgres.log"
_LONGEST_LOG = 1_000_000  # bytes, above which a start begins a new one and keeps the old as postgres.log.1
_LONGEST_READ = 4_000_000  # characters
_LONGEST_START = 900.0  # seconds: initdb and a recovery on a slow disk
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Postmaster:
    """What ``postmaster.pid`` says: a claim, not the truth, since it outlives its server. ``socket_dir`` as the
    server sees it; ``status`` is one of starting, ready, stopping, standby, or '' while the file is being written."""

    pid: int
    socket_dir: str
    status: str


class Folder:
    """A PostgreSQL data folder, held open. Raises OSError where the file system refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, _FOLDER)

    def close(self) -> None:
        """Give the descriptor back; the folder must not be used any more."""
        os.close(self.fd)

    def status(self) -> os.stat_result:
        """Return owner, mode and identity of the folder itself."""
        return os.fstat(self.fd)

    def give_to(self, account: Account) -> None:
        """Make ``account`` the owner of the folder (one that we have just made)."""
        if account.switch:
            os.fchown(self.fd, account.uid, account.gid)

    def read(self, name: str) -> str | None:
        """Return the text of the file ``name``, None if there is no such file."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_READ)

    def write(self, name: str, text: str, account: Account) -> None:
        """Make ``text`` the content of the file ``name``, owned by ``account``, mode 0600, at once and for good."""
        if self.read(name) == text:
            return
        self.remove(f"{name}.new")
        with os.fdopen(self._create(f"{name}.new", account), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{name}.new", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    def _create(self, name: str, account: Account) -> int:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600, dir_fd=self.fd)
        if account.switch:
            os.fchown(fd, account.uid, account.gid)
        return fd

    def remove(self, name: str) -> None:
        """Remove the file ``name`` if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def open_log(self, account: Account) -> int:
        """Return a descriptor that appends to the server's log; a log that has grown long is set aside first."""
        with contextlib.suppress(FileNotFoundError):
            if os.stat(_LOG, dir_fd=self.fd, follow_symlinks=False).st_size > _LONGEST_LOG:
                os.rename(_LOG, f"{_LOG}.1", src_dir_fd=self.fd, dst_dir_fd=self.fd)
        try:
            return self._create(_LOG, account)
        except FileExistsError:
            return os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, dir_fd=self.fd)

    def log_size(self) -> int:
        """Return how many bytes the log has: the place from which :meth:`complaint` is to read."""
        return os.stat(_LOG, dir_fd=self.fd, follow_symlinks=False).st_size

    def complaint(self, since: int) -> str:
        """Return why the server did not start, in its own words: the end of its log after ``since`` bytes."""
        lines = (self.read(_LOG) or "").encode()[since:].decode(errors="replace").splitlines()
        return " / ".join(line.split("] ", 1)[-1] for line in lines[-6:]) or "it says nothing about why"

    def postmaster(self) -> Postmaster | None:
        """Return what ``postmaster.pid`` says, None if there is none (or it is not yet readable as one)."""
        lines = (self.read("postmaster.pid") or "").splitlines() + [""] * 8
        return Postmaster(int(lines[0]), lines[4], lines[7].strip()) if lines[0].strip().isdecimal() else None

    def lock_files(self) -> list[tuple[str, int]]:
        """Return (file name, process id) of each lock file that a server has left in this folder."""
        first = {name: (self.read(name) or "").partition("\n")[0].strip() for name in _LOCK_FILES}
        return [(name, int(word)) for name, word in first.items() if word.isdecimal()]

    def lock_servers(self) -> int | None:
        """Return a descriptor that holds the lock every server process inherits, None if one of them is alive."""
        return _lock(os.open(".", _FOLDER, dir_fd=self.fd))

    def lock_owner(self) -> int | None:
        """Return a descriptor that holds the right to stop the server, None if another process has it.

        The kernel gives the lock back however its holder ends. Any file that is always there would do for it.
        """
        return _lock(os.open("PG_VERSION", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.fd))


def _lock(fd: int) -> int | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def exclusively(data_dir: Path) -> Iterator[None]:
    """Wait until no other process (or thread) starts or stops the server of ``data_dir``, and keep it so inside.

    Raises EmbeddedError if the other one takes longer than any start or stop may.
    """
    deadline = time.monotonic() + _LONGEST_START
    while (fd := _lock(os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY))) is None:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"another process has been starting or stopping the PostgreSQL in {data_dir} for too long"
            )
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(fd)


def make_folder(path: Path, account: Account) -> bool:
    """Create ``path`` for ``account`` with mode 0700, and its missing parents; return False if it was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    folder = Folder(path)
    folder.give_to(account)
    folder.close()
    return True


def temporary_folder(account: Account) -> Path:
    """Create a folder of mode 0700 for ``account``, with a name nobody can foresee, where it is short and reachable.

    The system's folder for temporary files, else /tmp. (Not XDG_RUNTIME_DIR: it goes when its user logs out, and a
    daemon may stay.) PostgreSQL touches its socket every hour, so those who tidy up old files leave it alone.
    """
    for base in (Path(tempfile.gettempdir()).resolve(), Path("/tmp")):  # noqa: S108 (mkdtemp makes a private folder)
        if len(os.fsencode(base)) <= 60 and account.reaches(base):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            if account.switch:
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
            return path
    raise EmbeddedError("neither the folder for temporary files nor /tmp can be reached by the user of the server")


def fits_socket(path: Path) -> bool:
    """Whether a socket can be in ``path``: short enough, and without the signs that mean something in a URL or list."""
    socket = os.fsencode(path / _SOCKET)
    return len(socket) <= _LONGEST_SOCKET and re.fullmatch(rb"[A-Za-z0-9/._+-]+", socket) is not None


def trusted(path: Path, account: Account) -> bool:
    """Whether ``path`` is a socket folder that we made for ``account`` earlier, and nobody else can write there."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return path.name.startswith(PREFIX) and account.owns(status) and status.st_mode == 0o40700


def remove_socket_folder(path: Path) -> None:
    """Remove a socket folder after its server's end, with what a killed server leaves there; nothing else."""
    with contextlib.suppress(OSError):
        clear_socket_folder(path)
        path.rmdir()


def clear_socket_folder(path: Path) -> None:
    """Remove what a killed server leaves in a socket folder (a lock file may name a process that is another now)."""
    for name in (_SOCKET, f"{_SOCKET}.lock"):
        (path / name).unlink(missing_ok=True)
