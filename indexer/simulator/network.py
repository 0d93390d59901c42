"""A simulated network: accounts with real keys and repositories, and the frames their changes emit.

Everything follows from the seed, the calls made and the clock: two equal runs give equal bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from indexer.simulator import events
from indexer.simulator.clock import Clock, iso, microseconds, tid
from indexer.simulator.dagcbor import Value, base32, cid_text
from indexer.simulator.keys import P256Key, Secp256k1Key, SigningKey, did_key, legacy_multibase, multikey
from indexer.simulator.oracle import Expected, ExpectedAccount, History, expected, expected_records
from indexer.simulator.repository import Commit, Head, Repository, Write


@dataclass(slots=True, eq=False)
class Account:
    """An account and its repository; ``pds`` is the URL of its host, ``legacy`` its document's old form of
    keys, ``tombstoned`` whether the directory has given the DID up."""

    did: str
    handle: str
    key: SigningKey
    repository: Repository
    pds: str
    legacy: bool
    clock_id: int
    status: str = "active"
    tombstoned: bool = False
    history: History = field(default_factory=History)

    @property
    def active(self) -> bool:
        """Whether the account can write and be read."""
        return self.status == "active"

    def document(self) -> dict[str, Value]:
        """The DID document as a PLC directory serves it: Multikey, or the older key type if ``legacy``."""
        method = {"id": f"{self.did}#atproto", "type": "Multikey", "controller": self.did}
        method["publicKeyMultibase"] = multikey(self.key)
        if self.legacy:
            method |= {"id": "#atproto", "type": self.key.legacy_type}
            method["publicKeyMultibase"] = legacy_multibase(self.key)
        service = {"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": self.pds}
        return {
            "@context": ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"],
            "id": self.did,
            "alsoKnownAs": [f"at://{self.handle}"],
            "verificationMethod": [method],
            "service": [service],
        }


class Network:
    """Accounts, one sequence of events, and the frames not yet taken.

    ``clock`` gives the present as an aware datetime; ``pds`` is the URL new accounts name as their host;
    ``first_seq`` the first sequence number; ``p256`` and ``legacy`` the fractions of new accounts with a P-256 key
    and with the old form of DID document.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        clock: Callable[[], datetime] | None = None,
        pds: str = "https://pds.example",
        first_seq: int = 1,
        p256: float = 0.0,
        legacy: float = 0.0,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock or Clock()
        self.pds = pds
        self.accounts: dict[str, Account] = {}
        self.p256 = p256
        self.legacy = legacy
        self._seq = first_seq - 1
        self._last_tid = 0
        self._keys = 0
        self._outbox: list[bytes] = []

    @property
    def seq(self) -> int:
        """The sequence number of the last event."""
        return self._seq

    def take(self) -> list[bytes]:
        """The frames emitted since the last call, in order."""
        taken, self._outbox = self._outbox, []
        return taken

    def emit(self, frame: bytes) -> None:
        """Put a frame of one's own among those emitted."""
        self._outbox.append(frame)

    def reset_sequence(self, first_seq: int = 1) -> None:
        """Number the events from ``first_seq`` on again, as a host does that lost its sequence."""
        self._seq = first_seq - 1

    def stamp(self) -> dict[str, Value]:
        """``seq`` and ``time`` for the next event; the sequence number is used up."""
        self._seq += 1
        return {"seq": self._seq, "time": iso(self.clock())}

    def rkey(self) -> str:
        """A new record key: a TID above all earlier ones."""
        self._last_tid = max(microseconds(self.clock()), self._last_tid + 1)
        return tid(self._last_tid, self.rng.randrange(1024))

    def create_account(self, handle: str | None = None) -> Account:
        """A new account with an empty repository; emits ``#identity``, ``#account``, ``#commit`` and ``#sync``."""
        number = len(self.accounts)
        digest = sha256(f"did {self.seed} {number}".encode()).digest()
        did = "did:plc:" + base32(digest)[:24]
        key = self.new_key()
        clock_id = self.rng.randrange(1024)
        repository = Repository(did, key, tid(microseconds(self.clock()), clock_id))
        legacy = self.rng.random() < self.legacy
        account = Account(did, handle or f"u{number}.test", key, repository, self.pds, legacy, clock_id)
        self.accounts[did] = account
        self.emit(events.identity(did, account.handle, **self.stamp()))
        self.emit(events.account(did, "active", **self.stamp()))
        self.emit(events.commit(did, repository.first_commit(), **self.stamp()))
        self.emit(events.sync(repository, **self.stamp()))
        return account

    def new_key(self) -> SigningKey:
        """A fresh signing key, on P-256 for the fraction ``p256`` of them."""
        self._keys += 1
        secret = f"key {self.seed} {self._keys}".encode()
        return P256Key(secret) if self.rng.random() < self.p256 else Secp256k1Key(secret)

    def next_rev(self, did: str) -> str:
        """A revision above the repository's last, of the present time where that is later."""
        account = self.accounts[did]
        now = tid(microseconds(self.clock()), account.clock_id)
        return now if now > account.repository.rev else _successor(account.repository.rev)

    def apply(self, did: str, writes: list[Write]) -> Commit:
        """Commit writes without emitting a frame; the oracle knows them all the same."""
        account = self.accounts[did]
        if not account.active:
            raise ValueError(f"{did} is {account.status}: it cannot write")
        records = account.repository.records
        before = {write.path: records[write.path] for write in writes if write.path in records}
        made = account.repository.commit(writes, self.next_rev(did))
        account.history.note(made, before, records)
        return made

    def commit(self, did: str, writes: list[Write]) -> Commit:
        """Apply writes to one repository in one commit and emit its ``#commit``."""
        made = self.apply(did, writes)
        self.emit(events.commit(did, made, **self.stamp()))
        return made

    def put(self, did: str, path: str, value: Value) -> Commit:
        """Create or overwrite one record."""
        return self.commit(did, [Write(path, value)])

    def delete(self, did: str, path: str) -> Commit:
        """Delete one record."""
        return self.commit(did, [Write(path, None)])

    def sync(self, did: str) -> None:
        """Emit a ``#sync`` of where the repository stands."""
        self.emit(events.sync(self.accounts[did].repository, **self.stamp()))

    def set_status(self, did: str, status: str) -> None:
        """Change an account's status (``deactivated``, ``suspended``, ``takendown``, …, or ``active`` again).

        A return to active emits ``#identity`` and ``#sync`` as well, as the reference server does.
        """
        account = self.accounts[did]
        account.status = status
        self.emit(events.account(did, status, **self.stamp()))
        if status == "active":
            self.emit(events.identity(did, account.handle, **self.stamp()))
            self.sync(did)

    def delete_account(self, did: str, *, tombstone: bool = False) -> None:
        """Delete an account for good, with everything in it, and its DID too with ``tombstone``."""
        account = self.accounts[did]
        account.tombstoned = tombstone
        rev = account.repository.rev
        account.repository = Repository(did, account.key, rev)
        account.history = History()
        self.set_status(did, "deleted")

    def set_handle(self, did: str, handle: str) -> None:
        """Change an account's handle and emit ``#identity``."""
        self.accounts[did].handle = handle
        self.emit(events.identity(did, handle, **self.stamp()))

    def rotate_key(self, did: str, *, resign: bool = True) -> None:
        """Give an account a new key and emit ``#identity``.

        With ``resign`` the present content is signed anew and a ``#sync`` follows; without, the head keeps the old
        key's signature until the next commit, so that nothing proves in between.
        """
        account = self.accounts[did]
        account.key = account.repository.key = self.new_key()
        self.emit(events.identity(did, account.handle, **self.stamp()))
        if resign:
            account.repository.rekey(account.key, self.next_rev(did))
            self.sync(did)

    def migrate(self, did: str, pds: str) -> None:
        """Move an account to the host at the URL ``pds``; emits ``#identity``, ``#account`` and ``#sync``."""
        account = self.accounts[did]
        account.pds = pds
        self.emit(events.identity(did, account.handle, **self.stamp()))
        self.emit(events.account(did, account.status, **self.stamp()))
        self.sync(did)

    def rewind(self, did: str, head: Head) -> None:
        """Put a repository back to an earlier state, as a restored backup does; emits nothing."""
        account = self.accounts[did]
        account.repository.rewind(head)
        account.repository.rekey(account.key, head.rev)
        account.history.forget_after(head.rev)

    def documents(self) -> Mapping[str, dict[str, Value]]:
        """The DID documents of all accounts whose DID is not tombstoned."""
        return {did: account.document() for did, account in self.accounts.items() if not account.tombstoned}

    def expected(self) -> Expected:
        """What an index that has seen everything must hold."""
        histories = {did: account.history for did, account in self.accounts.items()}
        return expected((_expected_account(account) for account in self.accounts.values()), histories)


def _expected_account(account: Account) -> ExpectedAccount:
    repository = account.repository
    return ExpectedAccount(
        did=account.did,
        handle=account.handle,
        status=account.status,
        pds=account.pds,
        signing_key=did_key(account.key),
        rev=repository.rev,
        data=cid_text(repository.root.cid),
        records=expected_records(repository),
    )


def _successor(rev: str) -> str:
    digits = "234567abcdefghijklmnopqrstuvwxyz"
    number = sum(digits.index(digit) << 5 * place for place, digit in enumerate(reversed(rev)))
    return tid((number >> 10) + 1, number & 1023)
