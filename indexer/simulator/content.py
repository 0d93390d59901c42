"""Record values of the simulated life: agents, conversations, compiled prompts, messages, and their odd variants.

The shapes follow what real writers store; the *quirks* are what an index has to survive. Every function takes the
random generator it draws from, so that a seed decides everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from random import Random

from indexer.simulator.clock import iso
from indexer.simulator.dagcbor import Link, Value, cid_of, cid_text, encode
from indexer.simulator.freshness import AGENT, PROMPT, template_hash
from indexer.simulator.oracle import PREFIX

CONVERSATION = PREFIX + "conversation"
MESSAGE = PREFIX + "message"
PLACEHOLDER = "{CORE_MEMORY}"

_TEXT = """
    agent alpha answers beta budget calm code deploy friday garden green human keep list memory notes persona plans
    prefers project reading release review staging style tests travel weather über naïve 記憶 🧠
"""
_WORDS = _TEXT.split()
_MODELS = ("anthropic/claude-sonnet", "anthropic/claude-opus", "openai/gpt", "local/qwen")
_UNKNOWN = ("block", "passage", "toolCall", "compiledPromptDraft")


@dataclass(slots=True, eq=False)
class Agent:
    """An agent as its owner knows it; ``revision`` is its memory's HEAD, None with memory files switched off."""

    did: str
    rkey: str
    handle: str
    record: dict[str, Value]
    memory: str
    revision: str | None
    exists: bool = True

    @property
    def uri(self) -> str:
        """The canonical reference to the agent's record."""
        return f"at://{self.did}/{AGENT}/{self.rkey}"

    @property
    def path(self) -> str:
        """Collection and record key."""
        return f"{AGENT}/{self.rkey}"


@dataclass(slots=True, eq=False)
class Thread:
    """A conversation with its prompt's present value (None while it has none) and its messages' paths."""

    did: str
    rkey: str
    agent: Agent
    prompt: dict[str, Value] | None = None
    messages: list[str] = field(default_factory=list)
    said: int = 0

    @property
    def uri(self) -> str:
        """The conversation's URI."""
        return f"at://{self.did}/{CONVERSATION}/{self.rkey}"

    @property
    def path(self) -> str:
        """Collection and record key of the conversation."""
        return f"{CONVERSATION}/{self.rkey}"

    @property
    def prompt_path(self) -> str:
        """Collection and record key of the compiled prompt: the conversation's own key."""
        return f"{PROMPT}/{self.rkey}"


def words(rng: Random, least: int, most: int) -> str:
    """Between ``least`` and ``most`` words."""
    return " ".join(rng.choices(_WORDS, k=rng.randint(least, most)))


def revision(rng: Random) -> str:
    """A git commit id: 40 hex digits."""
    return f"{rng.getrandbits(160):040x}"


def core_memory(rng: Random) -> str:
    """A rendered core memory."""
    return f"<memory>\n{words(rng, 8, 60)}\n</memory>"


def template(rng: Random) -> str:
    """A system template, nearly always with the placeholder."""
    body = f"You are {words(rng, 30, 120)}."
    return body if rng.random() < 0.1 else f"{body}\n\n{PLACEHOLDER}"


def moment(rng: Random, now: datetime) -> str:
    """A time in one of the forms that clients write."""
    match rng.randrange(10):
        case 0:
            return now.strftime("%Y-%m-%dT%H:%M:%SZ")
        case 1:
            return now.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case 2:
            return now.astimezone(timezone(timedelta(hours=rng.randint(-11, 13)))).isoformat(timespec="milliseconds")
        case 3:
            return now.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"
        case _:
            return iso(now)


def agent_record(rng: Random, now: datetime) -> dict[str, Value]:
    """An agent not yet tied to its primary conversation."""
    record: dict[str, Value] = {
        "$type": AGENT,
        "name": words(rng, 1, 3),
        "tags": rng.sample(_WORDS, rng.randrange(3)),
        "model": rng.choice(_MODELS),
        "system": template(rng),
        "primaryConversation": "",
        "createdAt": iso(now),
    }
    if rng.random() < 0.3:
        record["modelSettings"] = {"contextWindowLimit": rng.choice((32000, 128000)), "maxTokens": 4096}
    return record


def conversation_record(rng: Random, agent: Agent, role: str, now: datetime) -> dict[str, Value]:
    """A conversation of ``agent``; optional fields come and go."""
    record = {"$type": CONVERSATION, "agent": agent.uri, "role": role, "createdAt": iso(now), "updatedAt": iso(now)}
    optional: dict[str, Value] = {
        "title": words(rng, 1, 5),
        "model": rng.choice(_MODELS),
        "hidden": rng.random() < 0.3,
        "lastSeq": rng.randrange(9),
        "modelSettings": {"maxTokens": 4096},
    }
    return record | {name: value for name, value in optional.items() if rng.random() < 0.4}


def message_record(rng: Random, thread: Thread, now: datetime) -> dict[str, Value]:
    """The next message of a conversation."""
    thread.said += 1
    return {
        "$type": MESSAGE,
        "conversation": thread.uri,
        "seq": thread.said,
        "role": ("user", "assistant")[thread.said % 2],
        "status": rng.choices(("active", "compacted", "archived"), (8, 2, 1))[0],
        "content": words(rng, 4, 40),
        "createdAt": iso(now),
    }


def compiled(rng: Random, thread: Thread, now: datetime) -> dict[str, Value]:
    """A full compile of the agent's present template and memory for one conversation."""
    system = thread.agent.record.get("system")
    raw = system if isinstance(system, str) else ""
    memory = f"{thread.agent.memory}\n- CONVERSATION_ID: {thread.rkey}"
    content = raw.replace(PLACEHOLDER, memory) if PLACEHOLDER in raw else f"{raw}\n\n{memory}"
    return {
        "$type": PROMPT,
        "agent": thread.agent.uri,
        "conversation": thread.uri,
        "content": content,
        "rawSystemHash": template_hash(raw),
    } | memory_fields(rng, thread, now)


def memory_fields(rng: Random, thread: Thread, now: datetime) -> dict[str, Value]:
    """What a mid-conversation memory update overwrites; no ``memfsRevision`` while memory files are off."""
    agent = thread.agent
    memory = f"{agent.memory}\n- CONVERSATION_ID: {thread.rkey}"
    fields = {"coreMemory": memory, "compiledAt": moment(rng, now)}
    return fields if agent.revision is None else fields | {"memfsRevision": agent.revision}


def unknown_record(rng: Random, now: datetime) -> tuple[str, dict[str, Value]]:
    """A collection nobody has described, with values of every kind the data model has."""
    collection = PREFIX + rng.choice(_UNKNOWN)
    link = cid_of(rng.randbytes(8))
    return collection, {
        "$type": collection,
        "label": words(rng, 1, 4),
        "source": Link(link),
        "vector": rng.randbytes(24),
        "misleading": link,  # a byte string that looks like a CID
        "limits": [rng.randrange(2**53), -rng.randrange(2**53), True, None, {"deep": [[]]}],
        "createdAt": iso(now),
    }


def noise_record(rng: Random, dids: list[str], now: datetime) -> tuple[str, dict[str, Value]]:
    """A record of another application."""
    if rng.random() < 0.5:
        return "app.bsky.feed.post", {"$type": "app.bsky.feed.post", "text": words(rng, 3, 40), "createdAt": iso(now)}
    subject = f"at://{rng.choice(dids)}/app.bsky.feed.post/x"
    cid = cid_text(cid_of(encode(subject)))
    like = {"$type": "app.bsky.feed.like", "subject": {"uri": subject, "cid": cid}, "createdAt": iso(now)}
    return "app.bsky.feed.like", like


Quirk = Callable[[Random, dict[str, Value], Agent], dict[str, Value]]

QUIRKS: dict[str, Quirk] = {
    "upper-case hash": lambda rng, value, agent: value | {"rawSystemHash": value["rawSystemHash"].upper()},
    "no hash": lambda rng, value, agent: value | {"rawSystemHash": "sha256:" + value["rawSystemHash"]},
    "no date": lambda rng, value, agent: value | {"compiledAt": rng.choice(("yesterday", "", "2026-11-01", 5))},
    "year zero": lambda rng, value, agent: value | {"compiledAt": "0000-01-01T00:00:00Z"},
    "future": lambda rng, value, agent: (
        value | {"compiledAt": iso(datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=rng.randrange(900)))}
    ),
    "by handle": lambda rng, value, agent: value | {"agent": f"at://{agent.handle}/{agent.path}"},
    "trailing slash": lambda rng, value, agent: value | {"agent": agent.uri + "/"},
    "numeric revision": lambda rng, value, agent: value | {"memfsRevision": rng.randrange(2**40)},
    "nul": lambda rng, value, agent: value | {"coreMemory": "a\0b", "content": "a\0b" + value["content"]},
    "extra": lambda rng, value, agent: value | {"x-extra": {"b": rng.randbytes(5), "l": Link(cid_of(b"x"))}},
    "bare": lambda rng, value, agent: {"$type": PROMPT, "agent": value["agent"]},
}


def odd_prompt(rng: Random, value: dict[str, Value], agent: Agent) -> dict[str, Value]:
    """The prompt with one quirk, chosen by chance."""
    return QUIRKS[rng.choice(list(QUIRKS))](rng, value, agent)


def odd_agent(rng: Random, record: dict[str, Value], agent: Agent) -> dict[str, Value]:
    """An agent record with one quirk: it carries a memory revision, or its template is none."""
    match rng.randrange(3):
        case 0:
            return record | {"memfsRevision": agent.revision or revision(rng)}
        case 1:
            return {name: value for name, value in record.items() if name != "system"}
        case _:
            return record | {"system": ["not", "a", "string"]}
