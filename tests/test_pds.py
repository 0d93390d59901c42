"""XRPC calls: right answers as values, refusals as states, and every other answer as one kind of failure."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from indexer.outbound import CAR, FetchFailed, Outbound
from indexer.pds import Page, RepoHost, RepoStatus, RepoUnavailable
from tests.strangers import site

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
REV = "3n3k7rbonkz2q"
COLLECTION = "xyz.quasigod.lab.letta.agent"
STATES = {
    "RepoNotFound": "not_found",
    "RepoDeactivated": "deactivated",
    "RepoTakendown": "takendown",
    "RepoSuspended": "suspended",
}
Query = dict[str, str]


@dataclass
class Host:
    """Answers each request with the next of ``answers`` (JSON, status and JSON, or a response)."""

    answers: list[Any] = field(default_factory=list)
    asked: list[tuple[str, Query]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        assert request.path.startswith("/xrpc/com.atproto.")
        self.asked.append((request.path.removeprefix("/xrpc/com.atproto."), dict(request.query)))
        answer = self.answers.pop(0)
        if isinstance(answer, web.Response):
            return answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    async with site(host) as host.url:
        yield host


@pytest.fixture
async def calls() -> AsyncIterator[RepoHost]:
    outbound = Outbound(allow_private_hosts=True)
    yield RepoHost(outbound, max_repo_bytes=1000)
    await outbound.aclose()


def error(name: str, status: int = 400) -> tuple[int, dict[str, str]]:
    return status, {"error": name, "message": "secret words"}


async def pages(calls: RepoHost, host: Host, cursor: str | None = None) -> list[Page]:
    return [page async for page in calls.list_repos_by_collection(host.url, COLLECTION, cursor)]


async def test_repository_is_written_as_it_comes(calls: RepoHost, host: Host) -> None:
    """The file holds what the host sent, the answer is its size."""
    host.answers = [web.Response(body=b"some bytes", content_type=CAR)]
    file = io.BytesIO()
    assert await calls.get_repo(host.url, DID, file) == 10
    assert file.getvalue() == b"some bytes"
    assert host.asked == [("sync.getRepo", {"did": DID})]


@pytest.mark.parametrize("name", STATES)
async def test_repository_not_given_out_is_a_state(calls: RepoHost, host: Host, name: str) -> None:
    """Each refusal that the lexicon knows comes as its state, from every call about one repository."""
    host.answers = [error(name)] * 3
    with pytest.raises(RepoUnavailable, match=DID) as caught:
        await calls.get_repo(host.url, DID, io.BytesIO())
    assert (caught.value.state, caught.value.code, caught.value.permanent) == (STATES[name], name, True)
    assert "secret" not in str(caught.value)
    assert await calls.get_repo_status(host.url, DID) == RepoStatus(False, STATES[name], None)
    with pytest.raises(RepoUnavailable):
        await calls.describe_repo(host.url, DID)


@pytest.mark.parametrize(
    "answer",
    [
        *(error("InvalidRequest"), error("InternalServerError", 500), error("AuthRequired", 401), (404, "<html>")),
        *([], None, "text", {}, {"error": "RepoNotFound"}, {"did": "did:plc:other", "active": True, "collections": []}),
        *(
            {"did": DID, "active": "yes", "collections": "all", "cid": 1, "rev": REV},
            {"did": DID, "cid": "b", "rev": 1},
        ),
        *({"did": [], "cid": "b", "rev": "not a tid"}, web.Response(text="<html>", content_type="text/html")),
    ],
    ids=repr,
)
async def test_any_other_answer_is_a_failure(calls: RepoHost, host: Host, answer: Any) -> None:
    """Refusals of another name and answers of another form never come through as values, nor as other errors."""
    for call in (calls.get_repo_status, calls.describe_repo):
        # A response object can be sent once only.
        host.answers = [web.Response(text="<html>") if isinstance(answer, web.Response) else answer]
        with pytest.raises(FetchFailed) as caught:
            await call(host.url, DID)
        assert type(caught.value) is FetchFailed
        assert DID in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"active": True, "rev": REV}, RepoStatus(True, None, REV)),
        ({"active": True, "status": "throttled"}, RepoStatus(True, None, None)),
        ({"active": False, "status": "deactivated"}, RepoStatus(False, "deactivated", None)),
        ({"active": False, "status": "desynchronized", "rev": REV}, RepoStatus(False, "desynchronized", REV)),
        ({"active": False}, RepoStatus(False, "inactive", None)),
        ({"active": False, "status": 7, "rev": 7}, RepoStatus(False, "inactive", None)),
        ({"active": False, "status": "x" * 10_000, "rev": "x"}, RepoStatus(False, "inactive", None)),
    ],
)
async def test_status_of_an_account(calls: RepoHost, host: Host, answer: dict[str, Any], status: RepoStatus) -> None:
    """Known and unknown words are handed on, within bounds."""
    host.answers = [{"did": DID, **answer}]
    assert await calls.get_repo_status(host.url, DID) == status


async def test_collections(calls: RepoHost, host: Host) -> None:
    """Collections are told as far as they are names of such."""
    host.answers = [{"did": DID, "collections": [COLLECTION, "no nsid", 7, None]}]
    assert await calls.describe_repo(host.url, DID) == (COLLECTION,)
    assert host.asked == [("repo.describeRepo", {"repo": DID})]


async def test_value_cannot_add_to_the_query(calls: RepoHost, host: Host) -> None:
    """Whatever stands in a DID arrives as it is."""
    did = "did:web:example.com%3A443&did=x#y"
    host.answers = [error("RepoNotFound")]
    await calls.get_repo_status(host.url, did)
    assert host.asked == [("sync.getRepoStatus", {"did": did})]


async def test_oversized_repository_is_cut_off(calls: RepoHost, host: Host) -> None:
    """A repository over the limit fails, and no more than the limit was written."""
    host.answers = [web.Response(body=bytes(1001), content_type=CAR)]
    file = io.BytesIO()
    with pytest.raises(FetchFailed, match="over 1000 bytes"):
        await calls.get_repo(host.url, DID, file)
    assert len(file.getvalue()) <= 1000


async def test_accounts_of_a_collection_come_in_pages(calls: RepoHost, host: Host) -> None:
    """Each page with the cursor that leads on, what is no DID left out, an empty page in between allowed."""
    others = [f"did:plc:{letter * 24}" for letter in "abc"]
    host.answers = [
        {"repos": [{"did": others[0]}, {"did": others[0]}, {"did": "x"}, {}, 7], "cursor": "1"},
        {"repos": [], "cursor": "2"},
        {"repos": [{"did": others[1]}, {"did": others[2]}], "cursor": ""},
    ]
    assert await pages(calls, host, "0") == [
        Page((others[0],), "1"),
        Page((), "2"),
        Page((others[1], others[2]), None),
    ]
    assert [query.get("cursor") for _, query in host.asked] == ["0", "1", "2"]
    assert {query["collection"] for _, query in host.asked} == {COLLECTION}


@pytest.mark.parametrize(
    "answer",
    [
        error("MethodNotImplemented", 501),
        error("XRPCNotSupported", 404),
        error("MethodNotImplemented"),
        (404, None),
        (405, {}),
    ],
)
async def test_host_without_the_method_is_no_failure(calls: RepoHost, host: Host, answer: Any) -> None:
    """It gives one empty page that says so."""
    host.answers = [answer]
    assert await pages(calls, host) == [Page((), None, supported=False)]


@pytest.mark.parametrize(
    "answer",
    [
        {"repos": 7},
        [],
        {"repos": [], "cursor": 7},
        {"repos": [], "cursor": "x" * 5000},
        {"repos": [], "cursor": "same"},
    ],
)
async def test_list_that_makes_no_sense_ends(calls: RepoHost, host: Host, answer: Any) -> None:
    """Other forms are failures, and so is a cursor that leads back to itself."""
    host.answers = [{"repos": [{"did": DID}], "cursor": "same"}, answer]
    found = calls.list_repos_by_collection(host.url, COLLECTION)
    assert await anext(found) == Page((DID,), "same")
    with pytest.raises(FetchFailed, match=rf"{COLLECTION}|circles"):
        await anext(found)


async def test_strangers_host_is_a_stranger() -> None:
    """The address of a PDS comes from a DID document: loopback is refused unless the host is trusted."""
    outbound = Outbound()
    calls, host = RepoHost(outbound), Host([{"did": DID, "active": True, "rev": REV}])
    async with site(host) as url:
        with pytest.raises(FetchFailed) as caught:
            await calls.get_repo_status(url, DID)
        assert caught.value.permanent
        assert await calls.get_repo_status(url, DID, trusted=True) == RepoStatus(True, None, REV)
    await outbound.aclose()


@pytest.mark.parametrize(
    "host", ["", "x", "https://", "https://[:::]", "https://a..b:99999", "http://1.1.1.1", "https://a b"]
)
async def test_host_that_is_none_is_a_failure(host: str) -> None:
    """What a DID document calls a PDS may be anything: it fails like a host that doesn't answer, for good."""
    outbound = Outbound()
    with pytest.raises(FetchFailed, match=DID) as caught:
        await RepoHost(outbound).get_repo(host, DID, io.BytesIO())
    assert caught.value.permanent
    assert outbound.wait(host) == 0
    assert not outbound.busy(host)
    await outbound.aclose()
