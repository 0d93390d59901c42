-- Every statement the indexer runs. {table}, {key} and {agent_uri} come from a closed list (statements.py), values only as parameters.

-- name: lock_accounts
-- Locks the account rows of these dids in did order, creating those that are missing: an upsert whose condition is
-- false locks without writing. The first statement of every writing transaction.
insert into letta_store.account (did)
select did from unnest($1::text[]) as wanted (did) order by did collate "C"
on conflict (did) do update set did = excluded.did where false;

-- name: account_states
select did, active, status, status_time, hidden, purged_rev, forgotten
from letta_store.account where did = any($1::text[]);

-- name: repo_sizes
select did, space, records, bytes, snapshot_rev from letta_store.repo where did = any($1::text[]);

-- name: agents_of_prompts
-- The agents that these prompts name now, and those that these references would name.
select p.agent_uri
from unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
join letta_store.compiled_prompt p on p.did = k.did and p.space = k.space and p.rkey = k.rkey
where p.did = any($1::text[]) and p.agent_uri is not null
union
select letta_store.record_uri(reference) from unnest($4::text[]) as r (reference)
where letta_store.record_uri(reference) is not null;

-- name: tombstones
select t.did, t.space, t.collection, t.rkey, t.rev, t.proven
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as k (did, space, collection, rkey)
join letta_store.tombstone t
    on t.did = k.did and t.space = k.space and t.collection = k.collection and t.rkey = k.rkey
where t.did = any($1::text[]);

-- name: kept_rows
select r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.proof is not null as proven, r.size
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as k (did, space, collection, rkey)
join letta_store.{table} r
    on r.did = k.did and r.space = k.space and r.collection = k.collection and r.rkey = k.rkey
where r.did = any($1::text[]);

-- name: kept_prompts
select r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.proof is not null as proven, r.size,
    r.uri, r.agent, r.agent_uri, r.content_sha256, r.core_memory_sha256, r.memfs_revision
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as k (did, space, collection, rkey)
join letta_store.compiled_prompt r on r.did = k.did and r.space = k.space and r.rkey = k.rkey
where r.did = any($1::text[]);

-- name: put_tombstones
insert into letta_store.tombstone as kept (did, space, collection, rkey, rev, proven)
select did, space, collection, rkey, rev, proven
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[])
    as t (did, space, collection, rkey, rev, proven)
on conflict (did, space, collection, rkey) do update set rev = excluded.rev, proven = excluded.proven
where (excluded.rev, excluded.proven) > (kept.rev, kept.proven);

-- name: delete_rows
delete from letta_store.{table} r
using unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[])
    as t (did, space, collection, rkey, rev, proven)
where r.did = any($1::text[]) and r.did = t.did and r.space = t.space and r.collection = t.collection
    and r.rkey = t.rkey and (r.rev, r.proof is not null) <= (t.rev, t.proven)
returning r.did, r.space, r.collection, r.rkey, r.uri, r.size, {agent_uri};

-- name: delete_recompiles
delete from letta_store.recompile h
using unnest($1::text[], $2::text[], $3::text[], $4::text[]) as t (did, space, rkey, rev)
where h.did = any($1::text[]) and h.did = t.did and h.space = t.space and h.rkey = t.rkey and h.rev <= t.rev;

-- name: delete_conversation_versions
delete from letta_store.conversation_version h
using unnest($1::text[], $2::text[], $3::text[], $4::text[]) as t (did, space, rkey, rev)
where h.did = any($1::text[]) and h.did = t.did and h.space = t.space and h.rkey = t.rkey and h.rev <= t.rev;

-- name: put_rows
-- One upsert for every table of records: newer by (rev, proof, cid), or nothing.
insert into letta_store.{table} as kept
    (did, space, collection, rkey, cid, rev, value, size, block, digests, valid, violations, proof)
select did, space, collection, rkey, cid, rev, value::jsonb, size, block, digests::jsonb, valid, violations::jsonb, proof
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
    $9::bytea[], $10::text[], $11::boolean[], $12::text[], $13::text[])
    as new (did, space, collection, rkey, cid, rev, value, size, block, digests, valid, violations, proof)
