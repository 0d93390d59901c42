"""The HTTP client: no way into our network, and nothing a host does costs more than one bounded request."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from email.utils import formatdate
from pathlib import Path
from typing import cast

import dns.asyncresolver
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from aiohttp import web

from indexer.outbound import CAR, FetchFailed, Outbound, SpoolFailed
from indexer.outbound.addresses import is_public
from indexer.outbound.pacing import DEFAULT_PAUSE, LONGEST_PAUSE, Pacing, pause_of
from tests.strangers import Directory, Handler, never_ends, raw_site, says, says_then_hangs, site, tls_pair

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.car\r\n"
NOW = 1_780_000_000.0


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    """A client that may connect to loopback, since that is where the tests' hosts are."""
    client = Outbound(allow_private_hosts=True)
    yield client
    await client.aclose()


@pytest.fixture
async def strict() -> AsyncIterator[Outbound]:
    """A client as it is by default."""
    client = Outbound()
    yield client
    await client.aclose()


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


# Where to.

NOT_PUBLIC = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.9", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "192.88.99.1", "168.63.129.16"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::7f00:1"),
    *("64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%lo"),
    *("fec0::1", "ff02::1", "100::1", "3fff::1", "5f00::1", "2606:4700::1%eth0", "localhost", "", "127.1", "0x7f.1"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_address_of_no_public_host_is_known(address: str) -> None:
    """Loopback, private, shared, link-local, multicast, reserved, mapped and translated addresses aren't public."""
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_known(address: str) -> None:
    """Hosts of the Internet can be asked, also those next to the special ranges."""
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "[::1]", "[::]", "[::ffff:127.0.0.1]"),
        *(
            "[::ffff:7f00:1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[fe80::1]",
            "localhost",
            "localhost.",
            "①②⑦.⓪.⓪.①",
        ),
        *("LOCALHOST", "127.0.0.1.", "10.0.0.1", "169.254.169.254", "[fd00:ec2::254]", "100.64.0.1", "224.0.0.1"),
    ],
)
async def test_no_spelling_of_a_private_host_is_connected_to(host: str) -> None:
    """However a host is spelled, what counts is the address that would be connected to: no socket is ever made."""
    client, made = Outbound(resolver=Directory({"localhost": [("127.0.0.1", 0)], "localhost.": [("::1", 0)]})), []
    original = client._open_socket
    client._open_socket = lambda info: made.append(original(info))  # type: ignore[assignment,return-value]
    await refusal(client, f"https://{host}:1/")
    assert made == []
    await client.aclose()


async def test_private_host_is_refused_for_good(strict: Outbound) -> None:
    """A refusal names the host, the reason and the way out, and that asking again is pointless."""
    error = await refusal(strict, "https://127.0.0.1:1/secret?x=y", about="did:plc:abc")
    assert str(error) == (
        "127.0.0.1:1: only public addresses are connected to (development: --allow-private-hosts) (for did:plc:abc)"
    )
    assert error.permanent


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "//example.com/"),
        *("https://", "https:///x", "https://u:p@example.com/", "https://u@example.com/", "", "x", "https://[::1"),
        *("https://example.com:0/", "https://example.com:99999/", "https://exa mple.com/", "https://" + "a" * 9000),
    ],
)
async def test_only_plain_https_urls_are_followed(strict: Outbound, url: str) -> None:
    """Other schemes, credentials and what is no URL are refused before anything is looked up."""
    assert (await refusal(strict, url)).permanent


async def test_operators_url_may_be_private(strict: Outbound) -> None:
    """The directory and the relay that the operator set may be on a private network and without TLS."""
    async with site(Visits()) as origin:
        assert await strict.get_json(f"{origin}/", trusted=True) == (200, "seen")


async def test_trusted_connection_serves_no_stranger() -> None:
    """A connection kept open to a trusted host isn't used for a stranger's URL that names the same host."""
    visits = Visits()
    client = Outbound(is_allowed=lambda _: False)
    async with site(visits) as origin:
        await client.fetch(origin, trusted=True)
        client.allow_private_hosts = False
        error = await refusal(client, origin.replace("http:", "https:"))
    assert error.permanent
    assert len(visits.requests) == 1
    await client.aclose()


