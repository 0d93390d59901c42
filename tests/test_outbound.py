"""The HTTP client: no way into our network, and nothing a host does costs more than one bounded request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import dns.asyncresolver
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from aiohttp import web

from indexer.outbound import Outbound
from indexer.outbound.addresses import is_public
from tests.strangers import (
    Directory,
    Handler,
    Visits,
    refusal,
    site,
    tls_pair,
)


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


# Names.


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
    addresses = [entry["host"] for entry in found]
    assert (sorted(addresses[:2]), addresses[2:]) == (["192.0.2.1", "192.0.2.2"], ["2001:db8::1"])
    assert {entry["port"] for entry in found} == {8443}
    assert [entry["host"] for entry in await client._names.resolve("new.example.")] == ["2001:db8::2"]
    assert sorted(await client.texts("texts.example")) == ['a "quoted" word', "did=" + "x" * 250 + "y"]
    assert await client.texts("both.example") == []
    assert (await refusal(client, "https://both.example/")).permanent  # documentation addresses are not public
    transport.close()
    await client.aclose()