on conflict ({key}) do update set
    cid = excluded.cid, rev = excluded.rev, value = excluded.value, size = excluded.size, block = excluded.block,
    digests = excluded.digests, valid = excluded.valid, violations = excluded.violations, proof = excluded.proof,
    indexed_at = excluded.indexed_at
where (excluded.rev, excluded.proof is not null, excluded.cid) > (kept.rev, kept.proof is not null, kept.cid)
returning did, space, collection, rkey, uri, cid, size;

-- name: put_recompiles
-- History of prompts whose row is the version itself: its columns are at hand.
insert into letta_store.recompile (did, space, rkey, rev, cid, compiled_at, raw_system_hash, memfs_revision,
    content_bytes, content_sha256, core_memory_sha256, value)
select p.did, p.space, p.rkey, p.rev, p.cid, p.compiled_at, p.raw_system_hash, p.memfs_revision,
    p.content_bytes, p.content_sha256, p.core_memory_sha256, case when $4 then p.value end
from unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
join letta_store.compiled_prompt p on p.did = k.did and p.space = k.space and p.rkey = k.rkey
where p.did = any($1::text[])
on conflict do nothing;

-- name: put_passed_recompiles
-- History of versions that are not (or no longer) the row.
insert into letta_store.recompile (did, space, rkey, rev, cid, compiled_at, raw_system_hash, memfs_revision,
    content_bytes, content_sha256, core_memory_sha256, value)
select did, space, rkey, rev, cid,
    letta_store.instant(letta_store.text_at(value, 'compiledAt')), letta_store.text_at(value, 'rawSystemHash'),
    letta_store.text_at(value, 'memfsRevision'), octet_length(letta_store.text_at(value, 'content')),
    letta_store.sha256_at(value, digests, 'content'), letta_store.sha256_at(value, digests, 'coreMemory'),
    case when $8 then value end
from (
    select did, space, rkey, rev, cid, value::jsonb as value, digests::jsonb as digests
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
        as v (did, space, rkey, rev, cid, value, digests)
) v
on conflict do nothing;

-- name: put_conversation_versions
insert into letta_store.conversation_version (did, space, rkey, rev, cid, agent, role)
select did, space, rkey, rev, cid, letta_store.text_at(value, 'agent'), letta_store.text_at(value, 'role')
from (
    select did, space, rkey, rev, cid, value::jsonb as value
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        as v (did, space, rkey, rev, cid, value)
) v
on conflict do nothing;

-- name: count_repos
-- Adds to what is kept of each repository; a repository is tracked from its first row on.
insert into letta_store.repo as kept (did, space, records, bytes)
select did, space, records, bytes from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
    as more (did, space, records, bytes)
on conflict (did, space) do update
set records = kept.records + excluded.records, bytes = kept.bytes + excluded.bytes;

-- name: put_account_states
update letta_store.account a
set active = new.active, status = new.status, status_time = new.status_time
from unnest($1::text[], $2::boolean[], $3::text[], $4::timestamptz[]) as new (did, active, status, status_time)
where a.did = any($1::text[]) and a.did = new.did;

-- name: put_handles
update letta_store.account a
set handle = new.handle, handle_time = new.handle_time
from unnest($1::text[], $2::text[], $3::timestamptz[]) as new (did, handle, handle_time)
where a.did = any($1::text[]) and a.did = new.did
    and (new.handle_time, coalesce(new.handle, '')) > (a.handle_time, coalesce(a.handle, ''));

-- name: put_purged_revs
update letta_store.account a
set purged_rev = greatest(a.purged_rev, new.purged_rev)
from unnest($1::text[], $2::text[]) as new (did, purged_rev)
where a.did = any($1::text[]) and a.did = new.did;

-- name: purge_rows
-- All rows of these accounts at or below their purged rev.
delete from letta_store.{table} r
using unnest($1::text[], $2::text[]) as gone (did, rev)
where r.did = any($1::text[]) and r.did = gone.did and r.rev <= gone.rev
returning r.did, r.space, r.collection, r.rkey, r.uri, r.size, {agent_uri};

-- name: purge_unlisted
-- History and tombstones of these accounts at or below their purged rev.
delete from letta_store.{table} r
using unnest($1::text[], $2::text[]) as gone (did, rev)
where r.did = any($1::text[]) and r.did = gone.did and r.rev <= gone.rev;

