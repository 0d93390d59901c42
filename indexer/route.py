"""What concerns us: which commits touch the followed collections, and whose accounts are let in."""

from __future__ import annotations

from collections.abc import Iterable

from indexer.frames import Body
from indexer.model import Reason
from indexer.syntax import CollectionFilter, is_did

MAX_DID = 1_024  # bytes; longer ones fit no key


class Router:
    """The filter of a run: collections, and the DIDs let in (``only``, empty for all) or kept out (``deny``)."""

    def __init__(self, collections: CollectionFilter, *, only: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        self.prefixes = collections.prefixes
        self._only = frozenset(only)
        self._deny = frozenset(deny)

    def touches(self, body: Body) -> bool:
        """Whether a commit's body has an operation under the filter. Runs for every commit of the network.

        Raises KeyError, TypeError or AttributeError where ``ops`` has another shape than the specification's.
        """
        prefixes = self.prefixes
        for op in body["ops"]:  # type: ignore[attr-defined]  # noqa: SIM110 (any() costs twice as much)
            if op["path"].startswith(prefixes):
                return True
        return False

    def refusal(self, did: str) -> Reason | None:
        """Why nothing of this account is taken, or None if it is let in."""
        if len(did) > MAX_DID or not is_did(did):
            return Reason.BAD_DID
        if did in self._deny or (self._only and did not in self._only):
            return Reason.DENIED
        return None
