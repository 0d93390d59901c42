"""What can go wrong with a request, as the caller needs to know it.

Messages name the host, whom the request was about and what happened; never what the host wrote.
"""

from __future__ import annotations

from indexer.errors import IndexerError


class FetchFailed(IndexerError):
    """A host gave no usable answer.

    ``retry_after`` is the number of seconds for which the host wants to be left alone, None if it didn't say.
    ``permanent`` tells that asking again is pointless until something changes at the other end (the URL is none that
    may be asked, or the answer was a refusal): the caller waits its longest. ``status`` is the answer's HTTP status,
    ``code`` the error name of an XRPC answer (such as ``RepoNotFound``); both None without an answer.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        permanent: bool = False,
        status: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.permanent = permanent
        self.status = status
        self.code = code


class SpoolFailed(IndexerError):
    """An answer could not be written to the file it goes to: a full or broken disk of ours, no fault of the host."""
