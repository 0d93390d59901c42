"""``python -m indexer``, the same as ``letta-indexer``."""

from indexer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
