"""Real frames and records, corrupted mechanically."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from tests.indexing import read_capture
from tests.records import captured_records

CAPTURES = Path(__file__).parents[1] / "captures"
CRASHERS = CAPTURES / "crashers"


@cache
def relevant_frames() -> tuple[bytes, ...]:
    """The frames of the real capture that concern us, and a few of each kind that don't."""
    frames = read_capture(CAPTURES / "pds-a" / "frames.bin")
    ours = [frame for frame in frames if b"xyz.quasigod.lab.letta." in frame]
    return (*ours, *(frame for frame in frames if b"#commit" not in frame[:20]))


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes with up to four changes: bits flipped, bytes set, cut off, cut out, doubled, put in."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 40))
        change = draw(st.sampled_from(("flip", "set", "truncate", "remove", "double", "insert")))
        if change == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif change == "set" and data:
            data[place] = draw(st.integers(0, 255))
        elif change == "truncate":
            del data[place:]
        elif change == "remove":
            del data[place : place + length]
        elif change == "double":
            data[place:place] = data[place : place + length]
        else:
            data[place:place] = draw(st.binary(max_size=40))
    return bytes(data)


@st.composite
def spliced(draw: st.DrawFn) -> bytes:
    """The beginning of one frame and the end of another."""
    first, second = draw(st.sampled_from(relevant_frames())), draw(st.sampled_from(relevant_frames()))
    return first[: draw(st.integers(0, len(first)))] + second[draw(st.integers(0, len(second))) :]


HOSTILE_FRAMES = st.one_of(st.sampled_from(relevant_frames()).flatmap(mutated), spliced(), st.binary(max_size=200))
"""Frames that are nearly right, as a rule."""

HOSTILE_BLOCKS = st.one_of(
    st.sampled_from([block for _, block in captured_records()]).flatmap(mutated), st.binary(max_size=200)
)
"""Blocks of records that are nearly right; whoever puts them in a frame computes their CIDs."""
