"""An HTTP server on loopback that remembers what it was asked and can be told to misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

from aiohttp import web

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpFault(Protocol):
    """Something that stands between a request and its answer."""

    def wants(self, request: web.Request) -> bool:
        """Whether this request is to be answered by the fault."""

    async def answer(self, request: web.Request, proceed: Handler) -> web.StreamResponse:
        """The answer instead; ``proceed`` gives the proper one."""


AnyFault = TypeVar("AnyFault", bound=HttpFault)


class Service:
    """Base of the simulated HTTP servers: ``async with Service() as service: service.url``.

    ``requests`` holds path and query of every request, in order.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.requests: list[str] = []
        self._port = port
        self._faults: list[HttpFault] = []
        self._asked = asyncio.Event()
        self._runner: web.AppRunner | None = None

    def routes(self) -> Iterable[web.RouteDef]:
        """What the server answers."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self._port}"

    def inject(self, fault: AnyFault) -> AnyFault:
        """Let a fault stand before every answer from now on (the first that wants a request takes it)."""
        self._faults.append(fault)
        return fault

    def cure(self, fault: HttpFault) -> None:
        """Take a fault away again."""
        self._faults.remove(fault)

    async def requested(self, part: str, times: int = 1) -> None:
        """Wait until so many requests had ``part`` in their path or query."""
        while sum(part in request for request in self.requests) < times:
            await self._asked.wait()

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._middleware])
        application.add_routes(self.routes())
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        self._asked.set()
        self._asked = asyncio.Event()
        for fault in self._faults:
            if fault.wants(request):
                return await fault.answer(request, handler)
        return await handler(request)


def refused(name: str, message: str, status: int = 400) -> web.Response:
    """An XRPC error: ``{error, message}``."""
    return web.json_response({"error": name, "message": message}, status=status)
