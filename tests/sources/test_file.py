"""Capture files, read and written."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import resource
import stat
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.errors import SettingsError, SourceBroken
from indexer.model import Reason
from indexer.sources.base import Chunk, Dropped, Item, Opened
from indexer.sources.file import CaptureFile, FileSource, capture

CAPTURE = Path(__file__).parents[1] / "captures" / "pds-a" / "frames.bin"


def packed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


async def read(path: Path, cursor: int | None = None, *, max_frame_bytes: int = 1 << 24) -> list[Item]:
    """What is in a file, whether its frames are any or not: ``open`` would refuse it without one."""
    source = FileSource(path, sha256="", max_frame_bytes=max_frame_bytes)
    async with aclosing(source.items(cursor)) as items:
        return [item async for item in items]


def frames_of(items: list[Item]) -> list[bytes]:
    return list(itertools.chain.from_iterable(item.frames for item in items if isinstance(item, Chunk)))


async def test_a_real_capture_gives_its_frames_under_the_hash_of_its_content() -> None:
    """433 frames, in order, nothing dropped; the key is the content's, wherever the file lies."""
    source = await FileSource.open(CAPTURE)
    items = await read(CAPTURE)
    assert source.key == "file:" + hashlib.sha256(CAPTURE.read_bytes()).hexdigest()
    assert source.key.startswith(source.label)
    assert len(frames_of(items)) == 433
    assert packed(*frames_of(items)) == CAPTURE.read_bytes()
    assert not [item for item in items if isinstance(item, Dropped)]


@pytest.mark.parametrize("cursor", [0, 1, 200, 432, 433, 434, 10**12])
async def test_a_cursor_skips_exactly_that_many_frames(cursor: int) -> None:
    """Position n means n frames are behind; past the end there is nothing."""
    items = await read(CAPTURE, cursor)
    assert items[0] == Opened(cursor)
    assert frames_of(items) == frames_of(await read(CAPTURE))[cursor:]
    assert all(item.start == cursor for item in items[1:2] if isinstance(item, Chunk))


async def test_chunks_join_without_a_seam(tmp_path: Path) -> None:
    """Many small frames and some large ones come in several bounded chunks, each told where it starts."""
    frames = [b"s"] * 2500 + [b"l" * 700_000] * 3
    (tmp_path / "f").write_bytes(packed(*frames))
    chunks = [item for item in await read(tmp_path / "f") if isinstance(item, Chunk)]
    assert [chunk.start for chunk in chunks] == list(
        itertools.accumulate((len(chunk.frames) for chunk in chunks[:-1]), initial=0)
    )
    assert max(sum(map(len, chunk.frames)) for chunk in chunks) <= 1_800_000
    assert frames_of(list(chunks)) == frames


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=9), min_size=1, max_size=9), cut=st.integers(min_value=0))
def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_frame(tmp_path: Path, frames: list[bytes], cut: int) -> None:
    """Full disks and kills cut files: what is whole is given, what is cut is reported, nothing is raised."""
    data = packed(*frames)
    cut %= len(data)
    (tmp_path / "f").write_bytes(data[:cut])
    ends = [0, *itertools.accumulate(4 + len(frame) for frame in frames)]
    whole = sum(end <= cut for end in ends) - 1
    items = asyncio.run(read(tmp_path / "f"))
    assert frames_of(items) == frames[:whole]
    reported = [item.reason for item in items if isinstance(item, Dropped)]
    assert reported == ([] if cut in ends else [Reason.MALFORMED_FRAME])


async def test_frames_over_the_limit_are_passed_over_but_keep_their_number(tmp_path: Path) -> None:
    """Positions stay those of the file, also behind a frame left out, at the start, between and at the end."""
    (tmp_path / "f").write_bytes(packed(b"x" * 11, b"a", b"x" * 99, b"x" * 12, b"b", b"", b"x" * 11))

    def over(position: int, size: int) -> Dropped:
        return Dropped(Reason.OVERSIZED_FRAME, position, f"{size} bytes")

    items = await read(tmp_path / "f", max_frame_bytes=10)
    expected = [over(1, 11), Chunk([b"a"], 1), over(3, 99), over(4, 12), Chunk([b"b", b""], 4), over(7, 11)]
    assert items == [Opened(None), *expected]
    assert (await read(tmp_path / "f", 3, max_frame_bytes=10))[1:] == expected[3:]


async def test_a_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    """Four bytes can claim 4 GiB: over the limit they are never read, and the end of the file is the end."""
    (tmp_path / "f").write_bytes(packed(b"a") + b"\xff\xff\xff\xffrest")
    items = await read(tmp_path / "f")
    assert items[1:] == [
        Chunk([b"a"], 0),
        Dropped(Reason.MALFORMED_FRAME, None, "the file ends inside frame 2"),
    ]


async def test_an_empty_file_is_a_source_without_frames(tmp_path: Path) -> None:
    """Nothing was captured; that is no error."""
    (tmp_path / "f").touch()
    assert await read(tmp_path / "f") == [Opened(None)]


