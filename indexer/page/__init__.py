"""The page for people, at ``/``: what the index holds and how it is, to be read in any browser, without scripts."""

from indexer.page.answers import page_routes

__all__ = ["page_routes"]
