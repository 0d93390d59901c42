"""The harness itself: what the real PDS is asked to do really happens, is seen on its firehose, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import libipld
import pytest

from tests.pds import real
from tests.pds.process import PdsProcess
from tests.pds.real import Account, PdsError, RealPds

CONVERSATION = "xyz.quasigod.lab.letta.conversation"
PROMPT = "xyz.quasigod.lab.letta.compiledPrompt"
PATIENCE = 30.0  # seconds until a test that waits for the firehose is given up as failed


def prompt(content: str) -> dict[str, Any]:
    """A record of a collection the PDS has no schema of."""
    return {"$type": PROMPT, "content": content, "unknown": {"kept": True}}


async def next_event(frames: AsyncIterator[bytes], kind: str, did: str) -> dict[str, Any]:
    """The body of the next event of this type about this account."""
    async with asyncio.timeout(PATIENCE):
        async for frame in frames:
            header, body = libipld.decode_dag_cbor_multi(frame)
            if header["t"] == kind and did in (body.get("did"), body.get("repo")):
                return dict(body)
    raise AssertionError(f"the firehose ended before a {kind}")


def listening(port: int) -> set[str]:
    """The local addresses, in the kernel's spelling, on which somebody listens on a TCP port (state 0A)."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    sockets = [row[1].rsplit(":", 1) for row in rows if row[3] == "0A"]
    return {address for address, number in sockets if int(number, 16) == port}


@pytest.fixture
async def alice(pds: RealPds) -> Account:
    """A new account."""
    return await pds.create_account("alice")


async def test_both_servers_listen_on_loopback_only(pds: RealPds, pds_process: PdsProcess) -> None:
    """The PDS and the PLC directory answer under the addresses given, and nobody from outside can reach them."""
    assert (await pds.query("com.atproto.server.describeServer"))["availableUserDomains"] == [".test"]
    async with aiohttp.ClientSession() as http, http.get(f"{pds.plc_url}/_health") as response:
        assert response.status == 200
    for url in (pds_process.url, pds_process.plc_url):
        assert listening(int(url.rsplit(":", 1)[1])) == {"0100007F"}


async def test_two_accounts_of_one_name_are_two_accounts(pds: RealPds) -> None:
    """Tests share a PDS without meeting: a name never collides."""
    first, second = await pds.create_account("bob"), await pds.create_account("bob")
    assert first.did != second.did
    assert first.handle != second.handle
    assert {first.did, second.did} <= {repo["did"] for repo in await pds.list_repos()}


async def test_did_document_names_this_host_and_the_handle(pds: RealPds, alice: Account) -> None:
    """The PLC directory serves the real document of an account: its PDS, its key, its handle."""
    document = await pds.did_document(alice.did)
    assert document["id"] == alice.did
    assert document["alsoKnownAs"] == [f"at://{alice.handle}"]
    assert document["service"][0]["serviceEndpoint"] == pds.url
    assert document["verificationMethod"][0]["id"].endswith("#atproto")


async def test_written_record_is_held_and_announced(pds: RealPds, alice: Account) -> None:
    """A record of an unknown schema is stored whole, and the firehose carries its commit with the CID returned."""
    uri, cid, rev = await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("hello"))
    assert uri == f"at://{alice.did}/{PROMPT}/3kaaaaaaaaa2a"
    assert await pds.get_record(alice.did, PROMPT, "3kaaaaaaaaa2a") == (uri, cid, prompt("hello"))
    async with aclosing(pds.frames()) as frames:
        commit = await next_event(frames, "#commit", alice.did)
        while commit["rev"] != rev:
            commit = await next_event(frames, "#commit", alice.did)
    (operation,) = commit["ops"]
    assert (operation["action"], operation["path"]) == ("create", f"{PROMPT}/3kaaaaaaaaa2a")
    assert libipld.encode_cid(operation["cid"]) == cid


async def test_overwriting_gives_a_new_cid_and_rev(alice: Account) -> None:
    """A recompile is an overwrite: same URI, new CID, later rev; the same content again is no write at all."""
    first = await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("one"))
    second = await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("two"))
    again = await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("two"))
    assert second.uri == first.uri
    assert second.cid != first.cid
    assert second.rev > first.rev
    assert again == second


async def test_one_commit_takes_many_writes(pds: RealPds, alice: Account) -> None:
    """A batch of 200 writes is one commit, and a listing of more than a page comes back whole."""
    keys = [f"3kaaaaaaaa{number:03d}" for number in range(200)]
    before = await alice.apply_writes([real.create(PROMPT, key, prompt(key)) for key in keys])
    after = await alice.apply_writes(
        [real.update(PROMPT, keys[0], prompt("new")), *(real.delete(PROMPT, key) for key in keys[1:50])]
    )
    held = await pds.list_records(alice.did, PROMPT)
    assert after > before
    assert (await pds.latest_commit(alice.did))[1] == after
    assert {record.uri.rsplit("/", 1)[1] for record in held} == {keys[0], *keys[50:]}
    assert prompt("new") in [record.value for record in held]


