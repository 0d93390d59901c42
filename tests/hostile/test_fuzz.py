"""Random corruption of real bytes: nothing raises, and what is in the index always hashes to its CID.

What makes one of these tests fail belongs into ``tests/captures/crashers/`` (a capture: each frame preceded by its
length, four bytes big-endian), where it is replayed from then on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.sources.base import Chunk, Opened
from tests.frames import TYPED, commit, key, put, rev
from tests.hostile.mutations import CRASHERS, HOSTILE_BLOCKS, HOSTILE_FRAMES
from tests.hostile.target import Target, assert_rows_hash
from tests.indexing import read_capture, untrue_flags

# Examples share a database: what one leaves behind is the history that the next one meets.
BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@given(frames=st.lists(HOSTILE_FRAMES, min_size=1, max_size=5), sequenced=st.booleans())
@BOUNDED
async def test_corrupted_frames(target: Target, frames: list[bytes], sequenced: bool) -> None:
    """Frames of a real PDS, corrupted, are indexed or set aside; rows stay what their CIDs say, flags stay true."""
    await throw(target, frames, sequenced=sequenced)
    await assert_rows_hash(target.sql)
    assert await untrue_flags(target.sql) == []


@given(blocks=st.lists(HOSTILE_BLOCKS, min_size=1, max_size=6), step=st.integers(0, 1_000))
@BOUNDED
async def test_corrupted_records(target: Target, blocks: list[bytes], step: int) -> None:
    """Records of a real PDS, corrupted and filed under the CID they have then, are rows that hash to it."""
    ops = [put(collection, key(n), block) for n, block in enumerate(blocks) for collection in TYPED]
    await throw(target, [commit(*ops, rev=rev(step))], sequenced=False)
    await assert_rows_hash(target.sql)
    assert await untrue_flags(target.sql) == []


async def throw(target: Target, frames: list[bytes], *, sequenced: bool) -> None:
    """Have the frames taken in, as those of a file or of a stream, and committed."""
    intake = target.index.intake
    if sequenced:
        await intake.take(Opened(None))
    await intake.take(Chunk(frames, None if sequenced else target.index.taken))
    await target.index.pipeline.flush()


@pytest.mark.parametrize("path", sorted(CRASHERS.glob("*.bin")), ids=lambda path: path.stem)
@pytest.mark.parametrize("sequenced", [False, True], ids=["file", "stream"])
async def test_crashers(target: Target, path: Path, sequenced: bool) -> None:
    """What once stopped the daemon, or any reader of its views, no longer does."""
    frames = read_capture(path)
    for frame in frames:
        await throw(target, [frame], sequenced=sequenced)
    await throw(target, frames, sequenced=sequenced)


async def test_crashers_are_there() -> None:
    """The files that the test above replays are found."""
    assert {path.stem for path in CRASHERS.glob("*.bin")} >= {"account-status-nul", "event-of-year-one"}
