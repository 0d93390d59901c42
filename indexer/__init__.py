"""letta-indexer: a live SQL index of Letta agents on the AT Protocol."""

__version__ = "0.1.0"
