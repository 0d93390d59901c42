"""Which operating-system user the server runs as, and what that user can reach."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import EmbeddedError

SYSTEM_USER = "letta-indexer"


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system: ``name`` as ``peer`` authentication knows it, and its ids."""

    name: str
    uid: int
    gid: int

    @property
    def switch(self) -> bool:
        """Whether a process of this user needs a change of user, that is: whether we are somebody else (root)."""
        return self.uid != os.geteuid()

    def owns(self, status: os.stat_result) -> bool:
        """Whether this user owns the file that ``status`` describes."""
        return status.st_uid == self.uid

    def reaches(self, path: Path) -> bool:
        """Whether the mode bits let this user (without further groups) walk down to the folder ``path``.

        Access control lists are not read: where only they open the way, the answer is a harmless False.
        """
        return all(self._may_enter(folder.stat()) for folder in (path, *path.parents))

    def _may_enter(self, status: os.stat_result) -> bool:
        if self.owns(status):
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def server_account(owner: int | None) -> Account:
    """Return the user to run the server as; ``owner`` is the uid that owns existing data, None if there is none.

    An ordinary user runs it as itself. Root runs it as the owner of the data, else as :data:`SYSTEM_USER`, which
    is created if missing. Raises EmbeddedError if the data belongs to somebody else, or there is no such user.
    """
    user = os.geteuid()
    if user == 0:
        if owner == 0:
            raise EmbeddedError(
                "the data belongs to root, as whom PostgreSQL refuses to run: choose another --data-dir"
            )
        return _system_account() if owner is None else _lookup(owner)
    if owner not in (None, user):
        raise EmbeddedError(f"the data belongs to user id {owner}: run as that user or choose another --data-dir")
    return _lookup(user)


def _lookup(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"user id {uid} has no name on this system, and PostgreSQL needs one: add the user, or give --database-url"
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _system_account() -> Account:
    try:
        return _named(SYSTEM_USER)
    except KeyError:
        complaint = _create_system_user()
    try:
        return _named(SYSTEM_USER)  # also if another process was quicker
    except KeyError:
        raise EmbeddedError(
            f"PostgreSQL refuses to run as root, and the system user {SYSTEM_USER} could not be created"
            f" ({complaint}): create it with `useradd --system {SYSTEM_USER}`, or run as an ordinary user"
        ) from None


def _named(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _create_system_user() -> str:
    """Create the user without home, shell or password; return what went wrong, '' if nothing did."""
    program = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        return "no useradd here"
    nowhere = ["--no-create-home", "--home-dir=/nonexistent", "--shell=/usr/sbin/nologin"]
    command = [program, "--system", "--user-group", *nowhere, SYSTEM_USER]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (fixed words)
    return outcome.stderr.strip()
