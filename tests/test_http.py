"""The HTTP side: right answers, nothing said about the software, bounded whatever a client does."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from indexer import http
from indexer.config_values import Listen
from indexer.errors import SettingsError
from indexer.http import HttpServer
from indexer.metrics import Metrics


class Daemon:
    """Stands in for what the daemon knows: the reasons why it isn't ready."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def readiness(self) -> list[str]:
        return self.reasons


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def server(daemon: Daemon) -> AsyncIterator[HttpServer]:
    server = HttpServer(Listen("127.0.0.1", 0), Metrics(lambda: 0.0), readiness=daemon.readiness)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def raw(server: HttpServer, data: bytes) -> bytes:
    """Send bytes as they are and return everything the server says until it closes or resets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def port_of(server: HttpServer) -> int:
    return int(server.url.rpartition(":")[2])


async def serve_on_free_port(readiness: http.Readiness) -> HttpServer:
    server = HttpServer(Listen("127.0.0.1", 0), Metrics(lambda: 0.0), readiness=readiness)
    await server.start()
    return server


async def test_metrics_are_served_in_both_formats(client: aiohttp.ClientSession) -> None:
    """Prometheus gets the format it asks for, labelled as such."""
    async with client.get("/metrics") as plain:
        assert plain.status == 200
        assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "letta_indexer_build_info{" in await plain.text()
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as opened:
        assert opened.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await opened.text()).endswith("# EOF\n")


async def test_health_needs_nothing_but_the_loop(client: aiohttp.ClientSession, daemon: Daemon) -> None:
    """A daemon that isn't ready is still alive: restarting it would help nobody."""
    daemon.reasons = ["the database does not answer"]
    async with client.get("/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_readiness_tells_its_reasons(client: aiohttp.ClientSession, daemon: Daemon) -> None:
    """200 when ready, 503 with the reasons when not, as JSON either way."""
    async with client.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": [], "role": "writer"})
    daemon.reasons = ["source firehose:a: last event 300 s ago"]
    async with client.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (
            503,
            {"ready": False, "reasons": daemon.reasons, "role": "writer"},
        )


async def test_readiness_may_be_awaited() -> None:
    """A check that has to ask somebody is awaited."""

    async def ask() -> list[str]:
        return ["asked"]

    server = await serve_on_free_port(ask)
    async with aiohttp.ClientSession(server.url) as client, client.get("/readyz") as answer:
        assert (await answer.json())["reasons"] == ["asked"]
    await server.stop()


async def test_a_readiness_check_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe gets its answer within the bound: not ready, because the check gave none."""
    monkeypatch.setattr(http, "READINESS_SECONDS", 0.01)
    cancelled = asyncio.Event()

    async def hang() -> list[str]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    server = await serve_on_free_port(hang)
    async with aiohttp.ClientSession(server.url) as client, client.get("/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["reasons"] == ["the readiness check gave no answer within 0.01 s"]
    assert cancelled.is_set()
    await server.stop()


async def test_a_readiness_check_that_fails_is_not_ready() -> None:
    """A fault in the check is an answer too, and its message (which may quote anything) isn't in it."""

    def fail() -> list[str]:
        raise ValueError("hunter2")

    server = await serve_on_free_port(fail)
    async with aiohttp.ClientSession(server.url) as client, client.get("/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["reasons"] == ["the readiness check failed: ValueError"]
    await server.stop()


async def test_a_fault_of_our_own_is_a_500_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """If numbers can't be rendered, the client learns only that, and the server goes on."""
    metrics = Metrics(lambda: 0.0)

    def fail() -> int:
        raise ValueError("hunter2")

    metrics.watch_queue("frames", fail)
    server = HttpServer(Listen("127.0.0.1", 0), metrics, readiness=list)
    await server.start()
    async with aiohttp.ClientSession(server.url) as client:
        async with client.get("/metrics") as answer:
            assert (answer.status, await answer.text()) == (500, "internal error\n")
        async with client.get("/healthz") as answer:
            assert answer.status == 200
    await server.stop()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_head_is_get_without_the_body(client: aiohttp.ClientSession, path: str) -> None:
    """HEAD has GET's status and length, and nothing after the head."""
    async with client.get(path) as got, client.head(path) as head:
        assert head.status == got.status
        assert head.headers["Content-Length"] == str(len(await got.read()))
        assert await head.read() == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_only_reading_is_allowed(client: aiohttp.ClientSession, method: str) -> None:
    """Any other method is refused, whatever it sends along, and told what is allowed."""
    async with client.request(method, "/metrics", data=b"x" * 1000) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/healthz/../../etc/passwd", "/%00"])
async def test_there_is_nothing_else(client: aiohttp.ClientSession, path: str) -> None:
    """Every other path is not found, and isn't echoed."""
    async with client.get(path) as answer:
        assert (answer.status, await answer.text()) == (404, "not found\n")


REQUESTS = [
    b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"POST /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nbroken header\r\n\r\n",
    b"GET /" + b"a" * (http.MAX_LINE + 1) + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * (http.MAX_FIELD + 1) + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(http.MAX_HEADERS + 1)) + b"\r\n",
]


@pytest.mark.parametrize("request_bytes", REQUESTS)
async def test_no_answer_names_the_software(server: HttpServer, request_bytes: bytes) -> None:
    """Good, bad and malformed requests alike get the security headers, and no word on what serves them."""
    head = (await raw(server, request_bytes)).partition(b"\r\n\r\n")[0].lower()
    assert head.startswith((b"http/1.1 ", b"http/1.0 "))
    assert b"\r\nserver:" not in head
    assert b"aiohttp" not in head
    assert b"python" not in head
    assert b"x-content-type-options: nosniff" in head
    assert b"cache-control: no-store" in head
    assert b"content-security-policy: default-src 'none'" in head


@pytest.mark.parametrize("request_bytes", REQUESTS[3:])
async def test_malformed_requests_are_refused(
    server: HttpServer, client: aiohttp.ClientSession, request_bytes: bytes
) -> None:
    """What is no HTTP, or too long, gets a 400 that quotes none of it, and the next client is served."""
    head, _, body = (await raw(server, request_bytes)).partition(b"\r\n\r\n")
    assert b" 400 " in head.partition(b"\r\n")[0]
    assert body == b"bad request\n"
    async with client.get("/healthz") as answer:
        assert answer.status == 200


async def test_further_paths_are_served_beside() -> None:
    """Paths that are added answer as their handlers say, with our headers but for those of their own."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text="added", headers={"Content-Security-Policy": "default-src 'self'"})

    server = HttpServer(
        Listen("127.0.0.1", 0), Metrics(lambda: 0.0), readiness=list, routes={"/added": answer, "/healthz": answer}
    )
    await server.start()
    async with aiohttp.ClientSession(server.url) as client:
        async with client.get("/added") as response:
            assert (response.status, await response.text()) == (200, "added")
            assert response.headers.getall("Content-Security-Policy") == ["default-src 'self'"]
            assert response.headers["Cache-Control"] == "no-store"
        async with client.get("/healthz") as response:
            assert await response.text() == "ok\n"
        async with client.post("/added") as response:
            assert response.status == 405
    await server.stop()


async def test_malformed_requests_leave_no_trace_in_the_log(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger with a port scanner can't fill the log."""
    for data in REQUESTS[3:]:
        await raw(server, data)
    assert caplog.records == []


async def test_connections_are_bounded(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a connection is cut at once; when one of the others ends, there is room again."""
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    held = [await asyncio.open_connection("127.0.0.1", port_of(server)) for _ in range(2)]
    for reader, writer in held:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b" 200 " in await reader.readline()
    assert await raw(server, REQUESTS[0]) == b""
    held[0][1].close()
    async with asyncio.timeout(10):
        while not await raw(server, REQUESTS[0]):
            pass  # until the server has seen the other one go
    held[1][1].close()


@pytest.mark.parametrize("request_bytes", [b"", b"GET /metrics HTTP/1.1\r\nHost: "])
async def test_a_client_that_does_not_ask_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    """A connection ends after its time, also if its request never does."""
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.05)
    assert await raw(server, request_bytes) == b""


async def test_a_connection_ends_after_its_time_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can't hold on to its connection by having a request under way."""
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.05)
    monkeypatch.setattr(http, "READINESS_SECONDS", 30.0)
    release = asyncio.Event()

    async def hang() -> list[str]:
        await release.wait()
        return []

    server = await serve_on_free_port(hang)
    assert await raw(server, b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n") == b""
    release.set()
    await server.stop()


async def test_the_url_has_the_actual_port(server: HttpServer) -> None:
    """Port 0 takes any free one, and the URL tells which."""
    assert port_of(server) > 0
    assert await raw(server, REQUESTS[0])


async def test_an_ipv6_address_is_written_with_brackets() -> None:
    """A URL that can be pasted, for IPv6 as well."""
    assert HttpServer(Listen("::1", 9464), Metrics(lambda: 0.0), readiness=list).url == "http://[::1]:9464"


async def test_an_address_in_use_is_a_settings_error(server: HttpServer) -> None:
    """The message names the flag, the address and why."""
    second = HttpServer(Listen("127.0.0.1", port_of(server)), Metrics(lambda: 0.0), readiness=list)
    with pytest.raises(SettingsError, match=rf"--listen: .*127\.0\.0\.1:{port_of(server)}: Address already in use"):
        await second.start()
    await second.stop()


async def test_a_host_that_is_not_ours_is_a_settings_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of another machine, and a name that doesn't resolve, are wrong settings too."""
    with pytest.raises(SettingsError, match=r"--listen: cannot listen on 192\.0\.2\.1:0"):
        await HttpServer(Listen("192.0.2.1", 0), Metrics(lambda: 0.0), readiness=list).start()

    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(SettingsError, match=r"--listen: .*the host name does not resolve"):
        await HttpServer(Listen("nowhere.invalid", 0), Metrics(lambda: 0.0), readiness=list).start()


async def test_stop_frees_the_port_and_may_be_called_twice(server: HttpServer) -> None:
    """After stop() nobody listens; stopping again, or before the start, does nothing."""
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port_of(server))


async def test_readiness_reasons_are_escaped(client: aiohttp.ClientSession, daemon: Daemon) -> None:
    """A reason may hold any text; the answer stays JSON."""
    daemon.reasons = ['"}\n\x00<script>']
    async with client.get("/readyz") as answer:
        assert json.loads(await answer.read())["reasons"] == daemon.reasons
