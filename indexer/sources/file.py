"""Capture files: reading one as a source, writing one.

The format: each frame preceded by its length in bytes, 4 bytes big-endian, nothing else. A file cut anywhere, by a full
disk or a kill, is readable up to its last whole frame. A file that doesn't begin with frames is no capture: of those up
to a chunk's size one at least has to be what a host sends (a hostile one may send others before it).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Self

from indexer.errors import Rejected, SettingsError, SourceBroken
from indexer.frames import decode_frame
from indexer.model import Reason
from indexer.sources.base import MAX_FRAME_BYTES, Chunk, Dropped, Item, Opened, Positions

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1024 * 1024
_CHUNK_FRAMES = 1024


class FileSource:
    """A :class:`indexer.sources.base.Source` over a capture file; a position is the number of frames before it.

    Made by :meth:`open`. The file is read a chunk at a time, in a thread; a frame over ``max_frame_bytes`` is passed
    over and reported as :class:`indexer.sources.base.Dropped`, as is a last frame cut short.
    """

    live: ClassVar[bool] = False
    positions: ClassVar[Positions] = "count"

    def __init__(self, path: Path, *, sha256: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.key = f"file:{sha256}"
        self.label = self.key[: len("file:") + 12]
        self._path = path
        self._max_frame_bytes = max_frame_bytes

    @classmethod
    async def open(cls, path: Path, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> Self:
        """The source for ``path``; its key needs the whole content hashed, which happens in a thread.

        Raises:
            SourceBroken: no such file, not a regular one, not readable, or no capture.
        """
        return cls(path, sha256=await asyncio.to_thread(_examined, path), max_frame_bytes=max_frame_bytes)

    async def items(self, cursor: int | None) -> AsyncGenerator[Item, None]:
        """The frames after the first ``cursor``, to the end of the file.

        Raises:
            SourceBroken: the file can't be read.
        """
        try:
            with await asyncio.to_thread(self._path.open, "rb") as file:
                reader = _Reader(file, self._path, self._max_frame_bytes)
                await asyncio.to_thread(reader.skip, cursor or 0)
                yield Opened(cursor)
                while (item := await asyncio.to_thread(reader.next)) is not None:
                    yield item
        except OSError as exc:
            raise _unreadable(self._path, exc) from exc


class _Reader:
    """Reads items off an open capture file, blocking."""

    def __init__(self, file: BinaryIO, path: Path, max_frame_bytes: int) -> None:
        self._file = file
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._max_frame_bytes = max_frame_bytes
        self._count = 0  # frames behind us
        self._next: Dropped | None = None  # follows the chunk just given

    def skip(self, count: int) -> None:
        """Pass over ``count`` frames, whatever their length."""
        while self._count < count and (length := self._length()) is not None:
            if not self._pass_over(length):
                break

    def next(self) -> Chunk | Dropped | None:
        """The next chunk or dropped frame; None at the end."""
        start = self._count
        frames = [] if self._next else self._frames()
        if frames:
            return Chunk(frames, start)
        dropped, self._next = self._next, None
        return dropped

    def _frames(self) -> list[bytes]:
        """Whole frames up to a chunk's size, the end, or one that can't be given, which is then in ``_next``."""
        frames: list[bytes] = []
        size = 0
        while size < _CHUNK_BYTES and len(frames) < _CHUNK_FRAMES and (length := self._length()) is not None:
            if length > self._max_frame_bytes:
                if self._pass_over(length):
                    self._next = Dropped(Reason.OVERSIZED_FRAME, self._count, f"{length} bytes")
                break
            frame = self._file.read(length)
            if len(frame) < length:
                self._cut_short()
                break
            self._count += 1
            frames.append(frame)
            size += length
        return frames

    def _length(self) -> int | None:
        """The length before the next frame; None at the end of the file."""
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) == _LENGTH.size:
            return int(_LENGTH.unpack(prefix)[0])
        if prefix:
            self._cut_short()
        return None

    def _pass_over(self, length: int) -> bool:
        """Go behind a frame without reading it, if the file is that long."""
        if self._file.tell() + length > self._size:
            self._cut_short()
            return False
        self._file.seek(length, os.SEEK_CUR)
        self._count += 1
        return True

    def _cut_short(self) -> None:
        self._file.seek(0, os.SEEK_END)
        self._next = Dropped(Reason.MALFORMED_FRAME, None, f"the file ends inside frame {self._count + 1}")


class CaptureFile:
    """A new capture file being written: ``count`` frames, ``size`` bytes so far.

    A context manager: where its block fails before a frame was written, the file is gone again.
    """

    def __init__(self, path: Path) -> None:
        """Create ``path``, readable by its owner only; never overwrites, never follows a link.

        Raises:
            SettingsError: the file exists or can't be created.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        except FileExistsError:
            raise SettingsError(f"capture file {path}: exists already, and is never overwritten") from None
        except OSError as exc:
            raise SettingsError(f"capture file {path}: {exc.strerror}") from exc
        self._path = path
        self.count = 0
        self.size = 0

    def append(self, frames: list[bytes]) -> None:
        """Write whole frames and hand them to the operating system: a killed process loses none of them.

        Raises:
            SourceBroken: the disk is full or failing.
        """
        data = b"".join(part for frame in frames for part in (_LENGTH.pack(len(frame)), frame))
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as exc:
            raise SourceBroken(f"capture file {self._path}: {exc.strerror}") from exc
        self.count += len(frames)
        self.size += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # every append flushes; only one that failed, and said so, leaves anything behind
            self._file.close()
        if kind is not None and not self.count:
            self._path.unlink(missing_ok=True)


async def capture(
    items: AsyncIterator[Item], file: CaptureFile, *, limit: int | None = None, seconds: float | None = None
) -> int:
    """Write the frames of ``items`` to ``file`` until ``limit`` frames, ``seconds`` or the end; how many it holds.

    May be cancelled at any time: what ``file.count`` counts is written.

    Raises:
        SourceBroken: the source or the disk gave up.
    """
    try:
        async with asyncio.timeout(seconds) as clock:
            while limit is None or file.count < limit:
                item = await anext(items, None)
                if item is None:
                    break
                if isinstance(item, Chunk):
                    file.append(item.frames if limit is None else item.frames[: limit - file.count])
    except TimeoutError:
        if not clock.expired():
            raise
    return file.count


def _examined(path: Path) -> str:
    """The SHA-256 of a capture file. Raises SourceBroken for what is none."""
    try:
        if path.exists() and not path.is_file():
            raise SourceBroken(f"capture file {path}: not a regular file")
        with path.open("rb") as file:
            first = _Reader(file, path, MAX_FRAME_BYTES).next()
            if first is not None and not (isinstance(first, Chunk) and any(map(_is_frame, first.frames))):
                raise SourceBroken(f"capture file {path}: not a capture, no frame can be read at its beginning")
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _is_frame(raw: bytes) -> bool:
    with suppress(Rejected):
        decode_frame(raw)
        return True
    return False


def _unreadable(path: Path, exc: OSError) -> SourceBroken:
    return SourceBroken(f"capture file {path}: {exc.strerror or type(exc).__name__}")
