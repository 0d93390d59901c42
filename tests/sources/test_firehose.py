"""The firehose source against real servers on loopback: connecting, asking, resuming, leaving."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from indexer import __version__
from indexer.model import Reason
from indexer.sources.address import FIREHOSE_PATH
from indexer.sources.base import Chunk, Dropped, Item, Opened
from indexer.sources.firehose import FirehoseSource
from indexer.sources.follow import Follower
from tests.sources.peers import address, cursor_of, host, lost_with, silent, until_lost


async def test_frames_come_whole_and_in_order() -> None:
    """Small, empty, large and fragmented frames arrive as they were sent, the last ones before the close included."""
    sent = [b"a", b"", b"x" * 70_000, *(bytes([n]) * n for n in range(200))]

    async def play(connection: ServerConnection) -> None:
        for frame in sent:
            await connection.send(frame)
        await connection.send([b"frag", b"", b"ment"])

    async with host(play) as where:
        frames, lost = await until_lost(FirehoseSource(where))
    assert frames == [*sent, b"fragment"]
    assert (lost.reason, where.key in str(lost)) == ("closed", True)


async def test_what_is_asked_for() -> None:
    """Path, cursor and user agent as the protocol wants them; no compression is offered."""
    seen: list[Request] = []

    async def note(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request)

    async with host(note) as where:
        for cursor in (None, 0, 42):
            await until_lost(FirehoseSource(where), cursor)
    assert [request.path for request in seen] == [
        FIREHOSE_PATH,
        f"{FIREHOSE_PATH}?cursor=0",
        f"{FIREHOSE_PATH}?cursor=42",
    ]
    assert {request.headers["User-Agent"] for request in seen} == {f"letta-indexer/{__version__}"}
    assert not any("Sec-WebSocket-Extensions" in request.headers for request in seen)


async def test_an_open_connection_is_told_before_its_first_frame() -> None:
    """A host with nothing to say is live all the same."""
    async with host(silent) as where, aclosing(FirehoseSource(where).items(7)) as items:
        assert await anext(items) == Opened(7)


async def test_closing_the_stream_closes_the_connection_properly() -> None:
    """The host sees a normal closure (1000), not a broken pipe."""
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def note(connection: ServerConnection) -> None:
        await connection.wait_closed()
        codes.put_nowait(connection.close_code)

    async with host(note) as where:
        async with aclosing(FirehoseSource(where).items(None)) as items:
            await anext(items)
        assert await codes.get() == 1000


async def test_reconnecting_resumes_after_the_last_frame_processed() -> None:
    """A host that drops the connection every third frame loses us none and repeats none."""
    position = 0

    async def replay(connection: ServerConnection) -> None:
        start = int(cursor_of(connection) or 0)
        for seq in range(start + 1, start + 4):
            await connection.send(str(seq).encode())

    async def no_wait(_: float) -> None:
        return None

    async with host(replay) as where:
        follower = Follower(FirehoseSource(where), resume_from=lambda: position, sleep=no_wait)
        seen: list[int] = []
        async with aclosing(follower.items()) as items:
            async for item in items:
                seen += [int(frame) for frame in item.frames] if isinstance(item, Chunk) else []
                position = seen[-1] if seen else 0
                if position >= 12:
                    break
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("status", [404, 429, 503, 200])
async def test_a_handshake_answered_otherwise_is_an_http_error(status: int) -> None:
    """The status is in the message; what the body says is not."""

    def refuse(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(HTTPStatus(status), "secret body")

    async with host(silent, refuse) as where:
        _, lost = await until_lost(FirehoseSource(where))
    assert (lost.reason, f"HTTP {status} " in str(lost), "secret" in str(lost)) == ("http_error", True, False)


async def test_a_redirect_keeps_the_cursor() -> None:
    """The host may say where to go, but can't turn a replay into 'from now on'."""

    def send_on(connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/there"):
            return None
        return Response(302, "Found", Headers(Location="/there"))

    async def echo(connection: ServerConnection) -> None:
        await connection.send(str(cursor_of(connection)).encode())

    async with host(echo, send_on) as where:
        assert (await until_lost(FirehoseSource(where), 42))[0] == [b"42"]


@pytest.mark.parametrize("target", ["/again", "https://127.0.0.1/", "ws://h:99999/", "ws://" + "a" * 70 + "/"])
async def test_redirects_end(target: str) -> None:
    """After three, or at once if they lead nowhere; nothing a host writes there gets out as another error."""
    asked = 0

    def send_on(_: ServerConnection, request: Request) -> Response:
        nonlocal asked
        asked += 1
        return Response(302, "Found", Headers(Location=target))

    async with host(silent, send_on) as where:
        assert await lost_with(FirehoseSource(where)) in ("http_error", "connect_failed")
    assert asked == (4 if target == "/again" else 1)


async def test_a_refused_connection_is_lost() -> None:
    """Nobody listens there (the port was ours a moment ago)."""
    async with host(silent) as where:
        pass
    assert await lost_with(FirehoseSource(where)) == "connect_failed"


async def test_a_handshake_never_answered_is_lost() -> None:
    """A peer that accepts and stays silent costs no more than the time limit."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        source = FirehoseSource(address(server.sockets[0].getsockname()[1]), connect_timeout=0.05)
        assert await lost_with(source) == "connect_failed"


@pytest.mark.parametrize(
    "answer", [b"\xff\x00\r\n\r\n", b"HTTP/1.1 101 Yes\r\n\r\n", b"", b"HTTP/1.1 101 " + b"x" * 99999]
)
async def test_a_handshake_that_is_none_is_an_http_error(answer: bytes) -> None:
    """Garbage, missing headers, nothing at all and endless lines."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        assert await lost_with(FirehoseSource(address(server.sockets[0].getsockname()[1]))) == "http_error"


async def test_the_stream_gets_past_an_oversized_frame() -> None:
    """End to end: a real 17 MB frame with number 3 of 5 is given up, the others are all there."""
    asked: list[str | None] = []

    async def replay(connection: ServerConnection) -> None:
        asked.append(cursor_of(connection))
        for seq in range(int(cursor_of(connection) or 0) + 1, 6):
            await connection.send(b"x" * 17_000_000 if seq == 3 else str(seq).encode())

    async def no_wait(_: float) -> None:
        return None

    async with host(replay) as where:
        seen: list[bytes] = []
        dropped: list[Item] = []
        follower = Follower(FirehoseSource(where), resume_from=lambda: int(seen[-1]) if seen else 0, sleep=no_wait)
        async with aclosing(follower.items()) as items:
            async for item in items:
                seen += item.frames if isinstance(item, Chunk) else []
                dropped += [item] if isinstance(item, Dropped) else []
                if b"5" in seen:
                    break
    assert (seen, asked) == ([b"1", b"2", b"4", b"5"], ["0", "3"])
    assert dropped == [Dropped(Reason.OVERSIZED_FRAME, 3, "a frame over the limit: passed over 3 to 3")]


async def items_until_cancelled(source: FirehoseSource, opened: asyncio.Event) -> None:
    items: AsyncGenerator[Item, None]
    async with aclosing(source.items(None)) as items:
        async for _ in items:
            opened.set()


async def test_cancelling_closes_the_connection() -> None:
    """A daemon told to stop leaves no socket behind."""
    opened, gone = asyncio.Event(), asyncio.Event()

    async def note(connection: ServerConnection) -> None:
        await connection.wait_closed()
        gone.set()

    async with host(note) as where:
        task = asyncio.create_task(items_until_cancelled(FirehoseSource(where), opened))
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
    assert task.cancelled()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.mark.parametrize(("trusted", "frames", "reason"), [(False, [], "tls"), (True, [b"hello"], "closed")])
async def test_only_a_trusted_certificate_will_do(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool, frames: list[bytes], reason: str
) -> None:
    """A self-signed one is refused under its own reason, unless the machine's store holds it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with host(lambda connection: connection.send(b"hello"), tls=tls) as where:
        got, lost = await until_lost(FirehoseSource(where))
    assert (got, lost.reason) == (frames, reason)
