"""Which URLs and which addresses a stranger may send us to.

The tables are those of the IANA special-purpose address registries (RFC 6890 and its successors), spelled out because
what ``ipaddress`` takes for global differs between patch releases of Python and admits NAT64, which leads to any IPv4
address there is.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from typing import Final

from yarl import URL

from indexer.outbound.failures import FetchFailed

LONGEST_URL: Final = 8192
_HOST: Final = re.compile(r"[a-z0-9_.-]{1,254}|[0-9a-f:.]{2,45}")  # also keeps messages printable

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers (CGNAT)
        "127.0.0.0/8",
        "168.63.129.16/32",  # answers inside one large cloud only, to every guest
        "169.254.0.0/16",  # link-local, where clouds keep credentials
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast address
    )
)
_GLOBAL_6: Final = IPv6Network(
    "2000::/3"
)  # all that was ever given out; mapped, NAT64, local and multicast lie outside
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether ``address`` (IPv4 or IPv6, as text) is one of the public Internet; False for any other text."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return not any(parsed in network for network in _NOT_PUBLIC_4)
    return parsed.scope_id is None and parsed in _GLOBAL_6 and not any(parsed in network for network in _NOT_PUBLIC_6)


def parse_url(text: str, *, private: bool, about: str) -> URL:
    """The URL ``text`` says, once it is one that may be asked: https, or also http if ``private``; no credentials.

    Whether its host is public is decided when the connection is made, on the address it is made to. Raises
    FetchFailed (permanent), which names ``about``.
    """
    try:
        url = URL(text) if len(text) <= LONGEST_URL else URL()
        usable = _HOST.fullmatch(url.raw_host or "") and url.port is not None and url.port > 0
    except ValueError:
        usable = False
    if not usable:
        raise FetchFailed(f"no usable URL{about}", permanent=True)
    if url.user is not None or url.password is not None:
        raise FetchFailed(f"{place_of(url)}: a URL with a user name or password is not followed{about}", permanent=True)
    if url.scheme != "https" and not (private and url.scheme == "http"):
        raise FetchFailed(
            f"{place_of(url)}: only https URLs are followed{about} (development: --allow-private-hosts)", permanent=True
        )
    return url


def place_of(url: URL) -> str:
    """Host and, unless it is the scheme's own, port of a URL that has a host: what messages and pacing call it by."""
    return url.raw_authority.rpartition("@")[2]
