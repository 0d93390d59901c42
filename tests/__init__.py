"""The tests of letta-indexer."""
