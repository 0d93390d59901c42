"""What a rare namespace costs on the wire, from the firehose and from Jetstream (docs/sources.md has the figures)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from indexer.simulator import World, events
from indexer.simulator.jetstream import Jetstream, trained
from indexer.simulator.pds import Pds
from indexer.sources.base import Chunk
from tests.frames import PREFIX
from tests.histories import WEIGHTS
from tests.jetstream.followed import source_of

RARE = WEIGHTS | {"noise": 8_000, "hide": 0, "come_back": 0, "delete_account": 0}


class Stretch(NamedTuple):
    """A stretch of a network's life: its firehose, and the network as it is then."""

    frames: list[bytes]
    world: World


@pytest.fixture(scope="module")
def stretch() -> Stretch:
    """A network in which about one commit in eighty is of a Letta agent's."""
    world = World(9, accounts=12, weights=RARE, clock=lambda: datetime.now(UTC))
    return Stretch(world.take() + world.run(3_000), world)


def ours(frames: Sequence[bytes]) -> list[str]:
    """The account of each commit that touches our prefix."""
    bodies = [body for header, body in map(events.parse, frames) if header["t"] == "#commit"]
    return [body["repo"] for body in bodies if any(op["path"].startswith(PREFIX) for op in body["ops"])]


async def sent(host: Jetstream, version: int, *, packed: bool) -> int:
    """Bytes of all frames that the host sends to who follows it from the beginning."""
    wanted = [event for event in host.log if event.kind != "commit" or event.collection.startswith(PREFIX)]
    count = len([event for event in wanted if version == 2 or event.version_1 is not None])
    host.sent_bytes = 0
    async with aclosing(source_of(host, f"?v={version}", packed=packed).items(0)) as items:
        while count > 0:
            item = await anext(items)
            count -= len(item.frames) if isinstance(item, Chunk) else 0
    return host.sent_bytes


async def test_a_rare_namespace_costs_a_fraction_of_the_firehose(stretch: Stretch) -> None:
    """Filtered by the host, then compressed; the fetches that prove what came are the price, and are counted too."""
    frames, world = stretch
    async with Jetstream() as host, Pds(world):
        host.publish(frames)
        host.dictionary = trained(event.version_2 for event in host.log)
        firehose = sum(map(len, frames))
        first, second = await sent(host, 1, packed=False), await sent(host, 2, packed=False)
        packed = await sent(host, 2, packed=True)
    commits = ours(frames)
    repos = {did: len(world.accounts[did].repository.export()) for did in set(commits)}
    print(
        f"\n{len(frames)} frames, {len(commits)} of ours by {len(repos)} accounts; bytes: firehose {firehose}, "
        f"version 1 {first}, version 2 {second}, compressed {packed}; a fetch {sum(repos.values()) // len(repos)}, "
        f"one for each commit {sum(repos[did] for did in commits)}, one for each account {sum(repos.values())}"
    )
    assert packed < second < firehose / 10
    assert first < firehose / 10
