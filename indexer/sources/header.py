"""The header of a WebSocket frame, as a server sends it (RFC 6455 section 5.2): where its payload is."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = (0x82, 0x81)
"""First bytes of the frames that are whole messages: binary, text."""

ENDLESS: Final = 1 << 65
"""Longer than any frame."""

_LAWFUL = {*MESSAGES, 0x00, 0x01, 0x02, 0x80, 0x88, 0x89, 0x8A}  # no reserved bits, no control frame in fragments
_MASKED = 0x80


def payload_bounds(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the frame at ``at`` begins and ends, whether or not ``data`` goes so far.

    It begins after the end of ``data`` while the header isn't whole, and never ends if the frame breaks the rules.
    """
    start = at + 2
    if start > len(data):
        return start, start
    size = data[at + 1]
    if data[at] not in _LAWFUL or size & _MASKED:
        return start, ENDLESS
    if size >= 126:
        start += 2 if size == 126 else 8
        size = int.from_bytes(data[at + 2 : start], "big")
    return start, start + size