async def test_created_record_has_a_key_of_the_hosts_choice(pds: RealPds, alice: Account) -> None:
    """A record written without a key gets a TID; one with a key keeps it; both can be deleted."""
    chosen = await alice.create_record(CONVERSATION, {"$type": CONVERSATION})
    given = await alice.create_record(CONVERSATION, {"$type": CONVERSATION, "title": "t"}, rkey="3kaaaaaaaaa2b")
    assert len(chosen.uri.rsplit("/", 1)[1]) == 13
    assert given.uri.endswith("/3kaaaaaaaaa2b")
    rev = await alice.delete_record(CONVERSATION, "3kaaaaaaaaa2b")
    assert rev > given.rev
    assert await pds.get_record(alice.did, CONVERSATION, "3kaaaaaaaaa2b") is None
    assert await alice.delete_record(CONVERSATION, "3kaaaaaaaaa2b") == rev


async def test_repository_is_a_car_of_its_head(pds: RealPds, alice: Account) -> None:
    """getRepo gives the signed commit that the host reports as the head, and the record's block."""
    written = await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("hello"))
    header, blocks = libipld.decode_car(await pds.get_repo(alice.did))
    head, rev = await pds.latest_commit(alice.did)
    (root,) = header["roots"]
    assert libipld.encode_cid(root) == head
    assert blocks[root]["rev"] == rev == written.rev
    assert prompt("hello") in blocks.values()


async def test_deactivation_and_return_are_announced(pds: RealPds, alice: Account) -> None:
    """An account that its owner hides and brings back is reported so, in this order."""
    async with aclosing(pds.frames()) as frames:
        assert (await next_event(frames, "#account", alice.did))["active"] is True
        await alice.deactivate()
        assert (await pds.repo_status(alice.did))["status"] == "deactivated"
        assert (await next_event(frames, "#account", alice.did))["status"] == "deactivated"
        await alice.activate()
        assert (await pds.repo_status(alice.did))["active"] is True
        assert (await next_event(frames, "#account", alice.did))["active"] is True


async def test_takedown_and_return_are_announced(pds: RealPds, alice: Account) -> None:
    """An account that its host hides and shows again is reported so."""
    async with aclosing(pds.frames()) as frames:
        assert (await next_event(frames, "#account", alice.did))["active"] is True
        await pds.take_down(alice.did)
        assert (await next_event(frames, "#account", alice.did))["status"] == "takendown"
        await pds.take_down(alice.did, applied=False)
        assert (await next_event(frames, "#account", alice.did))["active"] is True


async def test_new_handle_is_in_the_document_and_announced(pds: RealPds, alice: Account) -> None:
    """A change of handle reaches the PLC directory and the firehose."""
    handle = await alice.update_handle("carol")
    assert alice.handle == handle
    assert (await pds.did_document(alice.did))["alsoKnownAs"] == [f"at://{handle}"]
    async with aclosing(pds.frames()) as frames:
        while (await next_event(frames, "#identity", alice.did)).get("handle") != handle:
            pass


async def test_deleted_account_is_gone(pds: RealPds, alice: Account) -> None:
    """A deleted account has no repository, and the last word about it on the firehose is that."""
    await alice.put_record(PROMPT, "3kaaaaaaaaa2a", prompt("hello"))
    await alice.delete_account()
    with pytest.raises(PdsError) as refusal:
        await pds.repo_status(alice.did)
    assert (refusal.value.status, refusal.value.error) == (400, "RepoNotFound")
    async with aclosing(pds.frames()) as frames:
        assert (await next_event(frames, "#account", alice.did))["status"] == "deleted"


async def test_two_servers_are_strangers() -> None:
    """Each start is a network of its own, empty, and what it kept on disk goes with it."""
    with PdsProcess.start() as one:
        assert one.data.is_dir()
        async with RealPds.start() as other:
            assert other.url != one.url
            assert await other.list_repos() == []
    assert not one.data.exists()
    assert one.process.returncode == 0


def test_servers_end_with_the_process_that_started_them(pds_process: PdsProcess) -> None:
    """Where the test run is killed outright, the servers end all the same and take their data with them."""
    program = (
        "from tests.pds.process import PdsProcess as P\nwith P.start() as p: print(p.process.pid, p.data); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, data = owner.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        owner.kill()
    ended, _, _ = select.select([server], [], [], PATIENCE)
    os.close(server)
    assert ended
    assert pds_process.data.exists()
    assert not Path(data).exists()
