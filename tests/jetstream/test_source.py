"""What is asked of a Jetstream, and what comes of every answer: filters, cursors, versions, compression."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import zstandard
from websockets.http11 import Response

from indexer.errors import SourceLost
from indexer.simulator import World
from indexer.simulator.jetstream import Jetstream, Query, refusal, trained
from indexer.simulator.witness import Witnessed, info
from indexer.sources.base import Chunk, Opened
from indexer.sources.compression import Dictionary
from indexer.sources.jetstream import CHUNK_BYTES, LOOKBACK, OVERLAP, TIMES, JetstreamSource, Start, start_of
from tests.indexing import LETTA
from tests.jetstream.followed import source_of

NOW = 1_700_000_000.0
US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def frames() -> list[bytes]:
    """A stretch of a network's firehose."""
    return World(4, accounts=3, clock=lambda: datetime.now(UTC)).run(150)


@pytest.fixture
async def host(frames: list[bytes]) -> AsyncIterator[Jetstream]:
    """A Jetstream that has witnessed some of it, and can compress."""
    async with Jetstream(first_seq=1000) as host:
        host.publish(frames)
        host.dictionary = trained(event.version_2 for event in host.log)
        yield host


async def read(source: JetstreamSource, cursor: int | None, count: int) -> tuple[Opened, list[dict[str, Any]]]:
    """How a connection opens, and the first ``count`` of its frames, advice aside."""
    opened: Opened | None = None
    frames: list[dict[str, Any]] = []
    async with aclosing(source.items(cursor)) as items:
        while opened is None or len(frames) < count:
            item = await anext(items)
            if isinstance(item, Opened):
                opened = item
            elif isinstance(item, Chunk):
                frames += (json.loads(frame) for frame in item.frames if frame != info("OutdatedCursor"))
    return opened, frames[:count]


def wanted(host: Jetstream, version: int) -> list[Any]:
    """All that the host has for us, as it stands in its log."""
    ours = [event for event in host.log if event.kind != "commit" or event.collection.startswith(LETTA[:-1])]
    frames = [event.version_1 if version == 1 else event.version_2 for event in ours]
    return [json.loads(frame) for frame in frames if frame is not None]


def asked(host: Jetstream) -> dict[str, list[str]]:
    """The parameters of the last subscription."""
    return parse_qs(urlsplit(host.asked[-1]).query)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_host_filters_by_collection(host: Jetstream, version: int) -> None:
    """Of commits only ours come, of everything else all, in order."""
    expected = wanted(host, version)
    _, frames = await read(source_of(host, f"?v={version}"), 0, len(expected))
    assert frames == expected
    assert asked(host)["collections" if version == 2 else "wantedCollections"] == [LETTA]
    assert len(expected) < len(host.log)


async def test_more_patterns_than_a_host_takes_are_not_sent(host: Jetstream) -> None:
    """A hundred are its limit: what it doesn't filter we do."""
    source = source_of(host, collections=[f"a.b.c{number}" for number in range(101)])
    _, frames = await read(source, 0, len(host.log))
    assert len(frames) == len(host.log)
    assert "collections" not in asked(host)


@pytest.mark.parametrize(
    ("version", "cursor", "start"),
    [
        (2, None, Start(None, None, False)),
        (2, 0, Start(TIMES, None, False)),
        (2, 17, Start(18, 17, False)),
        (2, US, Start(US, None, False)),
        (1, None, Start(None, None, False)),
        (1, 0, Start(TIMES, None, False)),
        (1, 17, Start(TIMES, None, True)),
        (1, US, Start(US - OVERLAP, US - OVERLAP - 1, False)),
        (1, US - LOOKBACK - 1, Start(US - LOOKBACK - 1 - OVERLAP, US - LOOKBACK - 2 - OVERLAP, True)),
    ],
)
def test_where_a_connection_begins(version: int, cursor: int | None, start: Start) -> None:
    """Never after an event not taken in; and what can be missing is said, where the host would not say so."""
    assert start_of(2 if version == 2 else 1, cursor, NOW) == start


async def test_what_follows_a_sequence_number_is_asked_for(host: Jetstream) -> None:
    """Cursors are inclusive: neither does the last event come again, nor is the next one passed over."""
    expected = wanted(host, 2)
    seq = expected[5]["payload"]["seq"]
    opened, frames = await read(source_of(host), seq, 3)
    assert (opened, frames) == (Opened(seq), expected[6:9])


async def test_a_time_is_asked_for_with_some_seconds_before_it(host: Jetstream) -> None:
    """Several events may have the time at which the last connection ended."""
    time_us = wanted(host, 1)[-1]["time_us"]
    _, frames = await read(source_of(host, "?v=1"), time_us, 1)
    assert asked(host)["cursor"] == [str(time_us - OVERLAP)]
    assert frames[0]["time_us"] >= time_us - OVERLAP


async def test_a_cursor_too_old_begins_with_all_there_is(host: Jetstream) -> None:
    """``CursorTooOld`` is no reason to ask again and again: what is left is read, and the loss is told."""
    host.forget(1050)
    opened, frames = await read(source_of(host), 1010, 1)
    assert (opened, frames) == (Opened(None, missed=True), wanted(host, 2)[:1])
    assert [parse_qs(urlsplit(path).query)["cursor"] for path in host.asked] == [["1011"], [str(TIMES)]]