async def test_each_connection_is_checked_anew(tmp_path: Path) -> None:
    """A name that leads elsewhere the second time (DNS rebinding) leads nowhere: the check is on the connection."""
    server, trust = tls_pair(tmp_path, "rebound.example")
    visits, inside = Visits(), Visits()
    async with site(visits, tls=server) as origin, site(inside, tls=server, address="127.0.0.2") as other:
        ports = [int(text.rpartition(":")[2]) for text in (origin, other)]
        names = Directory({"rebound.example": [("127.0.0.1", ports[0]), ("127.0.0.2", ports[1])]})
        client = Outbound(tls=trust, resolver=names, is_allowed=lambda address: address == "127.0.0.1")
        assert (await client.fetch("https://rebound.example/")).status == 200
        assert names.asked == ["rebound.example"]  # asked once: what was checked is what was connected to
        await client._sessions[False].connector.close()  # type: ignore[union-attr]
        client._sessions.clear()
        assert (await refusal(client, "https://rebound.example/")).permanent
        await client.aclose()
    assert (len(visits.requests), len(inside.requests)) == (1, 0)


async def test_certificate_has_to_be_the_hosts(tmp_path: Path) -> None:
    """TLS is verified: a host can't pass for another."""
    server, trust = tls_pair(tmp_path, "one.example")
    async with site(Visits(), tls=server) as origin:
        port = int(origin.rpartition(":")[2])
        names = Directory({"one.example": [("127.0.0.1", port)], "two.example": [("127.0.0.1", port)]})
        client = Outbound(tls=trust, resolver=names, allow_private_hosts=True)
        assert (await client.fetch("https://one.example/")).status == 200
        assert "SSLCertVerificationError" in str(await refusal(client, "https://two.example/"))
        await client.aclose()


# Redirects.


def redirect(*targets: str) -> Handler:
    """A handler that answers /0 with the first target, /1 with the second."""

    async def handler(request: web.BaseRequest) -> web.Response:
        at = request.path.lstrip("/")
        if at.isdigit() and int(at) < len(targets):
            return web.Response(status=302, headers={"Location": targets[int(at)]})
        return web.Response(text='"arrived"')

    return handler


async def test_three_redirects_are_followed(outbound: Outbound) -> None:
    """Three are followed, relative ones too; the fourth is one too many."""
    async with site(redirect("/1", "2", "/3", "/end")) as origin:
        assert await outbound.get_json(f"{origin}/1") == (200, "arrived")
        assert "redirects" in str(await refusal(outbound, f"{origin}/0"))


async def test_redirect_to_itself_takes_one_turn_at_a_time(outbound: Outbound) -> None:
    """Requests that are sent on to the same host don't wait for each other's turns."""
    async with site(redirect("/1", "/2")) as origin, asyncio.TaskGroup() as group:
        answers = [group.create_task(outbound.get_json(f"{origin}/0")) for _ in range(6)]
        assert [await answer for answer in answers] == [(200, "arrived")] * 6


@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "file:///etc/passwd", ""])
async def test_redirect_into_our_network_is_refused(tmp_path: Path, target: str) -> None:
    """A redirect gets the same looks as the first URL: from a public host no way leads to a private one."""
    server, trust = tls_pair(tmp_path, "public.example")
    inside = Visits()
    async with site(inside) as private:
        location = target.format(port=private.rpartition(":")[2])
        async with site(redirect(location), tls=server) as origin:
            names = Directory({"public.example": [("127.0.0.1", int(origin.rpartition(":")[2]))]})
            answers = iter((True, False))  # the first connection counts as public
            client = Outbound(tls=trust, resolver=names, is_allowed=lambda _: next(answers))
            assert (await refusal(client, "https://public.example/0")).permanent
            await client.aclose()
    assert inside.requests == []


async def test_trust_ends_at_the_trusted_origin(strict: Outbound) -> None:
    """The operator's directory can send us on within itself, but not to another private host."""
    inside = Visits()
    async with site(inside) as private, site(redirect("/1", f"{private}/")) as origin:
        error = await refusal(strict, f"{origin}/0", trusted=True)
    assert error.permanent
    assert inside.requests == []


# What is sent.


