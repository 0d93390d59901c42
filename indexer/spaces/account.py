"""The account whose spaces are read: from a handle or DID to a client of its host."""

from __future__ import annotations

from indexer.errors import IdentityError
from indexer.identity import ResolvedIdentity, Resolver
from indexer.keys import PublicKey
from indexer.outbound import Outbound
from indexer.spaces.client import SpaceClient
from indexer.spaces.session import Secret, Session
from indexer.syntax import is_did


async def open_account(outbound: Outbound, resolver: Resolver, name: str, password: Secret) -> SpaceClient:
    """A client of the PDS of the account ``name`` (a DID or handle); it signs in with the first call.

    Raises IdentityError if the name leads nowhere, or its DID document names no PDS; FetchFailed (no answer).
    """
    did = name if is_did(name) else await resolver.did_of(name.removeprefix("@").lower())
    identity = await resolver.resolve(did)
    return SpaceClient(Session(outbound, host_of(identity), did, password))


def host_of(identity: ResolvedIdentity) -> str:
    """The origin of the account's PDS. Raises IdentityError if its document names none."""
    if identity.pds is None:
        raise IdentityError(f"the DID document of {identity.did} names no PDS")
    return identity.pds


async def author_key(resolver: Resolver, did: str, *, fresh: bool = False) -> PublicKey:
    """The ``#atproto`` key of ``did``, with ``fresh`` as of now. Raises as ``Resolver.resolve``."""
    return (await resolver.resolve(did, fresh=fresh)).signing_key
