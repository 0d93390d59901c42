"""Loopback hosts for tests of what goes out: well-behaved ones, and ones that send any bytes they like."""

from __future__ import annotations

import asyncio
import datetime
import io
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from indexer.outbound import FetchFailed, Outbound

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Script = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def site(
    handler: Handler, *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """A server that answers every request with ``handler``; gives its origin."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://{address}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_site(script: Script) -> AsyncIterator[str]:
    """A server that reads a request's head and then does what ``script`` says; gives its origin."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await script(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for task in running:
            task.cancel()
        server.close()


def says(data: bytes) -> Script:
    """Sends these bytes and closes."""

    async def script(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return script


def says_then_hangs(data: bytes) -> Script:
    """Sends these bytes, then nothing until the client goes away."""

    async def script(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await reader.read()

    return script


def never_ends(head: bytes, part: bytes) -> Script:
    """Sends ``head``, then ``part`` over and over until the client goes away."""

    async def script(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)  # a small part fills no buffer: the other side has to get its turn

    return script


@dataclass
class Directory(AbstractResolver):
    """DNS: the address (and port, 0 for that of the URL) of each name, taken from a list that ends with its last."""

    names: dict[str, list[tuple[str, int]]]
    asked: list[str] = field(default_factory=list)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError(None, "no such name")
        address, other_port = answers.pop(0) if len(answers) > 1 else answers[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=other_port or port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        pass


def tls_pair(folder: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server that is ``names``, and of a client that believes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    alternatives = [x509.DNSName(text) for text in names] + [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(secret + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem")
    return server, ssl.create_default_context(cadata=pem.decode())


async def refusal(client: Outbound, url: str, **options: object) -> FetchFailed:
    """How a request fails."""
    with pytest.raises(FetchFailed) as caught:
        await client.fetch(url, **options)  # type: ignore[arg-type]
    return caught.value


async def refused_download(client: Outbound, url: str, **options: object) -> tuple[FetchFailed, bytes]:
    """How a download fails, and what it had written by then."""
    file = io.BytesIO()
    with pytest.raises(FetchFailed) as caught:
        await client.download(url, file, **{"max_bytes": 1 << 20, **options})  # type: ignore[arg-type]
    return caught.value, file.getvalue()


class Visits:
    """A handler that notes each request and answers with a word."""

    def __init__(self) -> None:
        self.requests: list[web.BaseRequest] = []

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(request)
        return web.Response(text='"seen"')
