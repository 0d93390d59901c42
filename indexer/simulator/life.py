"""A plausible life of Letta agents amid other applications' noise: one thing happens at a time.

What happens is drawn by weight; what isn't possible just now becomes noise. Writes go through the
:class:`~indexer.simulator.network.Network`, which emits the frames and knows the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from indexer.simulator import content
from indexer.simulator.content import Agent, Thread
from indexer.simulator.dagcbor import Value
from indexer.simulator.network import Account, Network
from indexer.simulator.repository import Write

WEIGHTS: Mapping[str, float] = {
    "noise": 40,
    "message": 22,
    "memory": 8,
    "recompile": 6,
    "template": 4,
    "batch": 4,
    "agent": 3,
    "fork": 4,
    "touch": 2,
    "equal": 1,
    "switch_memory": 1,
    "unknown": 2,
    "delete_message": 2,
    "delete_prompt": 1,
    "delete_conversation": 0.7,
    "delete_agent": 0.4,
    "delete_noise": 2,
    "hide": 0.4,
    "come_back": 1,
    "rename": 0.5,
    "new_account": 0.3,
    "delete_account": 0.08,
}


class Life:
    """What goes on in a network.

    ``weights`` replaces single weights of :data:`WEIGHTS` (0 switches a thing off; an unknown name is a KeyError);
    ``quirks`` is the fraction of writes with something odd about them, ``foreign`` that of conversations kept in
    another account's repository than their agent; ``most_accounts`` bounds ``new_account``.
    """

    def __init__(
        self,
        network: Network,
        *,
        weights: Mapping[str, float] | None = None,
        quirks: float = 0.05,
        foreign: float = 0.2,
        most_accounts: int = 40,
    ) -> None:
        for name in weights or {}:
            WEIGHTS[name]
        merged = dict(WEIGHTS) | dict(weights or {})
        self.network = network
        self.rng = network.rng
        self.quirks = quirks
        self.foreign = foreign
        self.most_accounts = most_accounts
        self.agents: list[Agent] = []
        self.threads: list[Thread] = []
        self._noise: list[tuple[str, str]] = []
        self._names = list(merged)
        self._weights = list(merged.values())

    def step(self) -> str:
        """Let one thing happen; returns its name (``noise`` where the one drawn wasn't possible)."""
        name = self.rng.choices(self._names, self._weights)[0]
        if self.happen(name):
            return name
        self.noise()
        return "noise"

    def happen(self, name: str) -> bool:
        """Let the thing called ``name`` happen; False if it isn't possible just now."""
        action: Callable[[], bool] = getattr(self, name)
        return action()

    def _now(self) -> datetime:
        return self.network.clock()

    def _account(self) -> Account | None:
        active = [account for account in self.network.accounts.values() if account.active]
        return self.rng.choice(active) if active else None

    def _writable(self, did: str) -> bool:
        return self.network.accounts[did].active

    def _agent(self) -> Agent | None:
        for _ in range(8 if self.agents else 0):
            agent = self.rng.choice(self.agents)
            if agent.exists and self._writable(agent.did):
                return agent
        return None

    def _thread(self) -> Thread | None:
        for _ in range(8 if self.threads else 0):
            thread = self.rng.choice(self.threads)
            if self._writable(thread.did):
                return thread
        return None

    def _compiled_thread(self) -> Thread | None:
        thread = self._thread()
        return thread if thread and thread.prompt is not None and "content" in thread.prompt else None

    def _delete(self, did: str, paths: list[str]) -> bool:
        """Delete what is there of these paths in one commit; False if nothing is (a backup may have taken it)."""
        records = self.network.accounts[did].repository.records
        writes = [Write(path, None) for path in paths if path in records]
        if writes:
            self.network.commit(did, writes)
        return bool(writes)

    def _odd(self) -> bool:
        return self.rng.random() < self.quirks

    def _put(self, did: str, path: str, value: Value) -> bool:
        self.network.put(did, path, value)
        return True

    def _compile(self, thread: Thread) -> Write:
        """A full compile as a write, taken note of on the thread."""
        value = content.compiled(self.rng, thread, self._now())
        thread.prompt = content.odd_prompt(self.rng, value, thread.agent) if self._odd() else value
        return Write(thread.prompt_path, thread.prompt)

    # Things that happen; each returns whether it could.

    def noise(self) -> bool:
        """Another application writes."""
        account = self._account()
        if account is None:
            return False
        collection, value = content.noise_record(self.rng, list(self.network.accounts), self._now())
        path = f"{collection}/{self.network.rkey()}"
        self._noise.append((account.did, path))
        return self._put(account.did, path, value)

    def delete_noise(self) -> bool:
        """Another application's record goes."""
        if not self._noise:
            return False
        did, path = self._noise.pop(self.rng.randrange(len(self._noise)))
        return self._writable(did) and self._delete(did, [path])

    def agent(self) -> bool:
        """An agent is made, with primary conversation and prompt: step by step, or in one commit."""
        account = self._account()
        if account is None:
            return False
        rng = self.rng
        record = content.agent_record(rng, self._now())
        memory, head = content.core_memory(rng), content.revision(rng) if rng.random() < 0.85 else None
        agent = Agent(account.did, self.network.rkey(), account.handle, record, memory, head)
        home = self._home(agent)
        thread = Thread(home, self.network.rkey(), agent)
        configuration = content.conversation_record(rng, agent, "primary", self._now())
        complete = record | {"primaryConversation": thread.uri}
        prompt = self._compile(thread)
        if rng.random() < 0.5 and home == account.did:
            writes = [Write(agent.path, complete), Write(thread.path, configuration), prompt]
            self.network.commit(home, writes)
        else:
            self.network.put(agent.did, agent.path, record)
            self.network.put(home, thread.path, configuration)
            self.network.put(agent.did, agent.path, complete)
            self.network.commit(home, [prompt])
        agent.record = complete
        self.agents.append(agent)
        self.threads.append(thread)
        return True

    def _home(self, agent: Agent) -> str:
        other = self._account() if self.rng.random() < self.foreign else None
        return agent.did if other is None else other.did

    def fork(self) -> bool:
        """A conversation branches off, with a prompt of its own."""
        agent = self._agent()
        if agent is None:
            return False
        thread = Thread(self._home(agent), self.network.rkey(), agent)
        self.network.put(thread.did, thread.path, content.conversation_record(self.rng, agent, "fork", self._now()))
        if self.rng.random() < 0.9:
            self.network.commit(thread.did, [self._compile(thread)])
        self.threads.append(thread)
        return True

    def message(self) -> bool:
        """Somebody says something."""
        thread = self._thread()
        if thread is None:
            return False
        self.network.commit(thread.did, [self._say(thread)])
        return True

    def _say(self, thread: Thread) -> Write:
        path = f"{content.MESSAGE}/{self.network.rkey()}"
        thread.messages.append(path)
        return Write(path, content.message_record(self.rng, thread, self._now()))

    def recompile(self) -> bool:
        """A prompt is compiled in full, also one that was deleted."""
        thread = self._thread()
        if thread is None:
            return False
        self.network.commit(thread.did, [self._compile(thread)])
        return True

    def memory(self) -> bool:
        """An agent's memory changes, and one conversation takes it up without a recompile."""
        thread = self._compiled_thread()
        if thread is None or thread.agent.revision is None:
            return False
        thread.agent.memory, thread.agent.revision = content.core_memory(self.rng), content.revision(self.rng)
        return self._overwrite(thread, content.memory_fields(self.rng, thread, self._now()))

    def switch_memory(self) -> bool:
        """Memory files are switched off or on; one conversation is recompiled."""
        thread = self._thread()
        if thread is None:
            return False
        thread.agent.revision = content.revision(self.rng) if thread.agent.revision is None else None
        self.network.commit(thread.did, [self._compile(thread)])
        return True

    def touch(self) -> bool:
        """A prompt is written again with nothing but a new time."""
        thread = self._compiled_thread()
        return thread is not None and self._overwrite(thread, {"compiledAt": content.moment(self.rng, self._now())})

    def equal(self) -> bool:
        """Two prompts of one agent in one repository get the same instant, written differently or not."""
        thread = self._compiled_thread()
        others = [other for other in self.threads if thread and _comparable(thread, other)]
        if thread is None or not others:
            return False
        other = self.rng.choice(others)
        written = (other.prompt or {}).get("compiledAt")
        return written != (thread.prompt or {}).get("compiledAt") and self._overwrite(thread, {"compiledAt": written})

    def _overwrite(self, thread: Thread, fields: dict[str, Value]) -> bool:
        thread.prompt = (thread.prompt or {}) | fields
        return self._put(thread.did, thread.prompt_path, thread.prompt)

    def template(self) -> bool:
        """An agent gets another template; its prompts catch up later, or never."""
        agent = self._agent()
        if agent is None:
            return False
        record = agent.record | {"system": content.template(self.rng)}
        record.pop("memfsRevision", None)
        agent.record = content.odd_agent(self.rng, record, agent) if self._odd() else record
        return self._put(agent.did, agent.path, agent.record)

    def batch(self) -> bool:
        """Several writes in one commit, each to its own path."""
        thread = self._thread()
        if thread is None:
            return False
        writes = [self._say(thread) for _ in range(self.rng.randint(1, 5))]
        mine = [other for other in self.threads if other.did == thread.did]
        writes += [self._compile(other) for other in self.rng.sample(mine, min(len(mine), self.rng.randrange(3)))]
        old = thread.messages.pop(self.rng.randrange(3)) if len(thread.messages) > 8 else None
        if old in self.network.accounts[thread.did].repository.records:
            writes.append(Write(old, None))
        self.rng.shuffle(writes)
        self.network.commit(thread.did, writes)
        return True

    def unknown(self) -> bool:
        """A collection under the prefix that nobody has described."""
        account = self._account()
        if account is None:
            return False
        collection, value = content.unknown_record(self.rng, self._now())
        return self._put(account.did, f"{collection}/{self.network.rkey()}", value)

    def delete_message(self) -> bool:
        """A message goes."""
        thread = self._thread()
        if thread is None or not thread.messages:
            return False
        return self._delete(thread.did, [thread.messages.pop(self.rng.randrange(len(thread.messages)))])

    def delete_prompt(self) -> bool:
        """A compiled prompt goes; its conversation stays."""
        thread = self._thread()
        if thread is None or thread.prompt is None:
            return False
        thread.prompt = None
        return self._delete(thread.did, [thread.prompt_path])

    def delete_conversation(self) -> bool:
        """A conversation goes with its prompt and messages, or alone."""
        thread = self._thread()
        if thread is None:
            return False
        everything = self.rng.random() < 0.8
        self.threads.remove(thread)
        return self._delete(
            thread.did, [thread.path, thread.prompt_path, *thread.messages[:100]] if everything else [thread.path]
        )

    def delete_agent(self) -> bool:
        """An agent's record goes; what refers to it stays."""
        agent = self._agent()
        if agent is None:
            return False
        agent.exists = False
        return self._delete(agent.did, [agent.path])

    def hide(self) -> bool:
        """An account is deactivated, or its host acts against it."""
        account = self._account()
        if account is None:
            return False
        status = self.rng.choices(("deactivated", "suspended", "takendown"), (8, 1, 1))[0]
        self.network.set_status(account.did, status)
        return True

    def come_back(self) -> bool:
        """A hidden account returns."""
        hidden = [a.did for a in self.network.accounts.values() if a.status not in ("active", "deleted")]
        if not hidden:
            return False
        self.network.set_status(self.rng.choice(hidden), "active")
        return True

    def rename(self) -> bool:
        """An account takes another handle."""
        account = self._account()
        if account is None:
            return False
        self.network.set_handle(account.did, f"h{self.network.seq}.test")
        return True

    def new_account(self) -> bool:
        """Somebody joins."""
        if len(self.network.accounts) >= self.most_accounts:
            return False
        self.network.create_account()
        return True

    def delete_account(self) -> bool:
        """Somebody leaves for good, but never the last one."""
        account = self._account()
        if account is None or sum(other.active for other in self.network.accounts.values()) < 3:
            return False
        self.network.delete_account(account.did)
        self.threads = [thread for thread in self.threads if thread.did != account.did]
        self.agents = [agent for agent in self.agents if agent.did != account.did]
        self._noise = [(did, path) for did, path in self._noise if did != account.did]
        return True


def _comparable(thread: Thread, other: Thread) -> bool:
    same = other.agent is thread.agent and other.did == thread.did and other is not thread
    return same and other.prompt is not None and "compiledAt" in other.prompt
