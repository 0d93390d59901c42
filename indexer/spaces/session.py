"""A login with an app password: made when first needed, renewed when it expires, given up when it is revoked.

Specification: ``com.atproto.server.createSession`` and ``refreshSession``. An access token lives for hours, a refresh
token for weeks; a revoked app password takes its refresh tokens with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from yarl import URL

from indexer.outbound import FetchFailed, Outbound, error_code
from indexer.spaces.failures import PasswordRefused

Answer = TypeVar("Answer")

_CREATE: Final = "com.atproto.server.createSession"
_REFRESH: Final = "com.atproto.server.refreshSession"
_LONGEST_TOKEN: Final = 16_384
_STALE: Final = frozenset(("ExpiredToken", "InvalidToken", "AuthMissing", "AuthenticationRequired"))
_REFUSED: Final = frozenset(("AuthenticationRequired", "AuthFactorTokenRequired", "AccountTakedown", "InvalidToken"))


class Secret:
    """Text that shows up in no message, log or traceback: only :meth:`reveal` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "Secret(…)"

    def reveal(self) -> str:
        """The text itself."""
        return self._text


class StaleToken(FetchFailed):
    """The host doesn't take the access token (any longer): renew it and ask again."""


class Session:
    """Calls on the host ``pds`` (an origin) as the account ``did``.

    ``password`` is an app password. ``trusted`` says that the host's URL is the operator's own. Once the host has
    refused the password, every call raises PasswordRefused without asking: a new password needs a new session.
    """

    def __init__(self, outbound: Outbound, pds: str, did: str, password: Secret, *, trusted: bool = False) -> None:
        self.outbound = outbound
        self.pds = pds
        self.did = did
        self.trusted = trusted
        self._password = password
        self._access: Secret | None = None
        self._refresh: Secret | None = None
        self._refused: PasswordRefused | None = None
        self._renewing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Session({self.pds!r}, {self.did!r})"

    def url(self, method: str, **query: str) -> str:
        """The URL of an XRPC method with its parameters."""
        return str((URL(self.pds) / "xrpc" / method).with_query(query))

    async def call(self, ask: Callable[[str], Awaitable[Answer]]) -> Answer:
        """What ``ask`` gives when called with an access token; where it raises StaleToken, once more with a new one.

        Raises PasswordRefused, and FetchFailed as ``ask`` and the login do.
        """
        access = self._access or await self._renewed(None)
        try:
            return await ask(access.reveal())
        except StaleToken:
            access = await self._renewed(access)
        try:
            return await ask(access.reveal())
        except StaleToken as error:
            message = f"{self.pds}: doesn't take a token that it has just given out (for {self.did})"
            raise FetchFailed(message, status=error.status, code=error.code) from None

    async def get_json(self, method: str, *, max_bytes: int, **query: str) -> tuple[int, Any]:
        """Status and decoded JSON of an XRPC query, with the login."""

        async def ask(token: str) -> tuple[int, Any]:
            status, body = await self.outbound.get_json(
                self.url(method, **query), max_bytes=max_bytes, trusted=self.trusted, about=self.did, bearer=token
            )
            self.check(status, error_code(body))
            return status, body

        return await self.call(ask)

    def check(self, status: int | None, code: str | None) -> None:
        """Raise StaleToken if a refusal is about the token."""
        if status == 401 or (status == 400 and code in _STALE):
            raise StaleToken(f"{self.pds}: doesn't take the token (for {self.did})", status=status, code=code)

    async def _renewed(self, stale: Secret | None) -> Secret:
        """An access token other than ``stale``; those who ask at the same time share it."""
        async with self._renewing:
            if self._refused is not None:
                raise PasswordRefused(str(self._refused), status=self._refused.status, code=self._refused.code)
            if self._access is None or self._access is stale:
                self._access = None
                self._access = await self._refreshed() or await self._signed_in()
            return self._access

    async def _refreshed(self) -> Secret | None:
        """A token by the refresh token; None if there is none, or the host doesn't take it."""
        if self._refresh is None:
            return None
        refresh, self._refresh = self._refresh, None  # each works once
        try:
            status, body = await self._post(_REFRESH, None, bearer=refresh.reveal())
        except FetchFailed:
            self._refresh = refresh  # no answer: it may still work
            raise
        return self._tokens(body) if status == 200 else None

    async def _signed_in(self) -> Secret:
        content = {"identifier": self.did, "password": self._password.reveal()}
        status, body = await self._post(_CREATE, content)
        if status == 200:
            return self._tokens(body)
        code = error_code(body)
        if status == 401 or code in _REFUSED:
            self._refused = PasswordRefused(
                f"{self.pds}: refuses the app password of {self.did} ({code or status}): give a new one",
                status=status,
                code=code,
            )
            raise self._refused
        raise FetchFailed(
            f"{self.pds}: answers {status} {code or ''}".rstrip() + f" to the login of {self.did}",
            status=status,
            code=code,
        )

    async def _post(self, method: str, content: object, *, bearer: str = "") -> tuple[int, Any]:
        return await self.outbound.post_json(
            self.url(method), content, trusted=self.trusted, about=self.did, bearer=bearer
        )

    def _tokens(self, body: object) -> Secret:
        """Keeps the tokens of an answer, and gives the one for access."""
        tokens = body if isinstance(body, dict) else {}
        access, refresh = tokens.get("accessJwt"), tokens.get("refreshJwt")
        usable = all(isinstance(text, str) and _is_token(text) for text in (access, refresh))
        if not usable or tokens.get("did") != self.did:
            raise FetchFailed(f"{self.pds}: its login is none, or another account's than {self.did}", permanent=True)
        self._refresh = Secret(str(refresh))
        return Secret(str(access))


def _is_token(text: str) -> bool:
    """Whether it can stand in a header."""
    return 0 < len(text) <= _LONGEST_TOKEN and text.isascii() and text.isprintable() and " " not in text
