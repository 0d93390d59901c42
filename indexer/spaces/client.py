"""The calls of ``com.atproto.space.*`` that a reader makes on its own account's host, in the dialect it answers.

A host's word is taken for what it is: nothing here is proven.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from indexer.outbound import FetchFailed, error_code
from indexer.spaces.commit import SpaceCommit, read_commit
from indexer.spaces.dialect import Dialect
from indexer.spaces.dialects import KNOWN
from indexer.spaces.failures import Absence, SpaceUnavailable, UnknownDialect
from indexer.spaces.operations import LONGEST_CURSOR
from indexer.spaces.session import Session
from indexer.syntax import parse_space_uri

PAGE: Final = 1_000
MAX_REPO_BYTES: Final = 1 << 30
_PAGE_BYTES: Final = 64 << 20
_LIST_BYTES: Final = 4 << 20
_MOST_SPACES: Final = 10_000

_ABSENCES: Final[dict[str, Absence]] = {
    "RepoNotFound": "not_found",
    "SpaceNotFound": "not_found",
    "SpaceDeleted": "space_deleted",
    "Forbidden": "refused",
    "AccessDenied": "refused",
}
_NO_SUCH_METHOD: Final = frozenset(("MethodNotImplemented", "XRPCNotSupported"))
_NO_SUCH_METHOD_STATUS: Final = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class SpacePage:
    """Canonical URIs of spaces, in the host's order, and the cursor that leads on from them (None at the end)."""

    spaces: tuple[str, ...]
    cursor: str | None


class SpaceClient:
    """Reads the spaces of the account that ``session`` is logged in as; ``dialects`` are tried in this order.

    All calls raise FetchFailed; of its kinds PasswordRefused and UnknownDialect concern the whole account,
    SpaceUnavailable one repository.
    """

    def __init__(
        self,
        session: Session,
        *,
        dialects: Sequence[Dialect] = KNOWN,
        page: int = PAGE,
        max_repo_bytes: int = MAX_REPO_BYTES,
    ) -> None:
        self.session = session
        self._dialects = tuple(dialects)
        self._page = page
        self._max_repo_bytes = max_repo_bytes
        self._dialect: Dialect | None = None

    @property
    def did(self) -> str:
        """The account that reads, whose own repositories these are."""
        return self.session.did

    async def dialect(self) -> Dialect:
        """The first dialect that the host answers in; it is asked once. Raises UnknownDialect if that is none."""
        if self._dialect is None:
            for dialect in self._dialects:
                status, body = await self.session.get_json(dialect.list_spaces, max_bytes=_LIST_BYTES)
                if not _is_missing(status, error_code(body)):
                    self._dialect = dialect
                    return dialect
            raise self._unknown()
        return self._dialect

    async def list_spaces(self) -> tuple[str, ...]:
        """Canonical URIs of the account's spaces, each once, at most 10,000."""
        found: dict[str, None] = {}
        async for page in self.pages():
            found |= dict.fromkeys(page.spaces)
            if len(found) >= _MOST_SPACES:
                break
        return tuple(found)[:_MOST_SPACES]

    async def pages(self) -> AsyncIterator[SpacePage]:
        """The list of spaces page by page."""
        cursor: str | None = None
        while True:
            page = await self._space_page(cursor)
            if page.cursor is not None and page.cursor == cursor:
                raise FetchFailed(f"{self.session.pds}: a list of spaces that goes in circles (for {self.did})")
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    async def list_repo_ops(
        self, space: str, *, since: str | None, cursor: str | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """One page of operations on the own repository in ``space``, as it came: for ``repo.Poll.take``."""
        dialect = await self.dialect()
        where = {"space": dialect.spell(space), "repo": self.did, "limit": str(limit or self._page)}
        more = {name: text for name, text in (("since", since), ("cursor", cursor)) if text is not None}
        return await self._object(dialect.list_repo_ops, _PAGE_BYTES, where | more)

    async def get_latest_commit(self, space: str) -> SpaceCommit:
        """The commit at the head of the own repository in ``space``, unjudged."""
        dialect = await self.dialect()
        query = {"space": dialect.spell(space), "repo": self.did}
        body = await self._object(dialect.get_latest_commit, _LIST_BYTES, query)
        commit = read_commit(body.get("commit"))
        if commit is None:
            raise self._unknown()
        return commit

    async def get_repo(self, space: str, file: BinaryIO) -> int:
        """Writes the CAR of the own repository in ``space`` to ``file`` and gives its size; raises SpoolFailed too."""
        session, dialect = self.session, await self.dialect()
        url = session.url(dialect.get_repo, space=dialect.spell(space), repo=self.did)

        async def ask(token: str) -> int:
            file.seek(0)
            file.truncate()
            try:
                return await session.outbound.download(
                    url,
                    file,
                    max_bytes=self._max_repo_bytes,
                    trusted=session.trusted,
                    about=self.did,
                    bearer=token,
                )
            except FetchFailed as error:
                if error.status is None or not 400 <= error.status < 500 or error.retry_after is not None:
                    raise  # no answer, or one that is not about this request
                session.check(error.status, error.code)
                raise self._refusal(error.status, error.code) from None

        return await session.call(ask)

    async def _space_page(self, cursor: str | None) -> SpacePage:
        dialect = await self.dialect()
        more = {} if cursor is None else {"cursor": cursor}
        body = await self._object(dialect.list_spaces, _LIST_BYTES, more)
        listed, after = body.get("spaces"), body.get("cursor")
        uris = [_uri_of(entry) for entry in listed] if isinstance(listed, list) else [None]
        if None in uris or not (after is None or (isinstance(after, str) and len(after) <= LONGEST_CURSOR)):
            raise self._unknown()
        return SpacePage(tuple(uri for uri in uris if uri is not None), after or None)

    async def _object(self, method: str, max_bytes: int, query: dict[str, str]) -> dict[str, Any]:
        status, body = await self.session.get_json(method, max_bytes=max_bytes, **query)
        if status == 200 and isinstance(body, dict):
            return body
        raise self._refusal(status, error_code(body))

    def _refusal(self, status: int, code: str | None) -> FetchFailed:
        """The failure that an answer is, by its status and the error it names. The space is private: it isn't named."""
        place = f"{self.session.pds}: "
        state = _ABSENCES.get(code or "") or ("refused" if status == 403 else None)
        if state is not None:
            message = f"{place}a space repository of {self.did}: {state.replace('_', ' ')}"
            return SpaceUnavailable(message, state=state, status=status, code=code)
        if _is_missing(status, code):
            return self._unknown()
        message = f"{place}answers {status} {code or ''}".rstrip() + f" (for {self.did})"
        permanent = 400 <= status < 500 and status not in (408, 425)
        return FetchFailed(message, permanent=permanent, status=status, code=code)

    def _unknown(self) -> UnknownDialect:
        known = ", ".join(dialect.name for dialect in self._dialects)
        return UnknownDialect(
            f"{self.session.pds}: offers no permissioned spaces in a form that this version knows ({known}): "
            "look for a newer version of letta-indexer"
        )


def _uri_of(entry: object) -> str | None:
    uri = entry.get("uri") if isinstance(entry, dict) else None
    return parse_space_uri(uri) if isinstance(uri, str) else None


def _is_missing(status: int, code: str | None) -> bool:
    """Whether the host doesn't know the method (a repository that isn't there has an error name of its own)."""
    return code in _NO_SUCH_METHOD or (status in _NO_SUCH_METHOD_STATUS and code not in _ABSENCES)
