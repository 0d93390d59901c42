"""Drills: every fault we can think of, injected for real into a running daemon, and what is left of the data after it.

Each ends with the index compared with the simulator's own repositories, and prints a line of figures. The short form
runs with all other tests; ``INDEXER_TEST_DRILL=long`` (``make drill``) gives the long one.
"""
