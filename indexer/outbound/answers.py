"""An answer while it is being read: as it came, and up to a limit."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from indexer.outbound.addresses import place_of
from indexer.outbound.failures import FetchFailed

_RETRIABLE: Final = (408, 425)
_ERROR_BYTES: Final = 64 << 10  # the most read of a refusal
_CODE: Final = re.compile(r"[A-Za-z]{1,64}")


class Answer:
    """A response whose body hasn't been read; ``about`` ends every message: '' or ' (for …)'."""

    __slots__ = ("_about", "_response", "status")

    def __init__(self, response: aiohttp.ClientResponse, about: str) -> None:
        self._response = response
        self._about = about
        self.status = response.status

    @property
    def media_type(self) -> str:
        """Media type in lower case, without parameters; '' if there is none."""
        return self._response.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def failure(self, what: str) -> FetchFailed:
        """The failure that this answer is."""
        return FetchFailed(f"{place_of(self._response.url)}: {what}{self._about}", status=self.status)

    async def chunks(self, max_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes; raises FetchFailed if it is compressed or longer than ``max_bytes``."""
        if self._response.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
            raise self.failure("its answer is compressed, which was not asked for")
        if (self._response.content_length or 0) > max_bytes:
            raise self.failure(f"its answer is over {max_bytes} bytes long")
        size = 0
        async for chunk in self._response.content.iter_any():
            size += len(chunk)
            if size > max_bytes:
                raise self.failure(f"its answer is over {max_bytes} bytes long")
            yield chunk

    async def body(self, max_bytes: int) -> bytes:
        """The whole body, as :meth:`chunks`."""
        return b"".join([chunk async for chunk in self.chunks(max_bytes)])

    async def refusal(self) -> FetchFailed:
        """The failure that an answer other than 200 is, with the error name of XRPC if it has one."""
        try:
            code = error_code(json.loads(await self.body(_ERROR_BYTES)))
        except (
            ValueError,
            RecursionError,
            FetchFailed,
        ):  # a page for people, perhaps a long one: the status says enough
            code = None
        error = self.failure(f"answers {self.status} {code or ''}".rstrip())
        error.permanent = 400 <= self.status < 500 and self.status not in _RETRIABLE
        error.code = code
        return error


def error_code(body: object) -> str | None:
    """The error name in the decoded body of an XRPC refusal, None if it holds no word."""
    code = body.get("error") if isinstance(body, dict) else None
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None
