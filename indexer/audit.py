"""The audit: rows re-hash to their CIDs, flags are what the records say, repositories are what their hosts sign."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from indexer.cbor import cid_of, cid_text, encode_json
from indexer.changes import read_record
from indexer.errors import IdentityError, Rejected
from indexer.identity import Resolver
from indexer.keys import PublicKey
from indexer.outbound import FetchFailed, SpoolFailed
from indexer.pds import RepoHost
from indexer.snapshot import open_snapshot
from indexer.store.audits import AuditedRepo, Audits, StoredRow
from indexer.syntax import parse_record_uri
from indexer.verify import check_signature

UNREACHABLE = "unreachable"  # the kind of what is no difference, but could not be compared
CATCHING_UP = 1.0  # seconds that an index may be behind a host before that is a difference


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that isn't as it should be, or a repository that could not be compared.

    ``did`` is the repository to fetch anew, '' where none would help.
    """

    kind: str  # hash, texts, flags, missing, extra, changed, or UNREACHABLE
    subject: str  # a record's URI, or a DID
    detail: str
    did: str = ""


async def audit_index(audits: Audits) -> AsyncIterator[Difference]:
    """What is wrong within the index itself, without asking anybody."""
    async for row in audits.rows():
        if not rehashes(row):
            yield Difference("hash", row.uri, f"the row does not hash to {row.cid}", _did_in(row.uri))
        elif not describes(row):
            yield Difference("texts", row.uri, "lengths or digests are not those of its texts", _did_in(row.uri))
    for flags in await audits.untrue_flags():
        uri = str(flags["uri"])
        yield Difference("flags", uri, f"stored {flags['stored']}, computed {flags['computed']}")


def rehashes(row: StoredRow) -> bool:
    """Whether a row's block, or its value encoded again, hashes to its CID."""
    try:
        return cid_text(cid_of(_block_of(row))) == row.cid
    except ValueError:
        return False


def describes(row: StoredRow) -> bool:
    """Whether what is said of the long texts of a row that rehashes is so."""
    collection, rkey = row.uri.split("/")[-2:]
    record, _ = read_record(collection, rkey, _block_of(row))
    return all(record.facts.get(name) == said for name, said in row.facts.items())


def _block_of(row: StoredRow) -> bytes:
    """The record as it was written. Raises ValueError where its value is none."""
    return row.block if row.block is not None else encode_json(json.loads(row.value))


def _did_in(uri: str) -> str:
    record = parse_record_uri(uri)
    return record.did if record is not None and not record.space else ""


async def audit_remote(
    audits: Audits, resolver: Resolver, host: RepoHost, prefixes: tuple[str, ...]
) -> AsyncIterator[Difference]:
    """Where the index differs from what the accounts' own hosts sign now.

    What was written on either side while the two were read, or is wanted already, is no difference.
    """
    for repo in await audits.repos():
        if repo.wanted:
            continue
        try:
            for difference in await _compare(repo, audits, resolver, host, prefixes):
                yield difference
        except (FetchFailed, IdentityError, SpoolFailed, Rejected) as error:
            yield Difference(UNREACHABLE, repo.did, str(error))


async def _compare(
    repo: AuditedRepo, audits: Audits, resolver: Resolver, host: RepoHost, prefixes: tuple[str, ...]
) -> list[Difference]:
    identity = await resolver.resolve(repo.did, fresh=True)
    if identity.pds is None:
        raise FetchFailed(f"{repo.did} names no host")
    with tempfile.TemporaryFile() as file:
        await host.get_repo(identity.pds, repo.did, file)
        rev, signed = await asyncio.to_thread(_signed_paths, file, repo.did, identity.signing_key, prefixes)
    for pause in (CATCHING_UP, None):
        kept, head = await audits.cids(repo.did), await audits.head(repo.did)
        kept = {path: row for path, row in kept.items() if path.startswith(prefixes)}
        found = list(_differences(repo.did, rev, signed, kept, head))
        if not found or head >= rev or pause is None:
            break
        await asyncio.sleep(pause)  # what is there already may be on its way to us
    return found


def _differences(
    did: str, rev: str, signed: dict[str, str | None], kept: dict[str, tuple[str, str]], head: str
) -> Iterator[Difference]:
    """Where the rows ``kept``, as of ``head``, are not what is ``signed`` at ``rev``; what is newer isn't judged."""
    for path in sorted(signed.keys() | kept.keys()):
        cid, (kept_cid, kept_rev) = signed.get(path), kept.get(path, (None, head))
        if cid == kept_cid or kept_rev > rev:
            continue
        kind = "missing" if kept_cid is None else "extra" if cid is None else "changed"
        yield Difference(kind, f"at://{did}/{path}", f"signed at {rev}: {cid}, kept: {kept_cid}", did)


def _signed_paths(
    file: BinaryIO, did: str, key: PublicKey, prefixes: tuple[str, ...]
) -> tuple[str, dict[str, str | None]]:
    """The rev of a spooled repository, and the CID of each of its records that concern us, by path."""
    repository = open_snapshot(file)
    commit = repository.commit
    if commit.did != did or not check_signature(commit, key):
        raise FetchFailed(f"the repository that the host of {did} gives is not signed by its key")
    paths: dict[str, str | None] = {
        f"{record.collection}/{record.rkey}": cid_text(record.cid) for record in repository.records(prefixes)
    }
    return commit.rev, paths
