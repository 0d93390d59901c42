"""One data folder and its server: made, joined, started, ended. Blocking; the caller holds ``folder.exclusively``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from indexer.embedded import configuration
from indexer.embedded.account import Account, server_account
from indexer.embedded.folder import (
    Folder,
    Postmaster,
    clear_socket_folder,
    fits_socket,
    make_folder,
    remove_socket_folder,
    temporary_folder,
    trusted,
)
from indexer.embedded.processes import belongs, number_taken, run, send, servers, spawn_server
from indexer.embedded.programs import binaries, binaries_for, version_of
from indexer.errors import EmbeddedError

_RECOVERY = 300.0  # seconds a server may take to replay its log before it answers
_STOPPING = 60.0  # seconds a fast shutdown may take to write everything down
_HUNG = 10.0  # the same for a server that has stopped answering
_DYING = 5.0  # seconds for processes to notice that their postmaster was killed
_DEAF = 3  # seconds without a word, three times over, after which a server counts as hung
_POLL = 0.01


class Cluster:
    """A data folder of PostgreSQL at ``path``, made if it doesn't exist, and whatever server works in it.

    ``bin_dir`` None stands for the wheel's programs; ``fast``: nothing needs to survive a power cut. Raises
    EmbeddedError if the folder is of another major version or cannot be used by this user, OSError if the file
    system refuses.
    """

    def __init__(self, path: Path, *, bin_dir: Path | None, fast: bool) -> None:
        self._clients = bin_dir or binaries()
        self._bin_dir = bin_dir
        self._fast = fast
        self._process: subprocess.Popen[bytes] | None = None
        if not path.exists():
            self._make(path)
        self._socket_dir = path
        self.folder = Folder(path)
        try:
            self._account = server_account(self.folder.status().st_uid)
            self._refuse_other_version()
        except BaseException:
            self.folder.close()
            raise

    @property
    def url(self) -> str:
        """The URL of our database, once :meth:`ensure` has returned."""
        return configuration.url(str(self._socket_dir))

    def close(self) -> None:
        """Let go of the folder; a server goes on."""
        self.folder.close()

    def ensure(self) -> None:
        """Have a server that answers: the one that runs, or a new one, after clearing away what is left of the old.

        Raises EmbeddedError with PostgreSQL's own words if it won't start.
        """
        if not self._adopt():
            self._launch(self._clear(_HUNG))
        self._create_database()

    def end(self) -> None:
        """Shut the server down in good order and wait until the last of its processes is gone."""
        os.close(self._clear(_STOPPING))
        if self._socket_dir != self.folder.path:
            remove_socket_folder(self._socket_dir)

    # Making

    def _make(self, path: Path) -> None:
        """Make the folder under another name first: one that has its name is whole, whenever we are killed."""
        staged = path.with_name(f"{path.name}.new")
        if staged.exists():
            shutil.rmtree(staged)
        account = server_account(None)
        make_folder(staged, account)
        folder = Folder(staged)
        try:
            self._initdb(folder, account)
        finally:
            folder.close()
        staged.rename(path)

    def _initdb(self, folder: Folder, account: Account) -> None:
        programs, place = binaries_for(account, self._bin_dir), _place(folder, folder.fd, account)
        options = configuration.initdb_options(self._major(), fast=self._fast)
        initdb: list[str | Path] = [programs / "initdb", "-D", place, *options]
        made = run(initdb, account=account, pass_fds=(folder.fd,))
        if made.returncode != 0:
            raise EmbeddedError(f"initdb could not make {folder.path}: {made.stderr.strip()}")
        probe: list[str | Path] = [
            programs / "postgres",
            "-D",
            place,
            "-C",
            "port",
            "-c",
            "default_toast_compression=lz4",
        ]
        lz4 = run(probe, account=account, pass_fds=(folder.fd,)).returncode == 0
        folder.write("postgresql.conf", configuration.conf(lz4=lz4), account)

    def _major(self) -> int:
        return int(version_of(self._clients).partition(".")[0])

    def _refuse_other_version(self) -> None:
        found, ours = (self.folder.read("PG_VERSION") or "").strip(), str(self._major())
        if found != ours:
            raise EmbeddedError(
                f"{self.folder.path} was written by PostgreSQL {found or 'of an unknown version'}, and this is"
                f" PostgreSQL {ours}: run `letta-indexer db dump FILE` with the release of letta-indexer that wrote it,"
                " then `letta-indexer db restore FILE` with this one and another --data-dir; or index again there"
            )

    # Joining a server that runs

    def _adopt(self) -> bool:
        """Whether a server works here that answers us; waits while it starts (or ends)."""
        running = self._running()
        if running is None or not self._find_socket(running):
            return False
        status = self.folder.status()
        return self._answers(running.pid, lambda: belongs(running.pid, status, self._account))

    def _running(self) -> Postmaster | None:
        child = self._process.pid if self._process and self._process.poll() is None else None
        claimed = self.folder.postmaster()
        if claimed and belongs(claimed.pid, self.folder.status(), self._account):
            return claimed
        return Postmaster(child, "", "") if child else None  # alive, though somebody removed its file

    def _find_socket(self, running: Postmaster) -> bool:
        """Learn where the server's socket is; False if that is no place to trust."""
        place = Path(running.socket_dir)
        if place.is_relative_to("/proc/self/fd") or place == self.folder.path:
            self._socket_dir = self.folder.path
            return fits_socket(self.folder.path)
        self._socket_dir = place
        return trusted(place, self._account)

    def _answers(self, pid: int, alive: Callable[[], bool]) -> bool:
        """Wait until the server ``pid`` takes connections; False once it has ended, is deaf, or takes too long."""
        deadline, deaf = time.monotonic() + _RECOVERY, 0
        while alive() and time.monotonic() < deadline and deaf < 3:
            claimed = self.folder.postmaster()
            if claimed and claimed.pid == pid and claimed.status == "ready":
                code = self._probe()
                if code == 0:
                    return True
                deaf += code == 2  # 1: it is up, and refuses for now
            time.sleep(_POLL)
        return False

    def _probe(self) -> int:
        """Return 0 if the server takes connections, 1 if it refuses them for now, 2 if there is no answer."""
        program = str(self._clients / "pg_isready")
        return run([program, "-q", "-t", str(_DEAF), "-d", self._maintenance()]).returncode

    def _maintenance(self) -> str:
        return configuration.url(str(self._socket_dir), "postgres")

    def _create_database(self) -> None:
        """Create our database if it is missing: a first proof, too, that we are let in."""
        name = configuration.DATABASE
        if self._query(f"select count(*) from pg_database where datname = '{name}'") == "0":  # noqa: S608 (a constant)
            self._query(f"create database {name} strategy file_copy")  # of an empty server: the quick way

    def _query(self, sql: str) -> str:
        outcome = run([self._clients / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self._maintenance(), "-c", sql])
        if outcome.returncode != 0:
            raise EmbeddedError(f"the PostgreSQL in {self.folder.path} refuses us: {outcome.stderr.strip()}")
        return outcome.stdout.strip()

    # Starting

    def _launch(self, lock: int) -> None:
        """Start a server; ``lock`` proves that none is alive, and is passed on to it."""
        try:
            log = self._prepare_files()
            begin = self.folder.log_size()
            try:
                self._process = spawn_server(self._command(lock), account=self._account, lock=lock, log=log)
            finally:
                os.close(log)
        finally:
            os.close(lock)
        process = self._process
        if not self._answers(process.pid, lambda: process.poll() is None):
            raise EmbeddedError(f"PostgreSQL did not start in {self.folder.path}: {self.folder.complaint(begin)}")

    def _prepare_files(self) -> int:
        """Write what must be right at every start, and return a descriptor of the log."""
        self._socket_dir = self._choose_socket_dir()
        status = self.folder.status()
        for name, pid in self.folder.lock_files():
            # PostgreSQL would believe it alive; other leftovers it clears itself
            if number_taken(pid, status, self._account):
                self.folder.remove(name)
        self.folder.write("pg_hba.conf", configuration.hba(), self._account)
        self.folder.write("pg_ident.conf", configuration.ident({self._account.name, "root"}), self._account)
        return self.folder.open_log(self._account)

    def _choose_socket_dir(self) -> Path:
        """Inside the data folder, so that the URL stays the same for good; elsewhere if the path is too long."""
        if fits_socket(self.folder.path):
            return self.folder.path
        left = self.folder.postmaster()  # by a server that was killed
        for known in (self._socket_dir, Path(left.socket_dir if left else "")):
            if trusted(known, self._account):
                clear_socket_folder(known)
                return known
        return temporary_folder(self._account)

    def _command(self, lock: int) -> list[str | Path]:
        programs, place = binaries_for(self._account, self._bin_dir), _place(self.folder, lock, self._account)
        socket_dir = place if self._socket_dir == self.folder.path else str(self._socket_dir)
        return [programs / "postgres", "-D", place, *configuration.server_options(socket_dir, fast=self._fast)]

    # Ending

    def _clear(self, patience: float) -> int:
        """End every process of the server, the gentle way first; return the lock that proves it.

        ``patience``: seconds for an orderly shutdown. Processes whose postmaster was killed end by themselves.
        """
        self._interrupt(patience)
        for number, seconds in ((None, _DYING), (signal.SIGQUIT, _DYING), (signal.SIGKILL, _HUNG)):
            running = self._running()
            if number is not None:
                send(number, {*([running.pid] if running else []), *servers(self.folder.status(), self._account)})
            elif running:
                continue  # it had its time
            lock = self._wait_until_gone(seconds)
            if lock is not None:
                return lock
        raise EmbeddedError(f"a PostgreSQL that cannot be ended (in another container?) holds {self.folder.path}")

    def _interrupt(self, patience: float) -> None:
        """Ask the postmaster for a fast shutdown, and wait for its end (or do nothing if there is none)."""
        running, deadline = self._running(), time.monotonic() + patience
        send(signal.SIGINT, [running.pid] if running else [])
        while self._running() and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _wait_until_gone(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while True:
            running = self._running()
            lock = None if running else self.folder.lock_servers()
            if lock is not None:
                if not servers(self.folder.status(), self._account):  # one started by hand does not hold the lock
                    return lock
                os.close(lock)
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL)


def _place(folder: Folder, fd: int, account: Account) -> str:
    """Return the name by which a server with the descriptor ``fd`` of ``folder`` gets there.

    Its path; or the descriptor itself, where the way down the path is closed to the server's user.
    """
    return str(folder.path) if not account.switch or account.reaches(folder.path) else f"/proc/self/fd/{fd}"
