"""Is a compiled prompt stale? The answer in plain Python, written from the description of the domain alone.

This is the oracle other implementations are held against, so it favours the obvious over the fast, and takes any
JSON whatsoever: what has not the type it should have counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

AGENT = "xyz.quasigod.lab.letta.agent"
PROMPT = "xyz.quasigod.lab.letta.compiledPrompt"

Freshness: TypeAlias = Literal["fresh", "stale", "unverified"]

_DID = r"did:[a-z]+:[a-zA-Z0-9._:%-]*[a-zA-Z0-9._-]"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_NSID = rf"[a-zA-Z](?:[a-zA-Z0-9-]{{0,61}}[a-zA-Z0-9])?(?:\.{_LABEL})+\.[a-zA-Z][a-zA-Z0-9]{{0,62}}"
_RKEY = r"(?!\.\.?(?:/|$))[A-Za-z0-9._:~-]{1,512}"
_REFERENCE = re.compile(rf"at://({_DID})/({_NSID})/({_RKEY})")
_IN_SPACE = re.compile(rf"at:(?://({_DID})/space|space/({_DID}))/({_NSID})/({_RKEY})/({_DID})/({_NSID})/({_RKEY})")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the records say of one compiled prompt.

    ``stale_reasons`` is sorted and not empty exactly if ``freshness`` is ``stale``. ``agent`` is the prompt's agent
    reference if it is canonical; ``agent_known`` whether a record under it is visible; ``sibling`` the URI of the
    prompt whose later compile was compared.
    """

    freshness: Freshness
    stale_reasons: tuple[str, ...]
    agent: str | None
    agent_known: bool
    sibling: str | None


@dataclass(frozen=True, slots=True)
class _Prompt:
    uri: str
    did: str
    space: str  # '' for public records
    rkey: str
    agent: str | None
    raw_hash: str | None
    revision: str | None
    compiled_at: int | None


def judge(records: Mapping[str, object], hidden: Collection[str] = ()) -> dict[str, Judgement]:
    """Judge every compiled prompt among ``records``, JSON values by canonical URI (public, or in a space).

    ``hidden`` are the DIDs whose accounts are not active: their agents are no evidence. Records under anything but
    a canonical URI are passed over. From a space an agent is evidence for the prompts of that space alone.
    """
    prompts = [prompt for uri, value in records.items() if (prompt := _read_prompt(uri, value))]
    groups: dict[tuple[str, str, str], list[_Prompt]] = {}
    for prompt in prompts:
        if prompt.agent is not None:
            groups.setdefault((prompt.did, prompt.space, prompt.agent), []).append(prompt)
    result = {}
    for prompt in prompts:
        agent = _visible_agent(records, prompt, hidden)
        sibling = _later_sibling(prompt, groups.get((prompt.did, prompt.space, prompt.agent or ""), []))
        result[prompt.uri] = _judge_one(prompt, agent, sibling)
    return result


def _judge_one(prompt: _Prompt, agent: Mapping[str, object] | None, sibling: _Prompt | None) -> Judgement:
    reasons = set()
    template = text(agent or {}, "system")
    confirmed = False
    if template is not None and prompt.raw_hash is not None:
        confirmed = template_hash(template) == prompt.raw_hash
        if not confirmed:
            reasons.add("template_changed")
    known_revision = text(agent or {}, "memfsRevision")
    if known_revision is not None and known_revision != prompt.revision:
        reasons.add("memory_changed")
    if sibling is not None:
        if sibling.revision != prompt.revision:
            reasons.add("memory_changed")
        hashes = {prompt.raw_hash, sibling.raw_hash}
        if template is None and len(hashes) == 2 and None not in hashes:
            reasons.add("template_changed")
    freshness: Freshness = "stale" if reasons else "fresh" if confirmed else "unverified"
    uri = None if sibling is None else sibling.uri
    return Judgement(freshness, tuple(sorted(reasons)), prompt.agent, agent is not None, uri)


def _later_sibling(prompt: _Prompt, group: list[_Prompt]) -> _Prompt | None:
    """The latest compile among the others of the same agent, if it is later than this prompt's own."""
    if prompt.compiled_at is None:
        return None
    others = [other for other in group if other.rkey != prompt.rkey and other.compiled_at is not None]
    if not others:
        return None
    latest = max(others, key=lambda other: (other.compiled_at or 0, other.rkey.encode()))
    return latest if (latest.compiled_at or 0) > prompt.compiled_at else None


def _visible_agent(
    records: Mapping[str, object], prompt: _Prompt, hidden: Collection[str]
) -> Mapping[str, object] | None:
    place = None if prompt.agent is None else _place_of(prompt.agent)
    if prompt.agent is None or place is None or prompt.agent not in records:
        return None
    if place.did in hidden or place.collection != AGENT or place.space not in ("", prompt.space):
        return None
    value = records[prompt.agent]
    return value if isinstance(value, Mapping) else {}


class _Place(NamedTuple):
    space: str
    did: str
    collection: str
    rkey: str


def _place_of(uri: str) -> _Place | None:
    """Where the record of a canonical URI lies."""
    if found := _REFERENCE.fullmatch(uri):
        return _Place("", *found.groups())
    found = _IN_SPACE.fullmatch(uri)
    if not found or not found[1]:
        return None
    return _Place(f"at://{found[1]}/space/{found[3]}/{found[4]}", *found.groups()[4:])


def _read_prompt(uri: str, value: object) -> _Prompt | None:
    place = _place_of(uri)
    if place is None or place.collection != PROMPT:
        return None
    fields = value if isinstance(value, Mapping) else {}
    agent = text(fields, "agent")
    raw_hash = text(fields, "rawSystemHash")
    return _Prompt(
        uri=uri,
        did=place.did,
        space=place.space,
        rkey=place.rkey,
        agent=None if agent is None else canonical_reference(agent),
        raw_hash=raw_hash.lower() if raw_hash is not None and _HASH.fullmatch(raw_hash) else None,
        revision=text(fields, "memfsRevision"),
        compiled_at=instant(text(fields, "compiledAt")),
    )


def text(fields: Mapping[str, object], name: str) -> str | None:
    """The field if it is a string, else None."""
    value = fields.get(name)
    return value if isinstance(value, str) else None


def template_hash(system: str) -> str:
    """Lower-case hex SHA-256 of a template's UTF-8 bytes."""
    return sha256(system.encode("utf-8", "surrogatepass")).hexdigest()


def canonical_reference(reference: str) -> str | None:
    """The URI of the record that a reference names, None if it names none.

    That is exactly ``at://<did>/<nsid>/<rkey>``, or the same in a space, whose two spellings come out as one (proposal
    0016): one by handle, or with anything more, names nothing.
    """
    found = _REFERENCE.fullmatch(reference)
    if found:
        return reference if _is_short(found[2]) else None
    found = _IN_SPACE.fullmatch(reference)
    if not found or not (_is_short(found[3]) and _is_short(found[6])):
        return None
    return f"at://{found[1] or found[2]}/space/{'/'.join(found.groups()[2:])}"


def _is_short(nsid: str) -> bool:
    """Whether an NSID has no more than 317 characters, 253 of them before its name."""
    return len(nsid) <= 317 and len(nsid.rpartition(".")[0]) <= 253


def instant(written: str | None) -> int | None:
    """The instant of an RFC 3339 date-time, in microseconds from the start of year 1 in UTC.

    Strict: ``T``, seconds from 00 to 59, ``Z`` or ``±hh:mm``, years 0001 to 9999, as written and in UTC; a finer
    fraction is cut off. None for anything else.
    """
    found = _INSTANT.fullmatch(written) if written is not None else None
    if not found:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    offset_hour, offset_minute = int(found[9] or 0), int(found[10] or 0)
    if max(hour, offset_hour) > 23 or max(minute, second, offset_minute) > 59:
        return None
    try:
        days = date(year, month, day).toordinal() - 1
    except ValueError:
        return None
    offset = (offset_hour * 60 + offset_minute) * (-1 if found[8] == "-" else 1)
    seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second
    if not 0 <= seconds < date.max.toordinal() * 86_400:
        return None
    return seconds * 1_000_000 + int((found[7] or "").ljust(6, "0")[:6])
