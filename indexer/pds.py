"""The calls of ``com.atproto.sync.*`` and ``com.atproto.repo.*`` that we make, with their answers as values.

Specification: the lexicons of those names. A host's word is taken for what it is: nothing here is proven.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode

from indexer.outbound import FetchFailed, Outbound, error_code
from indexer.syntax import is_did, is_nsid, is_tid

GIBIBYTE: Final = 1 << 30
PAGE: Final = 1_000
MOST_COLLECTIONS: Final = 10_000
NOT_FOUND: Final = "not_found"

_STATES: Final = {
    "RepoNotFound": NOT_FOUND,
    "RepoDeactivated": "deactivated",
    "RepoTakendown": "takendown",
    "RepoSuspended": "suspended",
}
_NO_SUCH_METHOD: Final = frozenset(("MethodNotImplemented", "XRPCNotSupported"))
_NO_SUCH_METHOD_STATUS: Final = (404, 405, 501)
_STATUS: Final = re.compile(r"[a-z_]{1,64}")  # what a host says of an account is shown to others
_LONGEST_CURSOR: Final = 4_096
_PAGE_BYTES: Final = 8 << 20


class RepoUnavailable(FetchFailed):
    """The host doesn't give the repository out; ``state`` says why: not_found, deactivated, takendown, suspended."""

    def __init__(self, message: str, *, state: str, status: int | None, code: str | None) -> None:
        super().__init__(message, permanent=True, status=status, code=code)
        self.state = state


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """What a host says of an account.

    ``status`` is None for an active one, else a word such as deactivated, deleted, desynchronized, or ``not_found``
    where the host doesn't know the account. ``rev`` is that of the host's copy, if it says.
    """

    active: bool
    status: str | None
    rev: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """DIDs of one page, and the cursor that leads on from it (None at the end).

    ``supported`` is False, and the page empty, where the host doesn't know the method.
    """

    dids: tuple[str, ...]
    cursor: str | None
    supported: bool = True


class RepoHost:
    """XRPC calls to any host; ``host`` is an origin such as ``https://pds.example``.

    A host is taken for a stranger's unless a call says ``trusted``. ``max_repo_bytes`` bounds one repository. All
    calls raise FetchFailed; those about one repository its RepoUnavailable where the host says why.
    """

    def __init__(self, outbound: Outbound, *, max_repo_bytes: int = GIBIBYTE) -> None:
        self._outbound = outbound
        self._max_repo_bytes = max_repo_bytes

    async def get_repo(self, host: str, did: str, file: BinaryIO, *, trusted: bool = False) -> int:
        """Writes the repository's CAR, as it comes, to ``file`` and gives its size; raises SpoolFailed too."""
        try:
            return await self._outbound.download(
                _url(host, "com.atproto.sync.getRepo", did=did),
                file,
                max_bytes=self._max_repo_bytes,
                trusted=trusted,
                about=did,
            )
        except FetchFailed as error:
            raise _unavailable(host, did, error.status, error.code) or error from error

    async def get_repo_status(self, host: str, did: str, *, trusted: bool = False) -> RepoStatus:
        """State of the account at this host, refusals included."""
        try:
            body = await self._object(host, "com.atproto.sync.getRepoStatus", did, trusted, did=did)
        except RepoUnavailable as error:
            return RepoStatus(False, error.state, None)
        active, status, rev = body.get("active"), body.get("status"), body.get("rev")
        if not isinstance(active, bool) or body.get("did") != did:
            raise _nonsense(host, did)
        return RepoStatus(
            active,
            None if active else status if isinstance(status, str) and _STATUS.fullmatch(status) else "inactive",
            rev if isinstance(rev, str) and is_tid(rev) else None,
        )

    async def describe_repo(self, host: str, did: str, *, trusted: bool = False) -> tuple[str, ...]:
        """Collections in the repository, at most 10,000."""
        body = await self._object(host, "com.atproto.repo.describeRepo", did, trusted, repo=did)
        collections = body.get("collections")
        if body.get("did") != did or not isinstance(collections, list):
            raise _nonsense(host, did)
        return tuple(name for name in collections[:MOST_COLLECTIONS] if isinstance(name, str) and is_nsid(name))

    async def list_repos_by_collection(
        self, host: str, collection: str, cursor: str | None = None, *, trusted: bool = False
    ) -> AsyncIterator[Page]:
        """Pages of the accounts that have records in ``collection``, from ``cursor`` on.

        A failure part of the way is raised; the last page's cursor resumes. A host that doesn't know the method
        gives one page that says so.
        """
        while True:
            page = await self._page(host, collection, cursor, trusted)
            if page.cursor is not None and page.cursor == cursor:
                raise FetchFailed(f"{host}: a list of repositories that goes in circles", permanent=True)
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    async def _page(self, host: str, collection: str, cursor: str | None, trusted: bool) -> Page:
        more = {} if cursor is None else {"cursor": cursor}
        method = "com.atproto.sync.listReposByCollection"
        url = _url(host, method, collection=collection, limit=str(PAGE), **more)
        status, body = await self._outbound.get_json(url, max_bytes=_PAGE_BYTES, trusted=trusted, about=collection)
        code = error_code(body)
        if status in _NO_SUCH_METHOD_STATUS or code in _NO_SUCH_METHOD:
            return Page((), None, supported=False)
        repos = body.get("repos") if status == 200 and isinstance(body, dict) else None
        if not isinstance(repos, list):
            raise _refused(host, collection, status, code)
        after = body.get("cursor")
        if after is not None and not _is_cursor(after):
            raise _nonsense(host, collection)
        return Page(tuple(dict.fromkeys(filter(None, map(_did_of, repos)))), after or None)

    async def _object(self, host: str, method: str, about: str, trusted: bool, **query: str) -> dict[str, Any]:
        status, body = await self._outbound.get_json(_url(host, method, **query), trusted=trusted, about=about)
        if status == 200 and isinstance(body, dict):
            return body
        raise _refused(host, about, status, error_code(body))


def _url(host: str, method: str, **query: str) -> str:
    return f"{host}/xrpc/{method}?{urlencode(query, quote_via=quote)}"


def _is_cursor(value: object) -> bool:
    """Whether a host's cursor can be kept, and given back to it: text that is Unicode, without U+0000."""
    if not isinstance(value, str) or len(value) > _LONGEST_CURSOR or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _did_of(repo: object) -> str | None:
    did = repo.get("did") if isinstance(repo, dict) else None
    return did if isinstance(did, str) and is_did(did) else None


def _decoded(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _unavailable(host: str, did: str, status: int | None, code: str | None) -> RepoUnavailable | None:
    state = _STATES.get(code or "")
    if state is None:
        return None
    return RepoUnavailable(f"{host}: the repository of {did} is {state}", state=state, status=status, code=code)


def _refused(host: str, about: str, status: int, code: str | None) -> FetchFailed:
    """The failure that an answer is, by its status and the error it names."""
    return _unavailable(host, about, status, code) or FetchFailed(
        f"{host}: answers {status} {code or ''}".rstrip() + f" (for {about})",
        permanent=400 <= status < 500,
        status=status,
        code=code,
    )


def _nonsense(host: str, about: str) -> FetchFailed:
    return FetchFailed(f"{host}: its answer is not of the form its lexicon demands (for {about})")