async def test_requests_say_who_we_are_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our name and version, no compression, no cookies, no proxy or password out of the environment."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    visits = Visits()

    async def handler(request: web.BaseRequest) -> web.Response:
        response = await visits(request)
        response.set_cookie("id", "1")
        return response

    async with site(handler) as origin:
        # Under a name: nobody keeps the cookies of bare addresses.
        names = Directory({"named.example": [("127.0.0.1", int(origin.rpartition(":")[2]))]})
        client = Outbound(allow_private_hosts=True, resolver=names)
        await client.fetch("http://named.example/")
        await client.fetch("http://named.example/")
        await client.aclose()
    sent = visits.requests[1].headers
    assert sent["User-Agent"].startswith("letta-indexer/")
    assert sent["Accept-Encoding"] == "identity"
    assert not {"Cookie", "Authorization"} & set(sent)


# What comes back.


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


# How often.


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "7"}, 7),
        (503, {"Retry-After": " 0 "}, 0),
        (429, {}, DEFAULT_PAUSE),
        (429, {"Retry-After": "soon"}, DEFAULT_PAUSE),
        (429, {"Retry-After": "-5"}, DEFAULT_PAUSE),
        (429, {"Retry-After": "9" * 400}, DEFAULT_PAUSE),
        (503, {"Retry-After": formatdate(NOW + 90, usegmt=True)}, 90),
        (503, {"Retry-After": formatdate(NOW - 90, usegmt=True)}, 0),
        (429, {"Retry-After": "7", "RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) + 60)}, 60),
        (200, {"Retry-After": "7"}, 0),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) + 60)}, 60),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "60"}, 60),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": str(int(NOW) - 60)}, 0),
        (200, {"RateLimit-Remaining": "1", "RateLimit-Reset": "60"}, 0),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "later"}, 0),
        (200, {"RateLimit-Remaining": "0"}, 0),
    ],
)
def test_pause_that_an_answer_asks_for(status: int, headers: dict[str, str], pause: float) -> None:
    """Retry-After counts on 429 and 503, the rate limit's headers on any answer, in all their forms."""
    assert pause_of(status, headers, NOW) == pause


def test_pause_is_an_hour_at_most() -> None:
    """No host can have itself forgotten for longer than an hour, nor fill the memory with pauses."""
    pacing = Pacing(per_host=1, patience=1, monotonic=lambda: 0.0, clock=lambda: NOW)
    for number in range(10_100):
        assert pacing.learn(f"{number}.example", 429, {"Retry-After": "999999"}) == LONGEST_PAUSE
    assert len(pacing._hosts) <= 10_000
    assert pacing.wait("10099.example") == LONGEST_PAUSE
    assert pacing.wait("unknown.example") == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_host_that_asks_for_a_pause_gets_it(status: int) -> None:
    """It isn't asked again before its time, other hosts are; then it is."""
    now, visits = [0.0], Visits()

    async def handler(request: web.BaseRequest) -> web.Response:
        await visits(request)
        return web.Response(status=status if len(visits.requests) == 1 else 200, headers={"Retry-After": "50"})

    client = Outbound(allow_private_hosts=True, monotonic=lambda: now[0])
    async with site(handler) as origin, site(Visits()) as other:
        assert (await refusal(client, origin)).retry_after == 50
        now[0] = 20.0
        error = await refusal(client, origin)
        assert (error.retry_after, error.permanent, client.wait(origin)) == (30, False, 30)
        assert len(visits.requests) == 1
        assert (await client.fetch(other)).status == 200
        now[0] = 50.0
        assert (await client.fetch(origin)).status == 200
    await client.aclose()


async def test_reached_limit_holds_from_the_last_good_answer(outbound: Outbound) -> None:
    """A success that says nothing remains is the last one until the reset."""

    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(headers={"RateLimit-Remaining": "0", "RateLimit-Reset": "3000"})

    async with site(handler) as origin:
        assert (await outbound.fetch(origin)).status == 200
        assert outbound.wait(origin) > 0
        assert "left alone" in str(await refusal(outbound, origin))


