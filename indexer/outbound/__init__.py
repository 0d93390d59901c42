"""Everything that goes out over HTTP: one client for URLs that strangers wrote, and for those of the operator.

failures    what can go wrong, as the caller needs to know it
addresses   which URLs and addresses may be asked
names       DNS
pacing      how much one host is asked, and when it is left alone
client      requests: limits on redirects, size, time and encoding
once        a single request to a host of the operator's
"""

from indexer.outbound.answers import error_code
from indexer.outbound.client import CAR, JSON, Outbound, Reply
from indexer.outbound.failures import FetchFailed, SpoolFailed
from indexer.outbound.once import fetched_once

__all__ = ["CAR", "JSON", "FetchFailed", "Outbound", "Reply", "SpoolFailed", "error_code", "fetched_once"]