async def test_a_host_that_knows_version_1_only_is_read_in_version_1(host: Jetstream) -> None:
    """Nobody has to know what a host speaks; a position of the other version counts for nothing there."""
    host.versions = (1,)
    opened, frames = await read(source_of(host), 1010, 2)
    assert (opened, frames) == (Opened(None, missed=True), wanted(host, 1)[:2])


@pytest.mark.parametrize("query", ["?v=2", "/xrpc/network.bsky.jetstream.subscribeEvents"])
async def test_a_version_that_is_asked_for_is_the_only_one_tried(host: Jetstream, query: str) -> None:
    """Where it isn't spoken, the connection is lost."""
    host.versions = (1,)
    with pytest.raises(SourceLost, match="HTTP 404"):
        await read(source_of(host, query), 0, 1)
    assert host.asked == []


@pytest.mark.parametrize("version", [1, 2])
async def test_frames_are_compressed_where_the_host_gives_its_dictionary_out(host: Jetstream, version: int) -> None:
    """Compressed or not, the same frames come; version 1, whose dictionary nobody gives out, stays as it is."""
    expected = wanted(host, version)
    _, plain = await read(source_of(host, f"?v={version}"), 0, len(expected))
    size, host.sent_bytes = host.sent_bytes, 0
    _, packed = await read(source_of(host, f"?v={version}", packed=True), 0, len(expected))
    assert packed == plain == expected
    assert ("zstdDictionary" in asked(host)) is (version == 2)
    assert host.sent_bytes < size / 2 if version == 2 else host.sent_bytes == size


@pytest.mark.parametrize("blob", [None, b"", b"no dictionary", b"\x37\xa4\x30\xec" + b"x" * 100])
async def test_a_host_without_a_usable_dictionary_is_read_uncompressed(host: Jetstream, blob: bytes | None) -> None:
    """Compression is a saving, never a condition."""
    host.dictionary = blob
    _, frames = await read(source_of(host, packed=True), 0, 2)
    assert frames == wanted(host, 2)[:2]
    assert "zstdDictionary" not in asked(host)


async def test_a_dictionary_that_changed_is_asked_for_anew(host: Jetstream) -> None:
    """``UnknownZstdDictionary``: the new one is used, on the same call."""
    source = source_of(host, packed=True)
    await read(source, 0, 1)
    host.dictionary = trained((event.version_2 for event in host.log), number=8)
    _, frames = await read(source, 0, 2)
    assert frames == wanted(host, 2)[:2]
    assert [parse_qs(urlsplit(path).query)["zstdDictionary"] for path in host.asked] == [["7"], ["7"], ["8"]]


async def test_a_frame_that_does_not_unpack_is_read_again_uncompressed(host: Jetstream) -> None:
    """Passing it over would lose an event: the connection is lost, and the next one does without the dictionary."""
    source = source_of(host, packed=True)
    other = trained((event.version_2 for event in host.log), number=7, size=4096)
    async with aclosing(source.items(0)) as items:
        await anext(items)
        source._dictionary = Dictionary(other)
        with pytest.raises(SourceLost, match="damaged") as caught:
            await anext(items)
    assert caught.value.reason == "protocol_error"
    _, frames = await read(source, 0, 2)
    assert frames == wanted(host, 2)[:2]
    assert "zstdDictionary" not in asked(host)


@pytest.mark.parametrize("declared", [True, False])
def test_a_small_frame_cannot_hold_much(declared: bool) -> None:
    """Whether its header says so or not: of a frame over the limit only the beginning is unpacked."""
    blob = trained(json.dumps({"n": number, "did": f"did:plc:{number}"}).encode() for number in range(2000))
    data = zstandard.ZstdCompressionDict(blob)
    compressor = zstandard.ZstdCompressor(dict_data=data, write_content_size=declared)
    frame = compressor.compress(b'{"did":"did:plc:x"' + b" " * 50_000_000)
    assert len(frame) < 10_000
    text = Dictionary(blob).unpack(frame, 1_000_000)
    assert (text[:18], len(text) <= 4096) == (b'{"did":"did:plc:x"', True)


async def test_what_was_unpacked_is_handed_over_in_parts(host: Jetstream) -> None:
    """Memory is bounded by what is unpacked, not by what came over the wire."""
    big = [Witnessed(2000 + n, 2000 + n, "account", "did:x", "", None, b'"%s"' % (b"x" * 400_000)) for n in range(20)]
    host.put(*big)
    async with aclosing(source_of(host, packed=True).items(2000)) as items:
        await anext(items)
        sizes: list[int] = []
        while sum(sizes) < 20 * 400_002:
            item = await anext(items)
            assert isinstance(item, Chunk)
            sizes.append(sum(map(len, item.frames)))
    assert max(sizes) <= CHUNK_BYTES + 400_002


class Stubborn(Jetstream):
    """A host to which every cursor is too old."""

    def _refusal(self, query: Query) -> Response | None:
        return refusal("CursorTooOld")


async def test_a_host_that_refuses_whatever_is_asked_is_lost() -> None:
    """There is no loop within a connection."""
    async with Stubborn() as host:
        with pytest.raises(SourceLost, match="HTTP 400") as caught:
            await read(source_of(host), 1010, 1)
    assert (caught.value.reason, len(host.asked)) == ("http_error", 2)
