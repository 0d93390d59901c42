"""What can go wrong between us and a host of permissioned spaces, as the caller needs to know it.

Messages name the host and the account; never a password, a token, a record or what the host wrote.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from indexer.outbound import FetchFailed

Absence: TypeAlias = Literal["not_found", "space_deleted", "refused"]


class PasswordRefused(FetchFailed):
    """The host doesn't take the app password: revoked, mistyped, or none of an account that may sign in.

    Asking again with the same password is pointless, and isn't done.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, permanent=True, status=status, code=code)


class UnknownDialect(FetchFailed):
    """The host offers no permissioned spaces, or in a form that this program doesn't know."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, permanent=True, status=status, code=code)


class SpaceUnavailable(FetchFailed):
    """The host doesn't give a repository of a space out.

    ``state`` says why. Only ``space_deleted`` is evidence: ``not_found`` is also what an empty repository, and a host
    that has a bad day, answer; ``refused`` means that this login may not read it.
    """

    def __init__(self, message: str, *, state: Absence, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, permanent=True, status=status, code=code)
        self.state = state
