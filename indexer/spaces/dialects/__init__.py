"""The dialects that are known, the newest first: a host is asked in each until it answers in one."""

from typing import Final

from indexer.spaces.dialect import Dialect
from indexer.spaces.dialects.alpha_2026_08 import ALPHA_2026_08

KNOWN: Final[tuple[Dialect, ...]] = (ALPHA_2026_08,)

__all__ = ["ALPHA_2026_08", "KNOWN"]
