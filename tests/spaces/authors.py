"""A simulated account with one permissioned repository, polled without a network."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from indexer.keys import PublicKey, signing_key
from indexer.simulator.dagcbor import to_json
from indexer.simulator.network import Account, Network
from indexer.simulator.repository import Write
from indexer.simulator.space_repository import SpaceRepository
from indexer.spaces.dialects import ALPHA_2026_08
from indexer.spaces.repo import Outcome, Poll, RepoState

SPACE: Final = "at://did:plc:aaaaaaaaaaaaaaaaaaaaaaaa/space/xyz.quasigod.lab.letta.space/self"
PREFIXES: Final = ("xyz.quasigod.lab.letta.",)
PROMPT: Final = "xyz.quasigod.lab.letta.compiledPrompt/3n2q7w3e4ddtw"
OTHER: Final = "com.example.note/1"


class Author:
    """An account with one permissioned repository."""

    def __init__(self) -> None:
        self.network = Network()
        self.account: Account = self.network.create_account()
        self.repository = SpaceRepository(SPACE, self.account.did, self.account.key, random.Random(1))

    def write(self, *writes: tuple[str, object]) -> str:
        """One batch; gives its rev."""
        rev = self.network.rkey()
        self.repository.write([Write(path, value) for path, value in writes], rev)
        return rev

    def state(self) -> RepoState:
        """The state of who has read nothing."""
        return RepoState(SPACE, self.account.did)

    def poll(self, state: RepoState, limit: int = 1000) -> Outcome:
        """What a poll comes to, its answers having gone through JSON."""
        poll = Poll(state, prefixes=PREFIXES, dialect=ALPHA_2026_08)
        while poll.take(json.loads(json.dumps(self.page(poll.since or "", poll.cursor or "", limit)))):
            pass
        return poll.finish(self.key())

    def key(self) -> PublicKey:
        """The author's key."""
        return signing_key(self.account.document(), self.account.did)

    def page(self, since: str, cursor: str, limit: int) -> dict[str, Any]:
        """One answer of ``listRepoOps``."""
        entries = self.repository.operations(since, cursor, limit)
        full = len(entries) == limit
        end = {"cursor": entries[-1].cursor} if full else {"commit": to_json(self.repository.commit())}
        return {"ops": [self.repository.operation_json(entry) for entry in entries]} | end
