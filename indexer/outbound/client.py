"""The HTTP client: requests that a hostile host can neither turn against our network nor make endless.

Every connection of a stranger's URL is made by a socket factory that looks at the address it is about to connect to.
Whatever a URL, a redirect or a name server says, and however often it changes its answer, there is no other way out.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from indexer import __version__
from indexer.outbound.addresses import is_public, parse_url, place_of
from indexer.outbound.answers import Answer
from indexer.outbound.failures import FetchFailed, SpoolFailed
from indexer.outbound.names import Names
from indexer.outbound.pacing import OVERLOADED, Pacing

CAR: Final = "application/vnd.ipld.car"
JSON: Final = "application/json"
USER_AGENT: Final = f"letta-indexer/{__version__}"
MAX_REDIRECTS: Final = 3
CONNECT_TIMEOUT: Final = 10.0
IDLE_TIMEOUT: Final = 20.0  # the longest silence within an answer

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_NOT_IMPLEMENTED: Final = 501
_SPOOL_BYTES: Final = 1 << 20  # written at once, off the event loop


class Reply(NamedTuple):
    """An answer: HTTP status, media type in lower case without parameters, body as it came."""

    status: int
    media_type: str
    body: bytes


class _ForbiddenAddress(OSError):
    """The address is not public. All have the same text, which lets aiohttp hand on the first of several as it is."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "its address is not public")


@dataclass(frozen=True, slots=True)
class _Request:
    url: URL
    trusted: bool
    accept: str
    timeout: float
    about: str  # for messages: '' or ' (for …)'
    bearer: str = field(default="", repr=False)
    content: bytes | None = field(default=None, repr=False)  # JSON to be posted; None: a GET

    @property
    def place(self) -> str:
        return place_of(self.url)

    @property
    def method(self) -> str:
        return "GET" if self.content is None else "POST"

    @property
    def headers(self) -> dict[str, str]:
        login = {"Authorization": f"Bearer {self.bearer}"} if self.bearer else {}
        return {"Accept": self.accept} | login | ({"Content-Type": JSON} if self.content else {})


