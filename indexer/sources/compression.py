"""Frames of version 2 of Jetstream compressed with zstd (RFC 8878) and a dictionary that the host gives out.

A small frame can say that it holds much: nothing is unpacked beyond a limit, whatever its header declares. (python's
``max_output_size`` counts only where the header declares nothing.)
"""

from __future__ import annotations

from typing import Final

import zstandard

MAGIC: Final = b"\x28\xb5\x2f\xfd"  # of a compressed frame
_DICTIONARY_MAGIC: Final = b"\x37\xa4\x30\xec"
_HEAD: Final = 4096  # bytes kept of a frame over the limit: enough to see whose it is


class Dictionary:
    """A dictionary and what unpacks by it. Raises ValueError for bytes that are none."""

    def __init__(self, blob: bytes) -> None:
        if not blob.startswith(_DICTIONARY_MAGIC):
            raise ValueError("not a zstd dictionary")
        try:
            data = zstandard.ZstdCompressionDict(blob)
            self._unpack = zstandard.ZstdDecompressor(dict_data=data)
        except zstandard.ZstdError as error:
            raise ValueError("not a zstd dictionary") from error
        self.id: int = data.dict_id()

    def unpack(self, frame: bytes, limit: int) -> bytes:
        """What a frame holds; of more than ``limit`` bytes only the beginning. Raises ValueError if it is damaged."""
        try:
            size = zstandard.get_frame_parameters(frame).content_size
            if size <= limit:
                return self._unpack.decompress(frame)
            if size == zstandard.CONTENTSIZE_UNKNOWN:
                text = self._unpack.stream_reader(frame).read(limit + 1)
                return text if len(text) <= limit else text[:_HEAD]
            return self._unpack.stream_reader(frame).read(_HEAD)
        except zstandard.ZstdError as error:
            raise ValueError("a damaged frame") from error