async def test_what_is_no_readable_file_is_broken(tmp_path: Path) -> None:
    """A missing file, a folder and a pipe (which would block for ever) are told apart from a lost connection."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe"):
        with pytest.raises(SourceBroken, match=path.name):
            await FileSource.open(path)


FIRST = CAPTURE.read_bytes()[: 4 + int.from_bytes(CAPTURE.read_bytes()[:4], "big")]


@pytest.mark.parametrize(
    "content",
    [
        b"# letta-indexer\n\nA daemon that follows",
        b"\x1f\x8b\x08\x00" + bytes(99),
        b"\0\0\0\x18ftypmp42" + bytes(99),
        bytes(4096),
        b"\n",
        packed(b"{}", b"[]", b"\xa0"),
        packed(b"x" * ((1 << 24) + 1)),
        FIRST[:-1],
    ],
    ids=["text", "gzip", "video", "zeros", "short", "other frames", "oversized", "cut in its first frame"],
)
async def test_a_file_without_a_frame_is_no_capture(tmp_path: Path, content: bytes) -> None:
    """A name mistaken for another's is a failed source, not one that was read to its end."""
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(SourceBroken, match="f: not a capture"):
        await FileSource.open(tmp_path / "f")


@pytest.mark.parametrize("content", [b"", FIRST, FIRST + FIRST[:-1], FIRST + b"\0", packed(b"", b"\xff") + FIRST])
async def test_a_capture_is_one_however_it_ends_or_was_attacked(tmp_path: Path, content: bytes) -> None:
    """An empty file, one cut in its last frame, and one in which a hostile host came first are read."""
    (tmp_path / "f").write_bytes(content)
    source = await FileSource.open(tmp_path / "f")
    assert source.key == "file:" + hashlib.sha256(content).hexdigest()


async def test_a_file_that_vanishes_is_broken(tmp_path: Path) -> None:
    """Also after its key was computed."""
    (tmp_path / "f").write_bytes(CAPTURE.read_bytes())
    source = await FileSource.open(tmp_path / "f")
    (tmp_path / "f").unlink()
    with pytest.raises(SourceBroken, match="No such file"):
        await anext(source.items(None))


async def test_a_capture_of_a_capture_is_the_same_file(tmp_path: Path) -> None:
    """What is written is what was read, byte for byte, for its owner only."""
    with CaptureFile(tmp_path / "copy") as file:
        count = await capture((await FileSource.open(CAPTURE)).items(None), file)
    assert (count, file.count, file.size) == (433, 433, CAPTURE.stat().st_size)
    assert (tmp_path / "copy").read_bytes() == CAPTURE.read_bytes()
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


@pytest.mark.parametrize("limit", [0, 1, 432, 500])
async def test_a_capture_ends_at_its_limit(tmp_path: Path, limit: int) -> None:
    """Also in the middle of a chunk."""
    with CaptureFile(tmp_path / "copy") as file:
        count = await capture((await FileSource.open(CAPTURE)).items(None), file, limit=limit)
    assert count == min(limit, 433)
    assert frames_of(await read(tmp_path / "copy")) == frames_of(await read(CAPTURE))[:limit]


async def endless(asked_again: asyncio.Event) -> AsyncGenerator[Item, None]:
    """One frame, then a wait that only cancelling ends."""
    yield Chunk([b"a"])
    asked_again.set()
    await asyncio.Event().wait()


async def test_a_capture_ends_after_its_time(tmp_path: Path) -> None:
    """A silent source doesn't keep it open."""
    with CaptureFile(tmp_path / "copy") as file:
        assert await capture(endless(asyncio.Event()), file, seconds=0.01) == 1


async def test_a_cancelled_or_killed_capture_holds_what_it_counted(tmp_path: Path) -> None:
    """Every chunk is with the operating system before the next is asked for; the file isn't closed here."""
    written = asyncio.Event()
    file = CaptureFile(tmp_path / "copy")
    task = asyncio.create_task(capture(endless(written), file))
    await written.wait()
    assert ((tmp_path / "copy").read_bytes(), file.count) == (packed(b"a"), 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    file.__exit__(None, None, None)


@pytest.mark.parametrize(("frames", "left"), [([], []), ([b"a"], ["f"])])
def test_a_capture_that_fails_empty_leaves_no_file(tmp_path: Path, frames: list[bytes], left: list[str]) -> None:
    """What was written before a failure stays; a file without a frame would pass for a silent source."""
    file = CaptureFile(tmp_path / "f")
    file.append(frames)
    file.__exit__(SourceBroken, SourceBroken("gone"), None)
    assert [path.name for path in tmp_path.iterdir()] == left


def test_a_capture_never_overwrites(tmp_path: Path) -> None:
    """Neither a file nor through a link, and a folder that isn't there is said so."""
    (tmp_path / "f").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("f", "link", "no/such/folder"):
        with pytest.raises(SettingsError, match=name):
            CaptureFile(tmp_path / name)
    assert (tmp_path / "f").read_bytes() == b"precious"
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_takes_no_more_ends_a_capture_with_a_reason(tmp_path: Path) -> None:
    """A file size limit stands for a full disk: what was counted before stays, closing raises nothing on top."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = CaptureFile(tmp_path / "f")
    file.append([b"a"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with file, pytest.raises(SourceBroken, match="f: File too large"):
            file.append([b"bcdefgh"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (file.count, file.size) == (1, 5)
    assert (tmp_path / "f").read_bytes().startswith(packed(b"a"))
