"""Identities: the document has to be the DID's own, handles count both ways, answers are shared, kept and forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from indexer.errors import IdentityError
from indexer.identity import DAY, IdentityGone, IdentityUnknown, Resolver
from indexer.keys import PublicKey
from indexer.outbound import FetchFailed, Outbound
from tests.strangers import Directory, site, tls_pair

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
OTHER = "did:plc:44ybard66vv44zksje25o7dz"
KEY = "zDnaembgSGUhZULN2Caob4HLJPaxBh92N7rtH21TErzqf8HQo"
NOW = 1_780_000_000.0


def document(did: str = DID, handle: str | None = None, **changes: Any) -> dict[str, Any]:
    """A DID document of today's form; ``changes`` replace its members."""
    return {
        "id": did,
        "alsoKnownAs": [f"at://{handle}"] if handle else [],
        "verificationMethod": [
            {"id": f"{did}#atproto", "type": "Multikey", "controller": did, "publicKeyMultibase": KEY}
        ],
        "service": [
            {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": "https://pds.example"}
        ],
        **changes,
    }


@dataclass
class Plc:
    """A directory of did:plc, and whatever else the test puts at a path."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    entered: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.path)
        self.entered.put_nowait(request.path)
        await self.gate.wait()
        answer = self.answers.get(request.path.lstrip("/"), 404)
        if isinstance(answer, int):
            return web.Response(status=answer, text='{"message": "no"}')
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))


@pytest.fixture
async def plc() -> Plc:
    plc = Plc()
    plc.gate.set()
    return plc


@pytest.fixture
async def plc_url(plc: Plc) -> AsyncIterator[str]:
    async with site(plc) as origin:
        yield origin


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    client = Outbound()
    yield client
    await client.aclose()


@pytest.fixture
def resolver(outbound: Outbound, plc_url: str) -> Resolver:
    return Resolver(outbound, plc_url, clock=lambda: NOW, texts=no_texts)


async def no_texts(_: str) -> list[str]:
    return []


async def test_captured_documents_are_understood(resolver: Resolver, plc: Plc, pds_a: Path) -> None:
    """The documents of a real directory, with keys of the older form, give key, PDS and claimed handle."""
    documents = json.loads((pds_a / "did-docs.json").read_text())
    plc.answers = documents
    for did, expected in documents.items():
        identity = await resolver.resolve(did)
        assert (identity.did, identity.pds) == (did, "http://localhost:2583")
        assert identity.signing_key.curve == "secp256k1"
        assert [f"at://{identity.claimed_handle}"] == expected["alsoKnownAs"]
        assert identity.handle is None  # .test is no handle in public
        assert identity.resolved_at == datetime.fromtimestamp(NOW, UTC)


async def test_key_of_today_is_understood(resolver: Resolver, plc: Plc) -> None:
    """A Multikey is taken as it is."""
    plc.answers[DID] = document()
    assert (await resolver.resolve(DID)).signing_key == PublicKey.parse(f"did:key:{KEY}")


async def test_document_without_pds_still_tells_the_key(resolver: Resolver, plc: Plc) -> None:
    """An account without a server can have its commits verified."""
    plc.answers[DID] = document(service=[])
    assert (await resolver.resolve(DID)).pds is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (404, IdentityUnknown),
        (410, IdentityGone),
        (400, FetchFailed),
        (500, FetchFailed),
        (503, FetchFailed),
        ("<html>", FetchFailed),
        ("[]", IdentityError),
        ("null", IdentityError),
        (document(OTHER), IdentityError),
        (document(verificationMethod=[]), IdentityError),
        (document(padding="x" * 300_000), FetchFailed),
    ],
)
async def test_failures_are_told_apart(resolver: Resolver, plc: Plc, answer: Any, error: type[Exception]) -> None:
    """Deleted, unknown, unusable and unreachable are four different things; each names the DID, none is remembered."""
    plc.answers[DID] = answer
    with pytest.raises(error, match=DID) as caught:
        await resolver.resolve(DID)
    assert type(caught.value) is error
    assert resolver.cached(DID) is None


@pytest.mark.parametrize(
    "did",
    [
        *(
            "",
            "x",
            "did:plc:",
            "did:plc:short",
            f"{DID}x",
            "did:plc:ewvi7nxzyoun6zhxrhs64oi1",
            "did:key:zQ3sh",
            "did:web:",
        ),
        *("did:web:localhost", "did:web:127.0.0.1", "did:web:example.com%3A8443", "did:web:example.com:user:alice"),
        *("did:web:example.com/x", "did:web:a%2F..", "did:web:user@example.com", "did:web:example.com%3A443%2Fx"),
    ],
)
async def test_what_is_no_resolvable_did_is_asked_of_nobody(resolver: Resolver, plc: Plc, did: str) -> None:
    """Only did:plc and did:web with a plain domain name lead anywhere, and no DID can change the URL's meaning."""
    with pytest.raises(IdentityError):
        await resolver.resolve(did)
    assert plc.asked == []


async def test_did_web_is_its_hosts_word(tmp_path: Path) -> None:
    """A did:web is what its host serves at the well-known place, over TLS; in development with a port, too."""
    server, trust = tls_pair(tmp_path, "web.example")
    host = Plc()
    host.gate.set()
    async with site(host, tls=server) as origin:
        port = int(origin.rpartition(":")[2])
        names = Directory({"web.example": [("127.0.0.1", port)]})
        client = Outbound(allow_private_hosts=True, tls=trust, resolver=names)
        resolver = Resolver(client, "https://plc.invalid")
        for did in ("did:web:web.example", f"did:web:web.example%3A{port}"):
            host.answers[".well-known/did.json"] = document(did)
            assert (await resolver.resolve(did)).did == did
        with pytest.raises(IdentityError):  # the host's document is that of another DID
            await resolver.resolve("did:web:web.example", fresh=True)
        await client.aclose()
    assert set(host.asked) == {"/.well-known/did.json"}


async def test_did_web_of_a_private_host_is_not_followed(outbound: Outbound) -> None:
    """A did:web is a stranger's URL like any other."""
    outbound._resolver = Directory({"inside.example": [("127.0.0.1", 1)]})
    with pytest.raises(FetchFailed) as caught:
        await Resolver(outbound, "https://plc.invalid").resolve("did:web:inside.example")
    assert caught.value.permanent


# Handles.

HANDLE = "alice.example.com"


@pytest.mark.parametrize(
    ("texts", "well_known", "verified"),
    [
        ([f"did={DID}"], 404, True),
        (["v=spf1", f"did={DID}", f"did={DID}"], 404, True),
        ([f"did={OTHER}"], DID, False),  # DNS has spoken
        ([f"did={DID}", f"did={OTHER}"], DID, False),
        ([], DID, True),
        ([], f"{DID}\n", True),
        (["did", "DID=x"], DID, True),
        ([], OTHER, False),
        ([], "", False),
        ([], 404, False),
        ([], 500, False),
        ([], DID + " " * 5000, False),
    ],
)
async def test_handle_counts_if_it_leads_back(
    tmp_path: Path, texts: list[str], well_known: str | int, verified: bool
) -> None:
    """DNS is asked first, and HTTPS where it says nothing; any failure is a missing handle and no more."""
    server, trust = tls_pair(tmp_path, HANDLE)
    host, plc = Plc({".well-known/atproto-did": well_known}), Plc({DID: document(handle=HANDLE.upper())})
    host.gate.set()
    plc.gate.set()
    looked_up = []

    async def lookup(name: str) -> list[str]:
        looked_up.append(name)
        return texts

    async with site(host, tls=server) as origin, site(plc) as plc_url:
        names = Directory({HANDLE: [("127.0.0.1", int(origin.rpartition(":")[2]))]})
        client = Outbound(allow_private_hosts=True, tls=trust, resolver=names)
        identity = await Resolver(client, plc_url, texts=lookup).resolve(DID)
        await client.aclose()
    assert (identity.handle, identity.claimed_handle) == (HANDLE if verified else None, HANDLE)
    assert looked_up == [f"_atproto.{HANDLE}"]


@pytest.mark.parametrize(
    "handle", ["a.test", "a.local", "a.localhost", "a.onion", "a.internal", "a.b.arpa", "a.invalid"]
)
async def test_handle_of_no_public_domain_is_not_looked_up(
    outbound: Outbound, plc: Plc, plc_url: str, handle: str
) -> None:
    """Names that belong to local networks are never asked for."""
    looked_up = []

    async def lookup(name: str) -> list[str]:
        looked_up.append(name)
        return [f"did={DID}"]

    plc.answers[DID] = document(handle=handle)
    assert (await Resolver(outbound, plc_url, texts=lookup).resolve(DID)).handle is None
    assert looked_up == []


# Answers kept, shared and forgotten.


async def test_answer_is_kept_for_a_day(plc: Plc, outbound: Outbound, plc_url: str) -> None:
    """Within its time an answer is given again without a request, after it never."""
    now = [NOW]
    resolver = Resolver(outbound, plc_url, clock=lambda: now[0])
    plc.answers[DID] = document()
    first = await resolver.resolve(DID)
    now[0] += DAY - 1
    assert await resolver.resolve(DID) is first
    now[0] += 1
    assert await resolver.resolve(DID) is not first
    assert len(plc.asked) == 2


async def test_memory_is_bounded(plc: Plc, outbound: Outbound, plc_url: str) -> None:
    """Beyond its capacity what was used least recently goes."""
    resolver = Resolver(outbound, plc_url, capacity=2)
    dids = [f"did:plc:{letter * 24}" for letter in "abc"]
    plc.answers = {did: document(did) for did in dids}
    await resolver.resolve(dids[0])
    await resolver.resolve(dids[1])
    await resolver.resolve(dids[0])
    await resolver.resolve(dids[2])
    assert [resolver.cached(did) is not None for did in dids] == [True, False, True]


async def test_new_key_is_seen(resolver: Resolver, plc: Plc) -> None:
    """Whenever that is asked for the document is fetched anew, and remembered."""
    plc.answers[DID] = document(handle="old.test")
    await resolver.resolve(DID)
    plc.answers[DID] = document(handle="new.test")
    assert (await resolver.resolve(DID)).claimed_handle == "old.test"
    assert (await resolver.resolve(DID, fresh=True)).claimed_handle == "new.test"
    assert (await resolver.resolve(DID)).claimed_handle == "new.test"


async def test_those_who_ask_together_share_a_request(resolver: Resolver, plc: Plc) -> None:
    """One request answers all who came while it was under way, and its failure is theirs too."""
    other = "did:plc:" + "b" * 24
    for did, answer in ((DID, document()), (other, 410)):
        plc.answers[did] = answer
        plc.asked.clear()
        plc.gate.clear()
        tasks = [asyncio.create_task(resolver.resolve(did)) for _ in range(5)]
        await plc.entered.get()
        plc.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({id(result) for result in results}) == 1
        assert isinstance(results[0], IdentityGone) == (answer == 410)
        assert len(plc.asked) == 1


async def test_fresh_answer_begins_after_it_was_asked_for(resolver: Resolver, plc: Plc) -> None:
    """A request already under way may have missed the change: those who ask afresh share the one after it."""
    plc.gate.clear()
    early = asyncio.create_task(resolver.resolve(DID))
    await plc.entered.get()
    fresh = [asyncio.create_task(resolver.resolve(DID, fresh=True)) for _ in range(3)]
    plc.answers[DID] = document()
    plc.gate.set()
    identities = await asyncio.gather(early, *fresh)
    assert len(plc.asked) == 2
    assert identities[1] is identities[2] is identities[3] is not identities[0]


async def test_cancelled_request_fails_those_who_shared_it(resolver: Resolver, plc: Plc) -> None:
    """Who is cancelled takes nobody along: the others get a failure that passes, and can ask again."""
    plc.answers[DID] = document()
    plc.gate.clear()
    first = asyncio.create_task(resolver.resolve(DID))
    await plc.entered.get()
    second = asyncio.create_task(resolver.resolve(DID))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(FetchFailed) as caught:
        await second
    assert not caught.value.permanent
    plc.gate.set()
    assert (await resolver.resolve(DID)).did == DID


async def test_who_shares_a_request_can_leave_it(resolver: Resolver, plc: Plc) -> None:
    """A cancelled one among those who wait changes nothing for the others."""
    plc.answers[DID] = document()
    plc.gate.clear()
    first = asyncio.create_task(resolver.resolve(DID))
    await plc.entered.get()
    second = asyncio.create_task(resolver.resolve(DID))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    plc.gate.set()
    assert (await first).did == DID
    assert resolver.cached(DID) is await first
