"""What a Letta client writes into a repository, as the real one does: an agent, its conversation, compiles."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from tests.pds.real import Account, Written

AGENT = "xyz.quasigod.lab.letta.agent"
CONVERSATION = "xyz.quasigod.lab.letta.conversation"
PROMPT = "xyz.quasigod.lab.letta.compiledPrompt"
MESSAGE = "xyz.quasigod.lab.letta.message"
COLLECTIONS = (AGENT, CONVERSATION, PROMPT, MESSAGE)

AGENT_KEY, CONVERSATION_KEY = "3kaaaaaaaaa2a", "3kaaaaaaaaa2b"
TEMPLATE = "You are careful.\n\n{CORE_MEMORY}"


def now() -> str:
    """The present, as JavaScript writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hash_of(template: str) -> str:
    """What ``rawSystemHash`` has to be for a template."""
    return sha256(template.encode()).hexdigest()


@dataclass(slots=True)
class Letta:
    """One agent with one conversation in one account; ``template`` and ``memory`` are what it has now."""

    account: Account
    template: str = TEMPLATE
    memory: str = "likes tests"
    revision: str = "a" * 40
    key: str = CONVERSATION_KEY
    content: str = ""

    @property
    def agent(self) -> str:
        """The agent's URI."""
        return f"at://{self.account.did}/{AGENT}/{AGENT_KEY}"

    @property
    def conversation(self) -> str:
        """The conversation's URI."""
        return f"at://{self.account.did}/{CONVERSATION}/{self.key}"

    @property
    def prompt(self) -> str:
        """The URI of the compiled prompt, which has the conversation's key."""
        return f"at://{self.account.did}/{PROMPT}/{self.key}"

    async def begin(self) -> Written:
        """Write the agent, the conversation, and the prompt compiled for it; gives the prompt."""
        await self.set_template(self.template)
        conversation = {"agent": self.agent, "role": "primary", "createdAt": now(), "updatedAt": now()}
        await self.account.put_record(CONVERSATION, self.key, {"$type": CONVERSATION, **conversation})
        return await self.compile()

    async def set_template(self, template: str) -> Written:
        """Give the agent another template; its prompt stays as it is."""
        self.template = template
        agent = {"name": "Ada", "system": template, "primaryConversation": self.conversation, "createdAt": now()}
        return await self.account.put_record(AGENT, AGENT_KEY, {"$type": AGENT, **agent})

    async def compile(self) -> Written:
        """A full compile of the present template and memory."""
        self.content = self.template.replace("{CORE_MEMORY}", self.memory)
        return await self.touch()

    async def compile_with(self, memory: str, revision: str) -> Written:
        """A full compile of another memory."""
        self.memory, self.revision = memory, revision
        return await self.compile()

    async def update_memory(self, memory: str, revision: str) -> Written:
        """A mid-conversation memory update: the old content, the new memory."""
        self.memory, self.revision = memory, revision
        return await self.touch()

    async def touch(self) -> Written:
        """Write the prompt again with nothing new but ``compiledAt``."""
        record: dict[str, Any] = {
            "$type": PROMPT,
            "agent": self.agent,
            "conversation": self.conversation,
            "content": self.content,
            "coreMemory": self.memory,
            "rawSystemHash": hash_of(self.template),
            "memfsRevision": self.revision,
            "compiledAt": now(),
        }
        return await self.account.put_record(PROMPT, self.key, record)

    async def say(self, text: str, seq: int) -> Written:
        """Add a message to the conversation."""
        message = {"conversation": self.conversation, "seq": seq, "role": "user", "status": "active", "content": text}
        return await self.account.create_record(MESSAGE, {"$type": MESSAGE, **message, "createdAt": now()})
