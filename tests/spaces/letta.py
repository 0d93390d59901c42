"""Records as Letta writes them, in a space or in public: just as much as the index looks at."""

from __future__ import annotations

from typing import Final

from indexer.model import AGENT, COMPILED_PROMPT, CONVERSATION
from indexer.simulator.freshness import template_hash

RKEY: Final = "3n2q7w3e4ddtw"
AGENT_PATH: Final = f"{AGENT}/self"
PROMPT_PATH: Final = f"{COMPILED_PROMPT}/{RKEY}"
CONVERSATION_PATH: Final = f"{CONVERSATION}/{RKEY}"
OTHER_PATH: Final = "com.example.note/1"

Fields = dict[str, object]


def agent(system: str = "old", **more: object) -> Fields:
    """An agent with this template."""
    return {"$type": AGENT, "name": "gardener", "system": system, "createdAt": "2026-11-01T09:00:00Z"} | more


def conversation(agent_uri: str, role: str = "primary", title: str = "Watering") -> Fields:
    """A conversation of an agent."""
    return {
        "$type": CONVERSATION,
        "agent": agent_uri,
        "role": role,
        "title": title,
        "createdAt": "2026-11-01T09:00:00Z",
        "updatedAt": "2026-11-01T09:00:00Z",
    }


def prompt(
    agent_uri: str,
    system: str = "old",
    memory: str = "m1",
    at: str = "2026-11-01T10:00:00Z",
    repo: str = "at://did:x:y",
) -> Fields:
    """A prompt compiled from this template and memory, for the conversation of its own key in ``repo``."""
    return {
        "$type": COMPILED_PROMPT,
        "agent": agent_uri,
        "conversation": f"{repo}/{CONVERSATION_PATH}",
        "content": f"{system} {memory}",
        "coreMemory": memory,
        "rawSystemHash": template_hash(system),
        "memfsRevision": memory,
        "compiledAt": at,
    }