async def test_host_gets_two_requests_at_a_time() -> None:
    """The third waits for its turn, and is sent away when that takes too long; other hosts aren't concerned."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    leave = asyncio.Event()

    async def handler(_: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await leave.wait()
        return web.Response()

    client = Outbound(allow_private_hosts=True, patience=0.05)
    async with site(handler) as origin, site(Visits()) as other, asyncio.TaskGroup() as group:
        running = [group.create_task(client.fetch(origin)) for _ in range(2)]
        await entered.get()
        await entered.get()
        assert (client.busy(origin), client.busy(other)) == (True, False)
        assert (await refusal(client, origin)).retry_after == 0.05
        assert (await client.fetch(other)).status == 200
        leave.set()
        assert [(await answer).status for answer in running] == [200, 200]
        assert not client.busy(origin)
    await client.aclose()


async def test_pause_comes_before_the_queue() -> None:
    """At a host that is left alone nobody waits for a turn."""
    pacing = Pacing(per_host=1, patience=0.01, monotonic=lambda: 0.0, clock=lambda: NOW)
    async with pacing.turn("a.example", ""):
        pacing.learn("a.example", 429, {})
        with pytest.raises(FetchFailed, match="left alone for 30 s"):
            await pacing.turn("a.example", "").__aenter__()


async def test_pause_holds_for_those_who_wait_already() -> None:
    """Who waits for a turn when the host asks for a pause is sent away, and so is who comes then, without waiting."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    paused, leave = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await (paused if request.path == "/pause" else leave).wait()
        return web.Response(status=429 if request.path == "/pause" else 200)

    client = Outbound(allow_private_hosts=True, patience=600)
    async with site(handler) as origin, asyncio.TaskGroup() as group:
        first = group.create_task(refusal(client, f"{origin}/pause"))
        second = group.create_task(client.fetch(f"{origin}/stay"))
        await entered.get()
        await entered.get()
        third = group.create_task(refusal(client, origin))
        paused.set()
        assert (await first).status == 429
        assert "left alone" in str(await third)
        assert "left alone" in str(await refusal(client, origin))
        leave.set()
        assert (await second).status == 200
        assert entered.empty()
    await client.aclose()


async def test_cancelled_request_gives_its_turn_back(outbound: Outbound) -> None:
    """Who is cancelled, in the middle of an answer or while waiting, leaves nothing behind."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    leave = asyncio.Event()

    async def handler(_: web.BaseRequest) -> web.Response:
        entered.put_nowait(None)
        await leave.wait()
        return web.Response()

    async with site(handler) as origin:
        tasks = [asyncio.create_task(outbound.fetch(origin)) for _ in range(4)]
        await entered.get()
        await entered.get()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        leave.set()
    assert outbound._pacing._hosts == {}


async def test_names_that_nobody_knows_are_failures_only() -> None:
    """DNS that doesn't answer, or not with what was asked, is an error that the client understands."""
    client = Outbound()
    assert await client.texts("x" * 300) == []
    assert await client.texts("a..b") == []
    with pytest.raises(OSError, match="no address"):
        await client._names.resolve("a" * 64 + ".example")
    async with aclosing(client):  # and closing what was never used is fine
        assert client._sessions == {}


ZONE = {
    ("both.example.", "A"): ["192.0.2.1", "192.0.2.2"],
    ("both.example.", "AAAA"): ["2001:db8::1"],
    ("new.example.", "AAAA"): ["2001:db8::2"],
    ("texts.example.", "TXT"): [f'"did=" "{"x" * 250}" "y"', '"a \\"quoted\\" word"'],
}


class NameServer(asyncio.DatagramProtocol):
    """Answers with what is in the zone, or that there is nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        response = dns.message.make_response(query)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        if entries := ZONE.get((question.name.to_text(), kind)):
            response.answer.append(dns.rrset.from_text_list(question.name, 60, "IN", kind, entries))
        self.transport.sendto(response.to_wire(), addr)


async def test_names_are_asked_of_a_name_server() -> None:
    """Addresses of both families, IPv4 first, with the port they go with; texts joined from their parts."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    client = Outbound()
    resolver = client._names._resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    found = await client._names.resolve("both.example", 8443)
    assert [(entry["host"], entry["port"]) for entry in found] == [
        ("192.0.2.1", 8443),
        ("192.0.2.2", 8443),
        ("2001:db8::1", 8443),
    ]
    assert [entry["host"] for entry in await client._names.resolve("new.example.")] == ["2001:db8::2"]
    assert await client.texts("texts.example") == ["did=" + "x" * 250 + "y", 'a "quoted" word']
    assert await client.texts("both.example") == []
    assert (await refusal(client, "https://both.example/")).permanent  # documentation addresses are not public
    transport.close()
    await client.aclose()
