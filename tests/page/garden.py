"""Records to look at: agents of two accounts whose prompts are fresh, stale for either reason, and compiled again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.frames import AGENT, CONVERSATION, PROMPT, Op, commit, put, rev, sha256

ROSA, TEO = "did:plc:rosa4ztkq2nyw7cu5hbmd3xe", "did:plc:teo6vjx2mrq5ykbwz7nahc4g"
TEMPLATE: Final = """\
You are {name}, who looks after {place}.

Keep what you are told about the beds in your memory, and say so when you do.
Answer in a few sentences. Ask before you order anything.

{{CORE_MEMORY}}

Today's weather comes with each message; do not guess it.
"""
MARK: Final = "{CORE_MEMORY}"
NEW_LINE: Final = "Name plants by their common name first, the botanical one in brackets.\n"
MEMORIES: Final = (
    "<human>\nRosa grows tomatoes and beans in two raised beds.\nShe waters in the evening.\n</human>",
    "<human>\nRosa grows tomatoes, beans and chard in three raised beds.\nShe waters in the early morning.\n</human>",
)


Write = tuple[str, Op]  # whose, and what


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, and how it compiles prompts from its template and a memory."""

    did: str
    rkey: str
    name: str
    template: str

    @property
    def uri(self) -> str:
        """The URI of its record."""
        return f"at://{self.did}/{AGENT}/{self.rkey}"

    def record(self, **fields: object) -> Write:
        """The agent's record."""
        value = {
            "$type": AGENT,
            "name": self.name,
            "system": self.template,
            "model": "letta/letta-free",
            "createdAt": "2024-01-01T08:00:00Z",
        }
        return self.did, put(AGENT, self.rkey, value | fields)

    def conversation(self, rkey: str, title: str, **fields: object) -> Write:
        """The record of a conversation of this agent."""
        value = {
            "$type": CONVERSATION,
            "agent": self.uri,
            "role": "primary",
            "title": title,
            "createdAt": "2024-01-01T08:05:00Z",
        }
        return self.did, put(CONVERSATION, rkey, value | fields)

    def prompt(self, rkey: str, memory: int, compiled: str, **fields: object) -> Write:
        """The prompt of a conversation, compiled in full at a time of one day."""
        value = {
            "$type": PROMPT,
            "agent": self.uri,
            "conversation": f"at://{self.did}/{CONVERSATION}/{rkey}",
            "content": self.template.replace(MARK, MEMORIES[memory]),
            "coreMemory": MEMORIES[memory],
            "rawSystemHash": sha256(self.template),
            "memfsRevision": sha256(MEMORIES[memory])[:40],
            "compiledAt": f"2024-01-01T{compiled}Z",
        }
        return self.did, put(PROMPT, rkey, value | fields)


def agent(did: str, rkey: str, name: str, place: str, more: str = "") -> Agent:
    """An agent whose template speaks of a place, and ends with ``more``."""
    return Agent(did, rkey, name, TEMPLATE.format(name=name, place=place) + more)


GARDENER = agent(ROSA, "3mzgardener22", "Gardener", "a kitchen garden")
GARDENER_NOW = agent(ROSA, "3mzgardener22", "Gardener", "a kitchen garden", NEW_LINE)
LIBRARIAN = agent(ROSA, "3mzlibrarian2", "Librarian", "a shelf of seed catalogues")
KEEPER = agent(TEO, "3mzbeekeeper2", "Beekeeper", "four hives behind the orchard")

BEDS, SEEDS, FORK, HIVES = "3mzbeds222222", "3mzseeds22222", "3mzfork222222", "3mzhives22222"


def commits(at: float, *writes: Write) -> list[bytes]:
    """The frames of these writes, one commit for each account, at a second."""
    dids = dict.fromkeys(did for did, _ in writes)
    return [commit(*(op for owner, op in writes if owner == did), did=did, rev=rev(at)) for did in dids]


def garden() -> list[bytes]:
    """Frames in order: BEDS is stale for its template and has four compiles, FORK for its memory; the rest is fresh."""
    return [
        *commits(
            1,
            GARDENER.record(),
            LIBRARIAN.record(),
            KEEPER.record(),
            GARDENER.conversation(BEDS, "What to plant in the third bed"),
            LIBRARIAN.conversation(SEEDS, "Sorting the catalogues"),
            LIBRARIAN.conversation(FORK, "Only the heirloom beans", role="fork", hidden=True),
            KEEPER.conversation(HIVES, "Winter feed"),
            GARDENER.prompt(BEDS, 0, "09:00:00"),
            LIBRARIAN.prompt(FORK, 0, "09:30:00"),
            KEEPER.prompt(HIVES, 0, "10:00:00"),
        ),
        *commits(2, GARDENER.prompt(BEDS, 1, "09:45:00", content=GARDENER.template.replace(MARK, MEMORIES[0]))),
        *commits(3, GARDENER.prompt(BEDS, 1, "11:20:00"), LIBRARIAN.prompt(SEEDS, 1, "11:30:00")),
        *commits(4, GARDENER.prompt(BEDS, 1, "12:00:00")),
        *commits(5, GARDENER_NOW.record()),
    ]
