"""What comes back: right answers as values, and nothing a host sends costs more than one bounded request."""

from __future__ import annotations

import gzip
import io
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from indexer.outbound import CAR, FetchFailed, Outbound, SpoolFailed
from tests.strangers import (
    Directory,
    Visits,
    never_ends,
    raw_site,
    refusal,
    refused_download,
    says,
    says_then_hangs,
    site,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.car\r\n"


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    """A client that may connect to loopback, since that is where the tests' hosts are."""
    client = Outbound(allow_private_hosts=True)
    yield client
    await client.aclose()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (web.Response(text='{"a": 1}', content_type="text/plain"), (200, {"a": 1})),
        (web.Response(status=404, text="<html>"), (404, None)),
        (web.Response(status=400, text='{"error": "E"}'), (400, {"error": "E"})),
        (web.Response(status=501, text='{"error": "MethodNotImplemented"}'), (501, {"error": "MethodNotImplemented"})),
    ],
)
async def test_answer_is_status_and_json(outbound: Outbound, answer: web.Response, result: object) -> None:
    """A refusal is an answer; the media type plays no part."""

    async def handler(_: web.BaseRequest) -> web.Response:
        return answer

    async with site(handler) as origin:
        assert await outbound.get_json(origin) == result


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff\xfe", b"[" * 200_000, b"1" * 9000, b'{"a":'])
async def test_success_that_is_no_json_is_a_failure(outbound: Outbound, body: bytes) -> None:
    """Whatever the bytes, the failure is the one that callers expect, and it doesn't quote them."""
    async with raw_site(says(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as origin:
        with pytest.raises(FetchFailed) as caught:
            await outbound.get_json(origin, about="did:plc:abc")
    assert str(caught.value) == f"{origin[7:]}: its answer is no JSON (for did:plc:abc)"


HOSTILE = {
    "announces too much": says_then_hangs(OK + b"Content-Length: 9999999999\r\n\r\n"),
    "sends without end": never_ends(OK + b"\r\n", b"x" * 65536),
    "chunks without end": never_ends(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b"x" * 32768 + b"\r\n"),
    "headers without end": never_ends(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n"),
    "a header without end": never_ends(b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 1000),
    "says it is longer": says(OK + b"Content-Length: 100\r\n\r\nshort"),
    "ends within a chunk": says(OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\nshort"),
    "ends between chunks": says(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n"),
    "a negative length": says(OK + b"Content-Length: -5\r\n\r\nshort"),
    "two lengths": says(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nshort"),
    "a bad chunk": says(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nshort\r\n"),
    "gzip": says(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(1 << 24))),
    "an encoding nobody knows": says(OK + b"Content-Encoding: identity, br\r\n\r\nabc"),
    "closes at once": says(b""),
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a server's error": says(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
    "not modified": says(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_answer_is_one_bounded_failure(outbound: Outbound, kind: str) -> None:
    """Nothing a host sends does more than fail its own request, and no more than the limit reaches the disk."""
    async with raw_site(HOSTILE[kind]) as origin:
        assert str(await refusal(outbound, origin, max_bytes=1 << 20)).startswith(origin[7:])
        error, written = await refused_download(outbound, origin, max_bytes=1 << 20)
    assert origin[7:] in str(error)
    assert len(written) <= 1 << 20


@pytest.mark.parametrize("data", [b"", OK, OK + b"\r\nsome"], ids=["no answer", "half a head", "half a body"])
async def test_silent_host_is_left(data: bytes) -> None:
    """A host that falls silent, at whatever point, is given up after the idle time."""
    client = Outbound(allow_private_hosts=True, idle_timeout=0.05)
    async with raw_site(says_then_hangs(data)) as origin:
        assert "no answer in time" in str(await refusal(client, origin, timeout=600))
    await client.aclose()


async def test_whole_answer_has_a_deadline(outbound: Outbound) -> None:
    """A host that never falls silent for long is given up when the whole takes too long, redirects included."""
    async with raw_site(never_ends(OK + b"\r\n", b"x")) as origin:
        assert "no answer in time" in str(await refusal(outbound, origin, timeout=0.05, max_bytes=1 << 40))


async def test_slow_download_is_cut_off() -> None:
    """After the time of grace, an answer below the least average rate is given up."""
    ticks = iter(range(0, 10**9, 10))  # every look at the clock finds it 10 s later
    client = Outbound(allow_private_hosts=True, monotonic=lambda: next(ticks))
    async with raw_site(never_ends(OK + b"\r\n", b"x")) as origin:
        error, _ = await refused_download(client, origin, min_rate=1e9, grace=30)
        assert "too slow" in str(error)
    await client.aclose()


async def test_download_comes_whole(outbound: Outbound) -> None:
    """The file holds the body, and the answer is its size; the limit is inclusive."""
    body = bytes(range(256)) * 20_000

    async def handler(request: web.BaseRequest) -> web.Response:
        assert request.headers["Accept"] == CAR
        return web.Response(body=body, content_type=CAR)

    file = io.BytesIO()
    async with site(handler) as origin:
        assert await outbound.download(origin, file, max_bytes=len(body)) == len(body)
        assert "over" in str((await refused_download(outbound, origin, max_bytes=len(body) - 1))[0])
    assert file.getvalue() == body


async def test_page_for_people_is_no_archive(outbound: Outbound) -> None:
    """A success of another media type than asked for is refused before it is written anywhere."""

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    async with site(handler) as origin:
        error, written = await refused_download(outbound, origin)
    assert (error.status, written) == (200, b"")


@pytest.mark.parametrize(
    ("status", "body", "code", "permanent"),
    [
        (400, '{"error": "RepoNotFound", "message": "secret"}', "RepoNotFound", True),
        (400, '{"error": "no word, but <a page>"}', None, True),
        (404, "x" * 100_000, None, True),
        (403, '{"error": ["x"]}', None, True),
        (408, "[]", None, False),
        (204, "", None, False),
    ],
)
async def test_refused_download_says_why(
    outbound: Outbound, status: int, body: str, code: str | None, permanent: bool
) -> None:
    """Status and error name are handed on, other words of the host are not."""

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=body)

    async with site(handler) as origin:
        error, written = await refused_download(outbound, origin, about="did:plc:abc")
    assert (error.status, error.code, error.permanent, written) == (status, code, permanent, b"")
    assert str(error) == f"{origin[7:]}: answers {status}{f' {code}' if code else ''} (for did:plc:abc)"


async def test_full_disk_is_no_fault_of_the_host(outbound: Outbound) -> None:
    """When the file can't be written the error says so, and isn't taken for the host's failure."""

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x", content_type=CAR)

    async with site(handler) as origin:
        with pytest.raises(SpoolFailed, match="No space left"):
            await outbound.download(origin, Full(), max_bytes=10)


async def test_unreachable_host_is_a_passing_failure(outbound: Outbound) -> None:
    """A refused connection or a name without address may be better next time."""
    async with site(Visits()) as origin:
        pass  # closed again: nobody listens there now
    error = await refusal(outbound, origin)
    assert (error.permanent, error.status) == (False, None)
    client = Outbound(resolver=Directory({}))
    assert not (await refusal(client, "https://nowhere.example/")).permanent
    await client.aclose()
