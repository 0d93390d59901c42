"""The HTTP side: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever runs the daemon, and the page.

It answers GET and HEAD, reads no body, names no software, and is bounded: connections in number and age, heads in
size, readiness in time. So a client that misbehaves costs little, also where the port is open to more than one host.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, cast

import structlog
from aiohttp import StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from indexer.config_values import Listen
from indexer.errors import SettingsError
from indexer.metrics import Metrics

Readiness: TypeAlias = Callable[[], Awaitable[list[str]] | list[str]]
Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.Response]]

READINESS_SECONDS: Final = 2.0
MAX_CONNECTIONS: Final = 64
CONNECTION_SECONDS: Final = 60.0
STOP_SECONDS: Final = 2.0
MAX_LINE: Final = 2048
MAX_FIELD: Final = 4096
MAX_HEADERS: Final = 32

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_log = structlog.stdlib.get_logger("indexer.http")


class _Request(web.BaseRequest):
    """A request whose response has our headers, or its own in their place, and no ``Server``.

    Also where aiohttp itself refuses it.
    """

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)


class _Connection(web.RequestHandler):
    """A connection that is cut at once beyond ``MAX_CONNECTIONS``, and in any case after ``CONNECTION_SECONDS``."""

    __slots__ = ("_cut", "_others")

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=CONNECTION_SECONDS / 2,
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_HEADERS,
            lingering_time=0,
            auto_decompress=False,
        )
        self._others = server
        self._cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        abort = cast(asyncio.Transport, transport).abort  # uvloop's are no subclass of it
        if len(self._others.connections) > MAX_CONNECTIONS:
            abort()
        else:
            self._cut = asyncio.get_running_loop().call_later(CONNECTION_SECONDS, abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Refuse a malformed request without saying what is wrong with it: that would quote it."""
        return super().handle_error(request, status, exc, "bad request\n")

    def log_exception(self, *args: object, **kwargs: object) -> None:
        """Say nothing: a malformed request is its sender's business, and faults of our own are logged below."""


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self)


class HttpServer:
    """Serves the numbers of ``metrics`` and the answers of ``readiness`` on ``listen``.

    ``readiness`` returns the reasons why the daemon is not ready (none: it is), at once or as an awaitable that is
    given ``READINESS_SECONDS``; it may be called as often as anybody asks, so it should answer from what is known.
    ``routes`` are further paths with what answers them. ``role`` returns what the daemon is at the moment, ``writer``
    or ``standby``.
    """

    def __init__(
        self,
        listen: Listen,
        metrics: Metrics,
        *,
        readiness: Readiness,
        routes: Mapping[str, Handler] | None = None,
        role: Callable[[], str] = lambda: "writer",
    ) -> None:
        self._listen = listen
        self._metrics = metrics
        self._readiness = readiness
        self._role = role
        self._runner: web.ServerRunner | None = None
        self._port = listen.port
        self._routes: dict[str, Handler] = {
            **(routes or {}),
            "/metrics": self._serve_metrics,
            "/healthz": self._serve_health,
            "/readyz": self._serve_readiness,
        }

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end; the actual port once started."""
        return f"http://{Listen(self._listen.host, self._port)}"

    async def start(self) -> None:
        """Bind and serve. Raises SettingsError, naming ``--listen``, if the address cannot be had."""
        server = _Server(self._answer, request_factory=_make_request)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._listen.host, self._listen.port).start()
        except OSError as error:
            await runner.cleanup()
            raise SettingsError(f"--listen: cannot listen on {self._listen}: {_why(error)}") from None
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop serving; answers under way are given ``STOP_SECONDS``. Without effect if not started."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        route = self._routes.get(request.path)
        if route is None:
            return _text(404, "not found\n")
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return _text(405, "only GET and HEAD\n", Allow="GET, HEAD")
        try:
            return await route(request)
        except Exception:
            _log.exception("a request could not be answered", path=request.path)
            return _text(500, "internal error\n")

    async def _serve_metrics(self, request: web.BaseRequest) -> web.Response:
        body, content_type = self._metrics.render(request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _serve_health(self, request: web.BaseRequest) -> web.Response:
        return _text(200, "ok\n")  # that this ran is the proof

    async def _serve_readiness(self, request: web.BaseRequest) -> web.Response:
        reasons = await ask_readiness(self._readiness)
        body = json.dumps({"ready": not reasons, "reasons": reasons, "role": self._role()}) + "\n"
        return web.Response(status=503 if reasons else 200, text=body, headers={hdrs.CONTENT_TYPE: _JSON})


async def ask_readiness(readiness: Readiness) -> list[str]:
    """The reasons why the daemon is not ready; no answer within ``READINESS_SECONDS``, or a fault, is one too."""
    try:
        async with asyncio.timeout(READINESS_SECONDS):
            answer = readiness()
            return answer if isinstance(answer, list) else await answer
    except TimeoutError:
        return [f"the readiness check gave no answer within {READINESS_SECONDS:g} s"]
    except Exception as error:
        _log.exception("the readiness check failed")
        return [f"the readiness check failed: {type(error).__name__}"]


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    return _Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _text(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=text, headers={hdrs.CONTENT_TYPE: _TEXT, **headers})


def _why(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return "the host name does not resolve"  # socket.gaierror has numbers of its own, below 0
