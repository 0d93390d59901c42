"""Every error this package raises on purpose, one tree.

    IndexerError
    ├── SettingsError            a setting is wrong; exit code 2
    ├── DatabaseError
    │   ├── DatabaseUnavailable  no connection, or it was lost: try the same batch again
    │   │   └── DatabaseTooSlow  a statement took too long: less at a time may go through
    │   ├── BatchRefused         the database refuses this data: bisect until the row is found
    │   ├── WriterElsewhere      another daemon writes the database, and goes on; exit code 3
    │   └── SchemaError          missing, unknown or broken schema, or no right to it: stop; exit code 3
    ├── EmbeddedError            the embedded PostgreSQL cannot be prepared or started; exit code 3
    ├── IdentityError            a DID document or handle cannot be resolved or used
    ├── SourceError
    │   ├── SourceLost           the connection ended or could not be made: connect again
    │   └── SourceBroken         trying again cannot help (no such file, a URL that is none)
    └── Rejected                 input from outside that is set aside, with its reason

A message says what happened, where (host, DID, rev) and what to do. It never holds record content, a password
or a token.
"""

from __future__ import annotations

from indexer.model import Reason


class IndexerError(Exception):
    """Base of all errors of this package."""


class SettingsError(IndexerError):
    """A setting has a value that cannot be used; the message names the setting."""


class DatabaseError(IndexerError):
    """Base of what can go wrong between us and PostgreSQL."""


class DatabaseUnavailable(DatabaseError):
    """No connection to the database, or it broke: nothing was committed, the same work may be tried again."""


class DatabaseTooSlow(DatabaseUnavailable):
    """A statement took longer than the database was asked to give it: the same again may take as long."""


class BatchRefused(DatabaseError):
    """The database refused the data of a batch (not its connection, not the schema)."""


class WriterElsewhere(DatabaseError):
    """Another daemon is the writer of the database, and there was no time to wait for its end."""


class SchemaError(DatabaseError):
    """The schema is missing, of a version this program doesn't know, or not accessible to this user."""


class EmbeddedError(IndexerError):
    """The embedded PostgreSQL cannot be prepared or started."""


class IdentityError(IndexerError):
    """A DID document or handle cannot be resolved, or says nothing usable; the message names the DID."""


class SourceError(IndexerError):
    """Base of what can go wrong with a source of events."""


class SourceLost(SourceError):
    """The connection to a source ended, or could not be made: connect again after a pause.

    ``reason`` is a word out of a closed list, for the metric ``reconnects_total``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class SourceBroken(SourceError):
    """A source that no retry can help: a missing file, a URL that is none."""


class Rejected(IndexerError):
    """Input from outside that cannot be used. Never ends the daemon: it is counted and set aside.

    ``reason`` is the member of :class:`indexer.model.Reason` under which it is counted.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail
