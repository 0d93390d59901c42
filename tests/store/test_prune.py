"""What is told of accounts that hold nothing here is forgotten after a while, never what is told of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from indexer.batch import Batch
from indexer.model import AccountChange
from tests.frames import AGENT, STRANGER, agent, commit, key, put
from tests.indexing import Sql, indexing

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def test_states_of_accounts_without_records_are_forgotten(database: str, sql: Sql) -> None:
    """A state told long ago of an account that holds nothing goes; that of an account with a record stays."""
    async with indexing(database) as index:
        await index.take([commit(put(AGENT, key(1), agent()), did=STRANGER)])
        states = {did: AccountChange(did, LONG_AGO, False, "deactivated") for did in (STRANGER, "did:plc:nobody")}
        await index.store.apply(Batch(accounts=states), datetime.now(UTC))
        assert await index.store.prune(LONG_AGO + timedelta(days=1)) == 1
        assert await index.store.prune(LONG_AGO + timedelta(days=1)) == 0
    assert [row["did"] for row in await sql.fetch("select did from letta_store.account")] == [STRANGER]
