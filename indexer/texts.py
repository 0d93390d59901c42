"""What the index says of long texts: digests, lengths, and whether one is within another.

Worked out once, where a record is decoded, so that the database need never take a long text apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from indexer.model import AGENT, COMPILED_PROMPT, Json

Facts: TypeAlias = "dict[str, int | str | bool | None]"


def facts_of(collection: str, data: Mapping[str, Json], digests: Mapping[str, str]) -> Facts:
    """The facts of one record by column; none for collections without long texts.

    ``digests`` has the hex SHA-256 of the original of each string that ``data`` does not hold unchanged. A field that
    is missing or no string has no facts: None.
    """
    if collection == COMPILED_PROMPT:
        content, memory = _utf8(data.get("content")), _utf8(data.get("coreMemory"))
        return {
            "content_bytes": None if content is None else len(content),
            "content_sha256": _sha256(content, digests.get("content")),
            "core_memory_sha256": _sha256(memory, digests.get("coreMemory")),
            "core_memory_in_content": None if content is None or memory is None else memory in content,
        }
    if collection == AGENT:
        return {"system_sha256": _sha256(_utf8(data.get("system")), digests.get("system"))}
    return {}


def _utf8(value: Json) -> bytes | None:
    """A string's bytes: one is within another where its bytes are. None for what is no string."""
    return value.encode() if isinstance(value, str) else None


def _sha256(text: bytes | None, original: str | None) -> str | None:
    """Hex SHA-256 of a string as it was written; None for what is no string."""
    return None if text is None else original or hashlib.sha256(text).hexdigest()
