"""The embedded PostgreSQL as the daemon uses it.

All work is done in threads, so that the event loop never waits; and not by its own subprocesses, since uvloop's
cannot run as another user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from indexer.embedded.account import Account, server_account
from indexer.embedded.cluster import Cluster
from indexer.embedded.folder import PREFIX, exclusively, make_folder, temporary_folder, trusted
from indexer.errors import EmbeddedError

_KEPT = "postgres"
_THROW_AWAY = "throw-away"  # another name, so that what may be removed can never be mistaken for what may not


def default_data_dir() -> Path:
    """Return where the data goes if nobody says: /var/lib/letta-indexer for root, else below $XDG_DATA_HOME.

    (``~/.local/share/letta-indexer`` without that variable; XDG Base Directory Specification 0.8, which has
    relative values ignored.)
    """
    if os.geteuid() == 0:
        return Path("/var/lib/letta-indexer")
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".local/share") / "letta-indexer"


class EmbeddedPostgres:
    """A PostgreSQL server for the data in ``data_dir`` (None: :func:`default_data_dir`).

    ``makes`` False: data that isn't there is not made, :meth:`start` raises EmbeddedError.
    ``temporary``: the data is thrown away by :meth:`stop`; without a ``data_dir`` it lies in a folder of its own.
    ``fast_for_tests``: nothing is synced to disk. ``bin_dir``: the programs to use (None: those of the wheel).
    """

    def __init__(
        self,
        data_dir: Path | None,
        *,
        makes: bool = True,
        temporary: bool = False,
        fast_for_tests: bool = False,
        bin_dir: Path | None = None,
    ) -> None:
        self._requested = data_dir
        self._makes = makes
        self._temporary = temporary
        self._fast = fast_for_tests
        self._bin_dir = bin_dir
        self._mutex = threading.Lock()
        self._data_dir: Path | None = None
        self._made = False
        self._cluster: Cluster | None = None
        self._owner: int | None = None

    @property
    def dsn(self) -> str:
        """The URL of the running server's database; raises EmbeddedError before :meth:`start`."""
        if self._cluster is None:
            raise EmbeddedError("the embedded PostgreSQL has not been started")
        return self._cluster.url

    async def start(self) -> str:
        """Start the server, or join the one that runs; return its database's URL for asyncpg or libpq.

        Raises EmbeddedError if that cannot be, with what to do.
        """
        return await asyncio.to_thread(self._ensure)

    async def ensure_running(self) -> str:
        """Start the server again if it has crashed, hangs or was stopped by another process; return the URL.

        Does nothing if it answers. The URL changes only where the data folder's path is too long for a socket.
        Raises EmbeddedError like :meth:`start`.
        """
        return await asyncio.to_thread(self._ensure)

    async def stop(self) -> None:
        """Shut the server down and wait for its end, unless another living process owns it. Safe to repeat.

        A temporary one's folder is removed. Raises EmbeddedError if a process cannot be ended.
        """
        await asyncio.to_thread(self._stop)

    def _ensure(self) -> str:
        with self._mutex, _translated():
            data_dir = self._prepare()
            with exclusively(data_dir):
                cluster = self._open(data_dir / (_THROW_AWAY if self._temporary else _KEPT))
                cluster.ensure()
                if self._owner is None:
                    self._owner = cluster.folder.lock_owner()
            return cluster.url

    def _prepare(self) -> Path:
        """Return the data folder, made if it is missing."""
        if self._data_dir is None and self._requested is None and self._temporary:
            account = server_account(None)
            self._data_dir, self._made = temporary_folder(account), True
            _sweep(self._data_dir.parent, account, self._bin_dir)
        if self._data_dir is None:
            self._data_dir = (self._requested or default_data_dir()).resolve()
        if not self._makes and not (self._data_dir / _KEPT).is_dir():
            raise EmbeddedError(
                f"there is no index in {self._data_dir}: name the --data-dir of one that exists; `letta-indexer run`, "
                "`letta-indexer db init` and `letta-indexer db restore` make one there"
            )
        if not self._data_dir.is_dir():
            self._made = make_folder(self._data_dir, server_account(None)) or self._made
        return self._data_dir

    def _open(self, path: Path) -> Cluster:
        """Return the cluster at ``path``: the one at hand, unless the folder there is a different one by now."""
        if self._cluster is not None:
            if path.exists() and os.path.samestat(path.stat(), self._cluster.folder.status()):
                return self._cluster
            self._end_if_ours()  # what works on in a folder that was removed
            self._let_go()
        self._cluster = Cluster(path, bin_dir=self._bin_dir, fast=self._fast)
        return self._cluster

    def _stop(self) -> None:
        with self._mutex, _translated():
            data_dir = self._data_dir
            if data_dir is None:
                return
            with exclusively(data_dir) if data_dir.exists() else contextlib.nullcontext():
                if self._end_if_ours() and self._temporary:
                    shutil.rmtree(data_dir if self._made else data_dir / _THROW_AWAY, ignore_errors=True)
            self._let_go()
            self._data_dir, self._made = None, False

    def _end_if_ours(self) -> bool:
        """End the server unless another living process has the right to; return whether nobody else has."""
        if self._cluster is None:
            return True
        if self._owner is None:
            self._owner = self._cluster.folder.lock_owner()
        if self._owner is not None:
            self._cluster.end()
        return self._owner is not None

    def _let_go(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        if self._owner is not None:
            os.close(self._owner)
        self._cluster = self._owner = None


def _sweep(base: Path, account: Account, bin_dir: Path | None) -> None:
    """End and remove temporary servers in ``base`` whose process was killed before it could do so."""
    for path in base.glob(f"{PREFIX}*/{_THROW_AWAY}"):
        if trusted(path.parent, account):
            with contextlib.suppress(OSError, EmbeddedError), exclusively(path.parent):
                _remove_orphan(path, bin_dir)


def _remove_orphan(path: Path, bin_dir: Path | None) -> None:
    cluster = Cluster(path, bin_dir=bin_dir, fast=True)
    try:
        owner = cluster.folder.lock_owner()
        if owner is not None:
            cluster.end()
            shutil.rmtree(path.parent, ignore_errors=True)
            os.close(owner)
    finally:
        cluster.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedError(f"the embedded PostgreSQL cannot be prepared: {error}") from error
