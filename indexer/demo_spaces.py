"""What the demonstration shows of permissioned spaces: one account more, whose agent lives in a space of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from textwrap import dedent
from typing import Final

from indexer.simulator import content
from indexer.simulator.clock import iso
from indexer.simulator.network import Network
from indexer.simulator.repository import Write
from indexer.simulator.spaces import SpacesPds

KIND: Final = "xyz.quasigod.lab.letta.space"
PRIVATE_RECORDS: Final = dedent("""\
    select collection, proof, count(*) as records
    from letta.record where space <> ''
    group by collection, proof order by collection;""")
PRIVATE_PROMPTS: Final = dedent("""\
    select p.rkey, p.freshness, p.stale_reasons,
        p.evidence -> 0 ->> 'record' like p.space || '/%' as by_record_in_space
    from letta.compiled_prompt p where p.space <> '' order by p.rkey;""")


class Grace:
    """An account with an empty space on ``pds``: an agent in it, a conversation with its prompt, once it has begun."""

    def __init__(self, network: Network, pds: SpacesPds) -> None:
        self.network = network
        self._pds = pds
        self._did = network.create_account("grace.invalid").did
        self._password = pds.add_app_password(self._did)
        self.space = pds.create_space(self._did, KIND, "self")
        repo = f"{self.space}/{self._did}".removeprefix(
            "at://"
        )  # stands in a URI where a public repository has its DID
        record = content.agent_record(network.rng, network.clock()) | {"name": "archivist"}
        self._agent = content.Agent(repo, network.rkey(), "grace.invalid", record, "", None)
        self._thread = content.Thread(repo, network.rkey(), self._agent)

    @property
    def settings(self) -> dict[str, object]:
        """What the daemon has to be told to follow the account's spaces, by the names of the settings."""
        return {"space_account": [self._did], "space_password": self._password}

    def begin(self) -> None:
        """Write the agent, the conversation and its prompt, as one batch."""
        rng, agent, thread = self.network.rng, self._agent, self._thread
        agent.memory, agent.revision = content.core_memory(rng), content.revision(rng)
        agent.record["primaryConversation"] = thread.uri
        talk = content.conversation_record(rng, agent, "primary", self.network.clock()) | {"hidden": False}
        self._write(Write(agent.path, agent.record), Write(thread.path, talk), self._compiled())

    def rewrite_template(self) -> None:
        """Give the agent another system template."""
        self._agent.record = self._agent.record | {"system": content.template(self.network.rng)}
        self._write(Write(self._agent.path, self._agent.record))

    def expected(self) -> dict[str, str]:
        """URI and CID of every record in the space."""
        repo = f"{self.space}/{self._did}"
        return {
            f"{repo}/{path}": held.cid for path, held in self._pds.repositories[self.space, self._did].records.items()
        }

    def _compiled(self) -> Write:
        now = self.network.clock()
        return Write(
            self._thread.prompt_path, content.compiled(self.network.rng, self._thread, now) | {"compiledAt": iso(now)}
        )

    def _write(self, *writes: Write) -> None:
        self._pds.write(self.space, self._did, *writes)


@asynccontextmanager
async def simulated_spaces(seed: int) -> AsyncIterator[Grace]:
    """A host of spaces on loopback with one account; gone at the end of the block."""
    network = Network(seed, clock=lambda: datetime.now(UTC))
    async with SpacesPds(network) as pds:
        yield Grace(network, pds)
