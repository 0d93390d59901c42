"""A capture, again and again, as if it had happened in ever other repositories: work enough to be killed in."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence

import cbor2


def copies(frames: Sequence[bytes], times: int) -> Iterator[bytes]:
    """The frames ``times`` times, each time with every account renamed; the first time they are as they were.

    Only whose repository a frame is about changes: records keep their bytes, hence their CIDs and what they refer to.
    """
    for number in range(times):
        for frame in frames:
            yield frame if number == 0 else _renamed(frame, number)


def _renamed(frame: bytes, number: int) -> bytes:
    stream = io.BytesIO(frame)
    decoder = cbor2.CBORDecoder(stream)
    header, body = decoder.decode(), decoder.decode()
    for name in ("repo", "did"):
        if name in body:
            body[name] = did_of(body[name], number)
    return cbor2.dumps(header, canonical=True) + cbor2.dumps(body, canonical=True)


def did_of(did: str, number: int) -> str:
    """The DID that stands for this one in a copy."""
    digest = hashlib.sha256(f"{did} {number}".encode()).digest()
    return "did:plc:" + base64.b32encode(digest)[:24].decode().lower()