class Outbound:
    """The one HTTP client, one for the whole process, to be closed with :meth:`aclose`.

    URLs are taken for a stranger's: https, to public addresses, at most three redirects, each looked at anew. With
    ``trusted`` a URL is the operator's: http and private addresses are allowed at its origin, and so they are
    everywhere with ``allow_private_hosts``. Neither cookies nor proxies nor compression are ever used.

    ``total_connections`` bounds the strangers' connections open at a time, ``per_host`` those to one host, and
    ``patience`` is how many seconds a request waits for its turn there. ``tls`` replaces the machine's trust store,
    ``resolver`` its DNS, ``is_allowed`` the judgement on addresses; ``clock`` is Unix time.

    What carries a secret (``bearer``, a token that goes into the Authorization header, or what is posted) goes to the
    host it is for and nowhere else: a redirect is then a failure.

    All methods raise FetchFailed, and nothing else for whatever a host does.
    """

    def __init__(
        self,
        *,
        allow_private_hosts: bool = False,
        total_connections: int = 32,
        per_host: int = 2,
        patience: float = 30.0,
        idle_timeout: float = IDLE_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
        is_allowed: Callable[[str], bool] = is_public,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.allow_private_hosts = allow_private_hosts
        self._total_connections = total_connections
        self._idle_timeout = idle_timeout
        self._tls = tls
        self._resolver = resolver
        self._is_allowed = is_allowed
        self._monotonic = monotonic
        self._pacing = Pacing(per_host=per_host, patience=patience, monotonic=monotonic, clock=clock)
        self._names = Names()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def aclose(self) -> None:
        """Closes every connection."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def wait(self, url: str) -> float:
        """Seconds until the URL's host may be asked again (it asked for a pause), 0 if it may be now."""
        return self._pacing.wait(_place(url))

    def busy(self, url: str) -> bool:
        """Whether a request to the URL's host would have to wait for another to end."""
        return self._pacing.busy(_place(url))

    async def texts(self, name: str) -> list[str]:
        """The TXT records of a DNS name; [] if there are none or nobody answers."""
        return await self._names.texts(name)

    async def fetch(
        self,
        url: str,
        *,
        accept: str = "*/*",
        max_bytes: int = 1 << 20,
        timeout: float = 30.0,
        trusted: bool = False,
        about: str = "",
        bearer: str = "",
    ) -> Reply:
        """The answer to GET ``url``, whatever its status below 500, or 501.

        ``timeout`` bounds the whole in seconds, redirects included, ``max_bytes`` the body. ``about`` is whom or what
        the request is for, for messages. Raises FetchFailed for 429 and 503 (from then on the host is left alone),
        for other failures of the host, and for an answer that is too long, too slow, compressed or cut off.
        """
        return await self._reply(self._request(url, accept, timeout, trusted, about, bearer), max_bytes)

    async def get_json(
        self,
        url: str,
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 30.0,
        trusted: bool = False,
        about: str = "",
        bearer: str = "",
    ) -> tuple[int, Any]:
        """Status and decoded JSON of an answer, as :meth:`fetch`; what isn't JSON is None with a status above 299.

        Raises FetchFailed also for a success that isn't JSON. The media type plays no part: documents lie on static
        hosts too.
        """
        request = self._request(url, JSON, timeout, trusted, about, bearer)
        return _decoded(request, await self._reply(request, max_bytes))

    async def post_json(
        self,
        url: str,
        content: object,
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 30.0,
        trusted: bool = False,
        about: str = "",
        bearer: str = "",
    ) -> tuple[int, Any]:
        """Status and decoded JSON of the answer to POST ``content`` as JSON (None: no body), as :meth:`get_json`."""
        body = b"" if content is None else json.dumps(content).encode()
        request = replace(self._request(url, JSON, timeout, trusted, about, bearer), content=body)
        return _decoded(request, await self._reply(request, max_bytes))

    async def download(
        self,
        url: str,
        file: BinaryIO,
        *,
        max_bytes: int,
        accept: str = CAR,
        timeout: float = 1800.0,
        min_rate: float = 16_384.0,
        grace: float = 30.0,
        trusted: bool = False,
        about: str = "",
        bearer: str = "",
    ) -> int:
        """Writes the body of a successful answer to ``file`` and gives its size in bytes.

        The media type has to be ``accept`` or ``application/octet-stream``. After ``grace`` seconds an answer that
        comes at under ``min_rate`` bytes a second, on average, is cut off. Raises FetchFailed as :meth:`fetch` and for
        every other status than 200 (``status`` and ``code`` tell which), SpoolFailed if the file can't be written.
        """
        async with self._answer(self._request(url, accept, timeout, trusted, about, bearer)) as answer:
            if answer.status != 200:
                raise await answer.refusal()
            if answer.media_type not in (accept, "application/octet-stream"):
                raise answer.failure(f"its answer is not {accept}")
            return await self._spool(answer, file, max_bytes, min_rate, grace)

    async def _spool(self, answer: Answer, file: BinaryIO, max_bytes: int, min_rate: float, grace: float) -> int:
        size, started, waiting = 0, self._monotonic(), bytearray()
        async for chunk in answer.chunks(max_bytes):
            size += len(chunk)
            elapsed = self._monotonic() - started
            if elapsed > grace and size < min_rate * elapsed:
                raise answer.failure(f"too slow: {size} bytes in {elapsed:.0f} s")
            waiting += chunk
            if len(waiting) >= _SPOOL_BYTES:
                await _write(file, waiting)
                waiting = bytearray()
        await _write(file, waiting)
        return size

    def _request(self, url: str, accept: str, timeout: float, trusted: bool, about: str, bearer: str) -> _Request:
        trusted = trusted or self.allow_private_hosts
        parsed = parse_url(url, private=trusted, about=_for(about))
        return _Request(parsed, trusted, accept, timeout, _for(about), bearer)

    async def _reply(self, request: _Request, max_bytes: int) -> Reply:
        async with self._answer(request) as answer:
            return Reply(answer.status, answer.media_type, await answer.body(max_bytes))

    @asynccontextmanager
    async def _answer(self, request: _Request) -> AsyncIterator[Answer]:
        """The answer after all redirects; its body has to be read within the context, which ends with the deadline."""
        with _translated(request):
            async with asyncio.timeout(None) as deadline, AsyncExitStack() as stack:
                yield await self._follow(request, stack, deadline)

    async def _follow(self, request: _Request, stack: AsyncExitStack, deadline: asyncio.Timeout) -> Answer:
        for _ in range(MAX_REDIRECTS + 1):
            # A turn is given back before the next one is asked for: two that wait for each other would stand still.
            hop = await stack.enter_async_context(AsyncExitStack())
            response = await self._ask(request, hop, deadline)
            if response.status not in _REDIRECTS:
                return Answer(response, request.about)
            request = self._redirected(request, response)
            await hop.aclose()
        raise FetchFailed(f"{request.place}: more than {MAX_REDIRECTS} redirects{request.about}", permanent=True)

    async def _ask(self, request: _Request, hop: AsyncExitStack, deadline: asyncio.Timeout) -> aiohttp.ClientResponse:
        await hop.enter_async_context(self._pacing.turn(request.place, request.about))
        if deadline.when() is None:  # waiting for a turn is not the host's time
            deadline.reschedule(asyncio.get_running_loop().time() + request.timeout)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=self._idle_timeout)
        response = await hop.enter_async_context(
            self._session(request.trusted).request(
                request.method,
                request.url,
                data=request.content,
                allow_redirects=False,
                timeout=limits,
                headers=request.headers,
            )
        )
        pause = self._pacing.learn(request.place, response.status, response.headers)
        if response.status in OVERLOADED:
            message = f"{request.place}: answers {response.status}{request.about}; it is left alone for {pause:.0f} s"
            raise FetchFailed(message, retry_after=pause, status=response.status)
        if response.status >= 500 and response.status != _NOT_IMPLEMENTED:
            raise Answer(response, request.about).failure(f"answers {response.status}")
        return response

    def _redirected(self, request: _Request, response: aiohttp.ClientResponse) -> _Request:
        """The request that a redirect asks for. Trust in an origin doesn't extend to where it points."""
        if request.bearer or request.content is not None:
            message = f"{request.place}: a redirect is not followed with a login{request.about}"
            raise FetchFailed(message, permanent=True, status=response.status)
        try:
            target = request.url.join(URL(response.headers.get("Location", "")))
        except ValueError:
            target = URL()
        at_home = target.absolute and target.origin() == request.url.origin() if target.raw_host else False
        trusted = self.allow_private_hosts or (request.trusted and at_home)
        return replace(request, url=parse_url(str(target), private=trusted, about=request.about), trusted=trusted)

    def _session(self, trusted: bool) -> aiohttp.ClientSession:
        """Strangers and trusted hosts have connections of their own, so that none is used beyond its rights."""
        if trusted not in self._sessions:
            connector = aiohttp.TCPConnector(
                limit=self._total_connections,
                use_dns_cache=False,
                resolver=self._resolver or (None if trusted else self._names),
                ssl=self._tls or True,
                socket_factory=None if trusted else self._open_socket,
            )
            self._sessions[trusted] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            )
        return self._sessions[trusted]

    def _open_socket(self, info: Any) -> socket.socket:
        """The socket for a connection to the address in ``info`` (as of ``getaddrinfo``), if it may be made."""
        family, kind, protocol, _, address = info
        if not self._is_allowed(address[0]):
            raise _ForbiddenAddress
        return socket.socket(family, kind, protocol)


