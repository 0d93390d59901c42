"""Who may read can do nothing else: letta_reader, who signs in as a member of it, and who was granted a space."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from indexer.model import AGENT, COMPILED_PROMPT
from indexer.store.spaces import Spaces
from tests.frames import DID
from tests.indexing import Sql
from tests.privilege.conftest import GROUP, PASSWORD, Logins, name_of
from tests.privilege.rights import OBJECTS, attempts, excess
from tests.spaces.letta import agent, prompt
from tests.spaces.test_store import move
from tests.store.batches import NOW, SPACE, batch_of, change, opened

CANARY = "qcanary7x"
REFUSALS = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # a view that nobody can write to
    asyncpg.InvalidGrantOperationError,
)


@pytest.fixture
async def dashboard(database: str, logins: Logins) -> str:
    """The URL of a role that may read, made as the README says."""
    return await logins.role(database, of="letta_reader")


@pytest.fixture
async def member(database: str, sql: Sql, logins: Logins) -> str:
    """The URL of a role that was granted a space."""
    url = await logins.role(database)
    await sql.execute("select letta.grant_space($1, $2)", SPACE, name_of(url))
    return url


@pytest.fixture
async def reader(dashboard: str) -> AsyncIterator[Sql]:
    """A connection of who may read, signed in with a password."""
    connection = await asyncpg.connect(dashboard)
    yield connection
    await connection.close()


async def test_reader_has_no_right_too_many(sql: Sql, dashboard: str, member: str) -> None:
    """On everything in the catalogue, whatever is added one day, three kinds of readers may read and no more."""
    kinds = {(row["kind"], row["schema"]) for row in await sql.fetch(OBJECTS)}
    assert {(kind, "letta_store") for kind in ("r", "p", "v", "S", "function")} <= kinds
    assert {("v", "letta"), ("function", "letta")} <= kinds
    for role in ("letta_reader", name_of(dashboard), name_of(member)):
        assert [one for one in await excess(sql, role) if not one.endswith(f"may become {GROUP}")] == []


async def test_reader_is_refused(sql: Sql, dashboard: str, member: str) -> None:
    """Every statement that writes, changes, makes or looks behind the views fails, for want of a right."""
    statements = await attempts(sql)
    assert len(statements) > 200
    for url in (dashboard, member):
        connection = await asyncpg.connect(url)
        try:
            assert [one for one in statements if not await refused(connection, one)] == []
        finally:
            await connection.close()


async def refused(sql: Sql, statement: str) -> bool:
    """Whether a statement fails, and for the reason that its user may not do it."""
    transaction = sql.transaction()
    await transaction.start()
    try:
        await sql.execute(statement)
    except REFUSALS:
        return True
    finally:
        await transaction.rollback()
    return False


HOLES = {
    "usage": "grant usage on schema letta_store to letta_reader",
    "everybody": "grant select on letta_store.conversation to public",
    "a column": "grant update (rev) on letta_store.conversation to letta_reader",
    "a view": "grant insert on letta.record to letta_reader",
    "a new table": "create table letta_store.new (a integer); grant select on letta_store.new to letta_reader",
    "a new view": "create view letta.new as table letta_store.conversation; grant select on letta.new to letta_reader",
    "a new function": "create function letta.new() returns void language plpgsql as 'begin end'",
    "another's rights": "create function letta.new() returns int language sql stable security definer return 1",
    "a new sequence": "create sequence letta.new; grant usage on sequence letta.new to letta_reader",
    "making": "grant create on schema letta to letta_reader",
    "a policy": "create policy new on letta_store.conversation for update to letta_reader using (true)",
    "no policy": "alter table letta_store.conversation disable row level security",
    "granting": "grant execute on function letta.grant_space to letta_reader",
    "handing on": "grant select on letta.record to letta_reader with grant option",
}


@pytest.mark.parametrize("hole", HOLES.values(), ids=HOLES)
async def test_a_hole_is_seen(sql: Sql, hole: str) -> None:
    """Each kind of right that is one too many is found by the look at the catalogue."""
    await sql.execute(hole)
    assert await excess(sql, "letta_reader") != []


async def test_reader_becomes_nobody_else(sql: Sql, reader: Sql) -> None:
    """Who signs in to read is a member of letta_reader and can take no other role, by whatever command."""
    me = await reader.fetchval("select current_user")
    others = "select quote_ident(rolname) from pg_roles where rolname not in ('letta_reader', $1, $2)"
    for (role,) in await sql.fetch(others, me, GROUP):
        for command in (f"set role {role}", f"set session authorization {role}"):
            assert await refused(reader, command), command
        if role != "pg_database_owner":  # which nobody can be given
            assert await refused(reader, f"grant {role} to {me}"), role
    await reader.execute("set role letta_reader")
    await reader.execute("reset role")
    assert await reader.fetchval("select current_user") == me


async def test_reader_sees_every_view_and_no_samples(sql: Sql, reader: Sql) -> None:
    """Every view of letta can be read, a later one too; the planner's samples, which hold values, are of no table."""
    views = [row["name"] for row in await sql.fetch(OBJECTS) if (row["kind"], row["schema"]) == ("v", "letta")]
    assert len(views) > 12
    await sql.execute("analyze")
    for view in views:
        await reader.fetch(f"select * from {view}")
    for samples in ("pg_stats", "pg_stats_ext", "pg_stats_ext_exprs"):
        assert await reader.fetch(f"select 1 from {samples} where schemaname like 'letta%'") == [], samples


async def test_reader_sees_no_work_of_others(sql: Sql, reader: Sql) -> None:
    """What others ask the server, in words or in parameters, isn't shown."""
    await sql.fetch(f"select '{CANARY}'")
    rows = await reader.fetch("select query from pg_stat_activity where pid <> pg_backend_pid()")
    assert rows
    assert not [row["query"] for row in rows if CANARY in (row["query"] or "")]


async def test_reader_hears_of_no_space(database: str, reader: Sql) -> None:
    """Who listens hears what happens to public prompts, and nothing of what is private."""
    heard: list[str] = []
    await reader.add_listener("letta", lambda *args: heard.append(str(args[-1])))
    public, private = f"at://{DID}", f"{SPACE}/{DID}"
    async with opened(database) as store:
        rows = [
            change(AGENT, CANARY, agent("new"), space=SPACE),
            change(COMPILED_PROMPT, CANARY, prompt(f"{private}/{AGENT}/{CANARY}", repo=private), space=SPACE),
        ]
        await Spaces(store).move(move(None, 1, *rows, space=SPACE), NOW)
        await Spaces(store).move(move(1, 2, replace(rows[1], cid=None, record=None), space=SPACE), NOW)
        await store.apply(batch_of(change(AGENT, "a", agent("new"))), NOW)
        await store.apply(batch_of(change(COMPILED_PROMPT, "p", prompt(f"{public}/{AGENT}/a", repo=public))), NOW)
    await reader.fetch("select 1")
    assert len(heard) == 1
    assert CANARY not in heard[0]


async def test_password_is_asked(dashboard: str) -> None:
    """The roles of these tests sign in as on any server: without the password nobody gets in."""
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(dashboard, password="x" + PASSWORD)
