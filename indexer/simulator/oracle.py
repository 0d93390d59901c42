"""What an index of the simulated network must hold: the values :meth:`Network.expected` answers with.

Taken from the network's own state, never from what an indexer says about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from indexer.simulator.dagcbor import Value, cid_text, to_json
from indexer.simulator.freshness import PROMPT, Judgement, judge, text
from indexer.simulator.repository import Commit, Entry, Repository

PREFIX = "xyz.quasigod.lab.letta."

Kind: TypeAlias = Literal["first", "full", "memory", "touch"]


class Compile(NamedTuple):
    """One write of a compiled prompt; ``kind`` compares it with the write before."""

    rev: str
    cid: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ExpectedRecord:
    """A record under the prefix; ``value`` is its JSON form, ``rev`` the commit that last wrote it."""

    uri: str
    did: str
    collection: str
    rkey: str
    cid: str
    rev: str
    value: Value


@dataclass(frozen=True, slots=True)
class ExpectedPrompt:
    """A compiled prompt's verdict, and every write of it since the record was last created, oldest first."""

    uri: str
    judgement: Judgement
    compiles: tuple[Compile, ...]


@dataclass(frozen=True, slots=True)
class ExpectedAccount:
    """An account: ``status`` is ``active`` or the reason why not; a deleted account has no records.

    ``rev`` and ``data`` (text CID of the tree's root) are those of the repository's head.
    """

    did: str
    handle: str
    status: str
    pds: str
    signing_key: str
    rev: str
    data: str
    records: Mapping[str, ExpectedRecord]


@dataclass(frozen=True, slots=True)
class Expected:
    """The whole truth: accounts by DID, compiled prompts by URI (those of hidden accounts too)."""

    accounts: Mapping[str, ExpectedAccount]
    prompts: Mapping[str, ExpectedPrompt]

    @property
    def hidden(self) -> frozenset[str]:
        """The DIDs of accounts that are not active."""
        return frozenset(did for did, account in self.accounts.items() if account.status != "active")

    @property
    def records(self) -> dict[str, ExpectedRecord]:
        """Every record of every active account, by URI: what the views show."""
        visible = (account for account in self.accounts.values() if account.status == "active")
        return {uri: record for account in visible for uri, record in account.records.items()}


@dataclass(slots=True)
class History:
    """The writes of one account's compiled prompts, by path, since each was last created."""

    compiles: dict[str, list[Compile]] = field(default_factory=dict)

    def note(self, made: Commit, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> None:
        """Take in a commit; ``before`` and ``after`` hold the entries of the paths it touched."""
        for op in made.ops:
            if not op.path.startswith(PROMPT + "/"):
                continue
            if op.cid is None:
                self.compiles.pop(op.path, None)
                continue
            kind = "first" if op.action == "create" else kind_of(before[op.path].value, after[op.path].value)
            self.compiles.setdefault(op.path, []).append(Compile(made.rev, cid_text(op.cid), kind))

    def forget_after(self, rev: str) -> None:
        """Drop the writes above ``rev``."""
        kept = {path: [made for made in writes if made.rev <= rev] for path, writes in self.compiles.items()}
        self.compiles = {path: writes for path, writes in kept.items() if writes}


def kind_of(old: Value, new: Value) -> Kind:
    """What an overwrite of a compiled prompt is: a full recompile, a memory update, or a touch.

    A field that is no string counts as absent, as it does for freshness.
    """
    if text(old, "content") != text(new, "content"):
        return "full"
    changed = any(text(old, name) != text(new, name) for name in ("coreMemory", "memfsRevision"))
    return "memory" if changed else "touch"


def expected_records(repository: Repository) -> dict[str, ExpectedRecord]:
    """The records of a repository under the prefix, by URI, in path order."""
    result = {}
    for path, entry in sorted(repository.records.items()):
        if path.startswith(PREFIX):
            collection, rkey = path.split("/")
            uri = f"at://{repository.did}/{path}"
            cid, value = cid_text(entry.cid), to_json(entry.value)
            result[uri] = ExpectedRecord(uri, repository.did, collection, rkey, cid, entry.rev, value)
    return result


def expected(accounts: Iterable[ExpectedAccount], histories: Mapping[str, History]) -> Expected:
    """Judge all compiled prompts of these accounts and put everything together; histories are by DID."""
    by_did = {account.did: account for account in accounts}
    values = {uri: record.value for account in by_did.values() for uri, record in account.records.items()}
    hidden = [did for did, account in by_did.items() if account.status != "active"]
    prompts = {}
    for uri, judgement in judge(values, hidden).items():
        did, path = uri.removeprefix("at://").split("/", 1)
        prompts[uri] = ExpectedPrompt(uri, judgement, tuple(histories[did].compiles.get(path, ())))
    return Expected(by_did, prompts)