@contextmanager
def _translated(request: _Request) -> Iterator[None]:
    """Turns what aiohttp raises into FetchFailed."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, _ForbiddenAddress):
            hint = "only public addresses are connected to (development: --allow-private-hosts)"
            raise FetchFailed(f"{request.place}: {hint}{request.about}", permanent=True) from None
        raise FetchFailed(f"{request.place}: no connection ({_kind(error.os_error)}){request.about}") from error
    except TimeoutError as error:
        raise FetchFailed(f"{request.place}: no answer in time{request.about}") from error
    except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:  # uvloop raises RuntimeError for OSError
        raise FetchFailed(f"{request.place}: no whole answer ({_kind(error)}){request.about}") from error


def _decoded(request: _Request, reply: Reply) -> tuple[int, Any]:
    try:
        return reply.status, json.loads(reply.body)
    except (ValueError, RecursionError):
        if reply.status >= 300:
            return reply.status, None
    raise FetchFailed(f"{request.place}: its answer is no JSON{request.about}", status=reply.status)


def _kind(error: BaseException) -> str:
    """What an error is, without the text that a host may have put into it."""
    name = type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return errno.errorcode.get(error.errno or 0, name)
    return name


def _place(url: str) -> str:
    """``host[:port]`` of a URL, '' of what is none."""
    try:
        return place_of(URL(url))
    except ValueError:
        return ""


def _for(about: str) -> str:
    return f" (for {about})" if about else ""


async def _write(file: BinaryIO, data: bytearray) -> None:
    try:
        await asyncio.to_thread(file.write, data)
    except OSError as error:
        raise SpoolFailed(f"a downloaded file cannot be written: {error.strerror}") from error
