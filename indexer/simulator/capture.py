"""Captures: frames in a file, each preceded by its length as 4 bytes, big-endian."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def write_capture(path: Path, frames: Iterable[bytes]) -> int:
    """Write frames to a file, replacing it; returns how many."""
    count = 0
    with path.open("wb") as file:
        for frame in frames:
            file.write(len(frame).to_bytes(4, "big") + frame)
            count += 1
    return count


def read_capture(path: Path) -> Iterator[bytes]:
    """The frames of a capture, in order."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : end]
        at = end
