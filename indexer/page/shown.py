"""How values look on the page: text of strangers made harmless to look at, times, sizes, links.

Escaping for HTML is the templates' own business: every value goes through it, these functions return plain text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from indexer.model import AGENT, COMPILED_PROMPT
from indexer.syntax import parse_record_uri

# Characters that can't be seen, or that move others about: controls, marks and overrides of direction, joiners but for
# those that words and emoji need, tags, private ones.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufeff\uffa0\ufff0-\uffff\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
_STEPS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def visible(text: object) -> str:
    """Text with what can't be seen in it spelled out: an override of direction becomes ⟨U+202E⟩."""
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text))


def clock(time: datetime) -> str:
    """A time to the second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S").zfill(19)


def ago(time: datetime, now: datetime) -> str:
    """How long before ``now`` a time is, in its largest unit: ``12 s ago``, ``3 d ago``; ``in 5 min`` after it."""
    away = now - time
    seconds = abs(away / timedelta(seconds=1))
    size, unit = next(((size, unit) for size, unit in _STEPS if seconds >= size), _STEPS[-1])
    return (
        f"{seconds // size:.0f} {unit} ago" if seconds < 1 or away > timedelta() else f"in {seconds // size:.0f} {unit}"
    )


def grouped(number: int) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,}".replace(",", "\u202f")


def up_to(number: int, most: int) -> str:
    """A number that was counted up to ``most``: ``10 000+`` beyond."""
    return grouped(number) if number <= most else f"{grouped(most)}+"


def size(number: int) -> str:
    """A number of bytes, as ``512 B``, ``1.2 kB`` or ``3.4 MB``."""
    if number < 1000:
        return f"{number} B"
    return f"{number / 1000:.1f} kB" if number < 10**6 else f"{number / 10**6:.1f} MB"


def link(path: str, **query: object) -> str:
    """A URL of the page's own; parts that are None or '' are left out."""
    kept = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def agent_link(uri: object) -> str:
    """The page of the agent that a reference names, '' where it names none, or one in a space."""
    return _page_of(uri, AGENT, "/agent")


def record_link(uri: object) -> str:
    """The page of the agent or prompt that a reference names, '' where it names neither, or one in a space."""
    return agent_link(uri) or _page_of(uri, COMPILED_PROMPT, "/prompt")


def _page_of(uri: object, collection: str, path: str) -> str:
    found = parse_record_uri(uri) if isinstance(uri, str) else None
    if found is None or found.space or found.collection != collection:
        return ""
    return link(path, did=found.did, rkey=found.rkey)


def environment() -> Environment:
    """The templates, with escaping always on and these functions at hand; a name a template misspells is an error."""
    made = Environment(
        loader=PackageLoader("indexer.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"visible": visible, "clock": clock, "grouped": grouped, "size": size}
    made.globals |= {"link": link, "agent_link": agent_link, "record_link": record_link, "ago": ago, "up_to": up_to}
    return made