-- name: agents_of_accounts
select uri from letta_store.agent where did = any($1::text[]);

-- name: prompts_of_agents
-- Which (did, space, agent) have prompts that name these agents, in any repository.
select distinct p.did, p.space, p.agent_uri
from unnest($1::text[]) as a (uri)
join letta_store.compiled_prompt p
    on hashtextextended(p.agent_uri, 0) = hashtextextended(a.uri, 0) and p.agent_uri = a.uri;

-- name: forget_freshness
-- A prompt that names no agent any more has nothing to be compared with.
update letta_store.compiled_prompt p
set freshness = 'unverified', stale_reasons = '{}', stale_since = null, evidence = null
from unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
where p.did = any($1::text[]) and p.did = k.did and p.space = k.space and p.rkey = k.rkey
    and p.agent_uri is null and p.freshness <> 'unverified';

-- name: refresh_freshness
select did, space, rkey, uri, cid, agent, was, freshness, stale_reasons
from letta_store.refresh_freshness($1::text[], $2::text[], $3::text[]);

-- name: notify
select pg_notify('letta', payload) from unnest($1::text[]) as news (payload);

-- name: put_dead_letters
insert into letta_store.dead_letter (source, position, did, reason, detail, frame, size)
select source, position, did, reason, detail, frame, size
from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::integer[])
    as letter (source, position, did, reason, detail, frame, size);

-- name: bound_dead_letters
-- Keeps the newest $1 rows, $2 bytes, and nothing older than $3.
delete from letta_store.dead_letter
where seen_at < $3 or id <= coalesce((
    select max(id) from (
        select id, row_number() over (order by id desc) as rows,
            sum(coalesce(length(frame), 0) + 256) over (order by id desc) as bytes
        from letta_store.dead_letter) kept
    where kept.rows > $1 or kept.bytes > $2), 0);

-- name: put_cursors
insert into letta_store.cursor as kept (source, seq, event_time, updated_at)
select source, seq, event_time, $4 from unnest($1::text[], $2::bigint[], $3::timestamptz[])
    as position (source, seq, event_time)
on conflict (source) do update set seq = excluded.seq, updated_at = excluded.updated_at,
    event_time = coalesce(excluded.event_time, kept.event_time);

-- name: put_source_state
insert into letta_store.cursor (source, state, detail, updated_at) values ($1, $2, $3, $4)
on conflict (source) do update set state = excluded.state, detail = excluded.detail, updated_at = excluded.updated_at;

-- name: cursors
select source, seq, event_time from letta_store.cursor where source = any($1::text[]);

-- name: schema_version
select max(version) from letta_store.schema_version;

-- name: has_schema
select to_regclass('letta_store.schema_version') is not null;

-- name: is_empty
-- Whether this database has no schema of ours and no other table: only then is one created.
select not exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
        and n.nspname not like 'pg_toast%' and n.nspname not like 'pg_temp%');

-- name: lock_creation
select pg_advisory_xact_lock(7815838946018);

-- name: encoding
select current_setting('server_encoding');

-- name: prompts_by_freshness
select freshness, count(*) as prompts from letta_store.compiled_prompt group by freshness order by freshness;

-- name: stale_prompts_by_reason
select reason, count(*) as prompts from letta_store.compiled_prompt, unnest(stale_reasons) as r (reason)
where freshness = 'stale' group by reason order by reason;

-- name: status_sources
select source, seq, event_time, state, detail, updated_at from letta.source order by source;

-- name: status_repos
select case when hidden then 'hidden' else 'active' end as state, count(*) as repos from letta.repo group by 1 order by 1;

-- name: status_records
select collection, count(*) as records, count(*) filter (where verified) as verified,
    count(*) filter (where valid is false) as invalid
from letta.record group by collection order by collection;

-- name: status_prompts
select freshness, count(*) as prompts from letta.compiled_prompt group by freshness order by freshness;

-- name: status_dead_letters
select reason, count(*) as letters from letta.dead_letter group by reason order by reason;

-- name: status_issues
select kind, severity, count(*) as issues from letta.integrity_issue group by kind, severity order by kind;

-- name: stale
select uri, agent, conversation, stale_reasons, stale_since, evidence
from letta.stale_prompt order by stale_since, uri;
