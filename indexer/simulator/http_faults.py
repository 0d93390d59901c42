"""Faults of HTTP servers, to be given to :meth:`Service.inject`, each counting how often it was injected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from indexer.simulator.service import Handler, refused


class RequestFault:
    """Base: takes the requests with ``part`` in their path or query, at most ``times`` of them. ``injected`` counts."""

    def __init__(self, part: str = "", *, times: int | None = None) -> None:
        self.injected = 0
        self._part = part
        self._times = times

    def wants(self, request: web.Request) -> bool:
        """Whether this request is to be answered by the fault."""
        return self._part in request.path_qs and (self._times is None or self.injected < self._times)

    async def answer(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """Count, then answer with :meth:`misbehave`."""
        self.injected += 1
        return await self.misbehave(request, proceed)

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The answer instead of the proper one."""
        raise NotImplementedError


class Refuse(RequestFault):
    """The server answers with ``status`` (429, 503, …), and ``Retry-After`` if ``retry_after`` is given."""

    def __init__(
        self, part: str = "", *, status: int = 503, retry_after: str | None = None, times: int | None = None
    ) -> None:
        super().__init__(part, times=times)
        self._status = status
        self._headers = {} if retry_after is None else {"Retry-After": retry_after}

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The refusal, as XRPC words it."""
        name = "RateLimitExceeded" if self._status == 429 else "NotAvailable"
        response = refused(name, "not now", status=self._status)
        response.headers.update(self._headers)
        return response


class Hang(RequestFault):
    """The server takes the request and doesn't answer until :meth:`release`."""

    def __init__(self, part: str = "", *, times: int | None = None) -> None:
        super().__init__(part, times=times)
        self._released = asyncio.Event()

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The proper answer, once released."""
        await self._released.wait()
        return await proceed(request)

    def release(self) -> None:
        """Let all who wait, and all to come, have their answers."""
        self._released.set()


class Slow(RequestFault):
    """The body comes in ``pieces`` with ``pause`` seconds before each."""

    def __init__(self, part: str = "", *, pieces: int = 10, pause: float = 0.05, times: int | None = None) -> None:
        super().__init__(part, times=times)
        self._pieces = pieces
        self._pause = pause

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The proper answer, drop by drop."""
        proper, body = await _proper(request, proceed)
        response = web.StreamResponse(status=proper.status, headers={"Content-Type": proper.content_type})
        await response.prepare(request)
        size = -(-len(body) // self._pieces)
        for at in range(0, len(body), max(size, 1)):
            await asyncio.sleep(self._pause)
            await response.write(body[at : at + size])
        await response.write_eof()
        return response


class BreakOff(RequestFault):
    """The connection is cut after ``fraction`` of the announced body."""

    def __init__(self, part: str = "", *, fraction: float = 0.5, times: int | None = None) -> None:
        super().__init__(part, times=times)
        self._fraction = fraction

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The head of the proper answer and the beginning of its body."""
        proper, body = await _proper(request, proceed)
        response = web.StreamResponse(status=proper.status, headers={"Content-Type": proper.content_type})
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: int(len(body) * self._fraction)])
        if request.transport is not None:
            request.transport.close()
        return response


class AlterBody(RequestFault):
    """The answer is complete as HTTP goes, but its body is ``change`` of the proper one (a cut CAR, a flipped bit)."""

    def __init__(self, part: str, change: Callable[[bytes], bytes], *, times: int | None = None) -> None:
        super().__init__(part, times=times)
        self._change = change

    async def misbehave(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The proper answer with another body."""
        proper, body = await _proper(request, proceed)
        return web.Response(status=proper.status, body=self._change(body), content_type=proper.content_type)


async def _proper(request: web.Request, proceed: Handler) -> tuple[web.Response, bytes]:
    """The answer that would have been given, and its body."""
    response = await proceed(request)
    if not isinstance(response, web.Response):
        raise TypeError("a stream has no body to alter")
    body = response.body
    return response, body if isinstance(body, bytes) else b""
