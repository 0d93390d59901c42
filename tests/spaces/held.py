"""A plain model of an index: what a reading leads to, held in dictionaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from indexer.cbor import cid_of, cid_text, encode_json
from indexer.model import Change, Record
from indexer.simulator.space_repository import SpaceRepository
from indexer.spaces.folding import Superseded
from indexer.spaces.reader import Loaded, Reading
from indexer.spaces.repo import Applied, RepoState

Key = tuple[str, str]


@dataclass
class Held:
    """The rows of one repository, the versions that never became rows, and the state; ``loads`` counts reloads."""

    state: RepoState
    prefixes: tuple[str, ...]
    rows: dict[Key, Change] = field(default_factory=dict)
    versions: list[Superseded] = field(default_factory=list)
    loads: list[Loaded] = field(default_factory=list)

    def take(self, reading: Reading) -> None:
        """What the reading brought, as a store that orders changes of a record by their rev would take it."""
        if isinstance(reading, Applied):
            for change in reading.changes:
                self._change(change)
            self.versions += reading.superseded
            self.state = reading.state
        elif isinstance(reading, Loaded):
            self.rows = {}
            for found in reading.changes(self.prefixes):
                assert isinstance(found, Change)
                self._change(found)
            self.state = reading.state
            self.loads.append(reading)

    def cids(self) -> dict[str, str]:
        """URI and CID of every row; its value has to hash to it."""
        found = {}
        for (collection, rkey), row in self.rows.items():
            assert row.record is not None
            assert row.cid == cid_text(cid_of(block_of(row.record)))
            found[f"{self.state.space}/{self.state.did}/{collection}/{rkey}"] = row.cid
        return found

    def _change(self, change: Change) -> None:
        assert (change.did, change.space) == (self.state.did, self.state.space)
        held = self.rows.pop((change.collection, change.rkey), None)
        assert held is None or held.rev <= change.rev
        if change.cid is not None:
            assert change.record is not None
            self.rows[change.collection, change.rkey] = change


def block_of(record: Record) -> bytes:
    """The block that a stored record stands for."""
    return encode_json(json.loads(record.value)) if record.block is None else record.block


def truth_of(repository: SpaceRepository, prefixes: tuple[str, ...]) -> dict[str, str]:
    """URI and CID of every record that the simulated host holds under ``prefixes``."""
    return {
        f"{repository.space}/{repository.did}/{path}": held.cid
        for path, held in repository.records.items()
        if path.startswith(prefixes)
    }
