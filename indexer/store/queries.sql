-- Every statement the indexer runs, but for those of the page. What is in braces comes from a closed list (statements.py),
-- values only as parameters. $1::lines is an array of texts that is passed as one text, a line each: the driver takes 0.6
-- microseconds for each element of an array, which for keys and records is more than all else it does.

-- name: plan_once
set local plan_cache_mode = force_generic_plan;

-- name: plan_anew
set local plan_cache_mode = force_custom_plan;

-- name: still_here
-- The server ends a transaction whose client is silent for long.
select;

-- name: lock_accounts
-- Locks the account rows of these dids in did order, creating those that are missing: an upsert whose condition is
-- false locks without writing. Of the dids in $2 those that are there are locked too, and with $3 every tracked account
-- that is hidden. The first statement of every writing transaction.
insert into letta_store.account (did)
select did from (
    select did from unnest($1::text[]) as wanted (did)
    union
    select a.did from letta_store.account a where a.did = any($2::text[])
    union
    select a.did from letta_store.account a join letta_store.repo r on r.did = a.did where $3 and a.hidden) d
order by did collate "C"
on conflict (did) do update set did = excluded.did where false;

-- name: account_states
-- What is known of these accounts: a row for each of their repositories, or one without any (space is null).
select a.did, a.active, a.status, a.status_time, a.hidden, a.purged_rev, a.forgotten,
    r.space, r.records, r.bytes, r.marks, r.rev, r.data_cid, r.snapshot_rev
from letta_store.account a left join letta_store.repo r on r.did = a.did
where a.did = any($1::text[]);

-- name: kept_rows
-- What is there of these keys: rows, and tombstones (cid is null).
select r.did, r.space, r.collection, r.rkey, r.rev, r.proof is not null as proven, r.cid, r.size, r.uri, {shown}
from unnest($1::lines, $2::lines, $3::lines, $4::lines) as k (did, space, collection, rkey)
join letta_store.{table} r
    on r.did = k.did and r.space = k.space and r.collection = k.collection and r.rkey = k.rkey
union all
select t.did, t.space, t.collection, t.rkey, t.rev, t.proven, null, null, null, {not_shown}
from unnest($1::lines, $2::lines, $3::lines, $4::lines) as k (did, space, collection, rkey)
join letta_store.tombstone t
    on t.did = k.did and t.space = k.space and t.collection = k.collection and t.rkey = k.rkey;

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
returning r.did, r.space, r.collection, r.rkey, r.uri, r.size, {prompt};

-- name: delete_recompiles
delete from letta_store.recompile h
using unnest($1::text[], $2::text[], $3::text[], $4::text[]) as t (did, space, rkey, rev)
where h.did = any($1::text[]) and h.did = t.did and h.space = t.space and h.rkey = t.rkey and h.rev <= t.rev
returning h.did, h.space;

-- name: delete_conversation_versions
delete from letta_store.conversation_version h
using unnest($1::text[], $2::text[], $3::text[], $4::text[]) as t (did, space, rkey, rev)
where h.did = any($1::text[]) and h.did = t.did and h.space = t.space and h.rkey = t.rkey and h.rev <= t.rev
returning h.did, h.space;

-- name: put_rows
-- One upsert for every table of records: newer by (rev, proof, cid), or nothing.
insert into letta_store.{table} as kept
    (did, space, collection, rkey, cid, rev, value, size, block, digests, valid, violations, proof{facts})
select did, space, collection, rkey, cid, rev, value::jsonb, size, block, digests::jsonb, valid, violations::jsonb,
    proof{facts}
from unnest($1::lines, $2::lines, $3::lines, $4::lines, $5::lines, $6::lines, $7::lines, $8::integer[],
    $9::bytea[], $10::lines, $11::boolean[], $12::lines, $13::lines{fact_arrays})
    as new (did, space, collection, rkey, cid, rev, value, size, block, digests, valid, violations, proof{facts})
on conflict ({key}) do update set
    cid = excluded.cid, rev = excluded.rev, value = excluded.value, size = excluded.size, block = excluded.block,
    digests = excluded.digests, valid = excluded.valid, violations = excluded.violations, proof = excluded.proof,
    indexed_at = excluded.indexed_at{new_facts}
where (excluded.rev, excluded.proof is not null, excluded.cid) > (kept.rev, kept.proof is not null, kept.cid)
returning did, space, collection, rkey, uri, cid, {shown};

-- name: put_recompiles
-- History of prompts whose row is the version itself: its columns are at hand.
insert into letta_store.recompile (did, space, rkey, rev, cid, compiled_at, raw_system_hash, memfs_revision,
    content_bytes, content_sha256, core_memory_sha256, value)
select p.did, p.space, p.rkey, p.rev, p.cid, p.compiled_at, p.raw_system_hash, p.memfs_revision,
    p.content_bytes, p.content_sha256, p.core_memory_sha256, case when $4 then p.value end
from unnest($1::lines, $2::lines, $3::lines) as k (did, space, rkey)
join letta_store.compiled_prompt p on p.did = k.did and p.space = k.space and p.rkey = k.rkey
on conflict do nothing
returning did, space;

-- name: put_passed_recompiles
-- History of versions that are not (or no longer) the row; of some that were overridden in a space before we saw them
-- the CID is all that is known.
insert into letta_store.recompile (did, space, rkey, rev, ordinal, cid, superseded, compiled_at, raw_system_hash,
    memfs_revision, content_bytes, content_sha256, core_memory_sha256, value)
select did, space, rkey, rev, ordinal, cid, value is null,
    letta_store.instant(letta_store.text_at(value, 'compiledAt')), letta_store.text_at(value, 'rawSystemHash'),
    letta_store.text_at(value, 'memfsRevision'), content_bytes, content_sha256, core_memory_sha256,
    case when $11 then value end
from (
    select did, space, rkey, rev, ordinal, cid, value::jsonb as value, content_bytes, content_sha256, core_memory_sha256
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::integer[],
        $9::text[], $10::text[])
        as v (did, space, rkey, rev, ordinal, cid, value, content_bytes, content_sha256, core_memory_sha256)
) v
on conflict do nothing
returning did, space;

-- name: put_conversation_versions
insert into letta_store.conversation_version (did, space, rkey, rev, cid, agent, role)
select did, space, rkey, rev, cid, letta_store.text_at(value, 'agent'), letta_store.text_at(value, 'role')
from (
    select did, space, rkey, rev, cid, value::jsonb as value
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        as v (did, space, rkey, rev, cid, value)
) v
on conflict do nothing
returning did, space;

-- name: put_repos
-- Adds to what is kept of each repository, and notes its last proven state where commits led it on (rev is '' where none
-- did). A repository is tracked from its first row on.
insert into letta_store.repo as kept (did, space, records, bytes, marks, rev, data_cid)
select did, space, records, bytes, marks, rev, data_cid
from unnest($1::lines, $2::lines, $3::bigint[], $4::bigint[], $5::bigint[], $6::lines, $7::lines)
    as new (did, space, records, bytes, marks, rev, data_cid)
on conflict (did, space) do update set records = kept.records + excluded.records,
    bytes = kept.bytes + excluded.bytes, marks = kept.marks + excluded.marks, rev = greatest(kept.rev, excluded.rev),
    data_cid = case when excluded.rev > kept.rev then excluded.data_cid else kept.data_cid end;

-- name: put_account_states
update letta_store.account a
set active = new.active, status = new.status, status_time = new.status_time
from unnest($1::text[], $2::boolean[], $3::text[], $4::timestamptz[]) as new (did, active, status, status_time)
where a.did = any($1::text[]) and a.did = new.did;

-- name: put_handles
update letta_store.account a
set handle = new.handle, handle_time = new.handle_time
from unnest($1::text[], $2::text[], $3::timestamptz[]) as new (did, handle, handle_time)
where a.did = any($1::text[]) and a.did = new.did and not a.forgotten
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
returning r.did, r.space, r.collection, r.rkey, r.uri, r.size, {prompt};

-- name: purge_unlisted
-- History and tombstones of these accounts at or below their purged rev.
delete from letta_store.{table} r
using unnest($1::text[], $2::text[]) as gone (did, rev)
where r.did = any($1::text[]) and r.did = gone.did and r.rev <= gone.rev
returning r.did, r.space;

-- name: agents_of_accounts
select uri from letta_store.agent where did = any($1::text[]);

-- name: agents_named_by_accounts
-- The agents that prompts of these accounts at or below their purged rev name.
select distinct p.agent_uri
from unnest($1::text[], $2::text[]) as gone (did, rev)
join letta_store.compiled_prompt p on p.did = gone.did and p.rev <= gone.rev
where p.did = any($1::text[]) and p.agent_uri is not null;

-- name: prompts_of_agents
-- Which (did, space, agent) have prompts that name these agents, in any repository.
select distinct p.did, p.space, p.agent_uri
from unnest($1::text[]) as a (uri)
join letta_store.compiled_prompt p
    on p.agent_hash = hashtextextended(a.uri, 0) and p.agent_uri = a.uri;

-- name: drop_flags
-- Those of prompts that are gone.
delete from letta_store.freshness f
using unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
where f.did = any($1::text[]) and f.did = k.did and f.space = k.space and f.rkey = k.rkey;

-- name: refresh
-- Brings the flags of prompts in line with their definition; the changed. Each row names prompts of one agent (or of none) in
-- one repository, by their keys with spaces in between. All others of that agent are looked at as well where that is
-- asked for, or its latest prompt is among those named, or isn't later than what was. The order of the prompts of an
-- agent is that of the index on agents: without it some plans go through all prompts of the repository.
insert into letta_store.freshness as kept (did, space, rkey, freshness, stale_reasons)
select p.did, p.space, p.rkey, j.freshness, j.stale_reasons
from (
    select
        x.did, k.space, k.agent_uri, k.rkeys, f.*,
        k.whole or f.latest = any(k.rkeys) or (k.was_dated, k.was_at, k.was collate "C") > (
            f.latest_at is not null, coalesce(f.latest_at, '-infinity'), f.latest) as whole
    from (
        select did, space, agent_uri, string_to_array(rkeys, ' ') as rkeys, whole, was_at is not null as was_dated,
            coalesce(was_at, '-infinity') as was_at, was
        from unnest($1::lines, $2::lines, $3::lines, $4::lines, $5::boolean[], $6::timestamptz[], $7::lines)
            as asked (did, space, agent_uri, rkeys, whole, was_at, was)) k
    join letta_store.account x on x.did = k.did
    cross join lateral letta_store.pair_facts(x.did, k.space, k.agent_uri) f
    offset 0) k
cross join lateral (
    select * from (
        select p.did, p.space, p.rkey, p.template_hash, p.memfs_revision, p.digests, p.compiled_at
        from letta_store.compiled_prompt p
        where k.whole and p.agent_hash = hashtextextended(k.agent_uri, 0)
            and p.did = k.did and p.space = k.space and p.agent_uri = k.agent_uri
        order by p.compiled_at desc nulls last, p.rkey desc offset 0) p
    union all
    select p.*
    from unnest(k.rkeys) as named (rkey)
    cross join lateral (
        select p.did, p.space, p.rkey, p.template_hash, p.memfs_revision, p.digests, p.compiled_at
        from letta_store.compiled_prompt p
        where p.did = k.did and p.space = k.space and p.rkey = named.rkey
            and p.agent_uri is not distinct from k.agent_uri offset 0) p
    where k.whole is not true) p
left join letta_store.freshness f on f.did = p.did and f.space = p.space and f.rkey = p.rkey
cross join lateral letta_store.judgement(
    p.template_hash, coalesce(p.digests ->> 'memfsRevision', p.memfs_revision), p.compiled_at,
    k.latest_template, k.latest_memory, k.latest_at, k.agent_template, k.agent_memory) j
where f.freshness is distinct from j.freshness or f.stale_reasons is distinct from j.stale_reasons
on conflict (did, space, rkey) do update set
    freshness = excluded.freshness, stale_reasons = excluded.stale_reasons, was = kept.freshness
returning kept.did, kept.space, kept.rkey, kept.was, kept.freshness, kept.stale_reasons;

-- name: named_prompts
select p.did, p.space, p.rkey, p.uri, p.cid, p.agent
from unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
join letta_store.compiled_prompt p on p.did = k.did and p.space = k.space and p.rkey = k.rkey;

-- name: notify
select pg_notify('letta', payload) from unnest($1::text[]) as news (payload);

-- name: put_dead_letters
-- Nothing of an account that was forgotten is kept.
insert into letta_store.dead_letter (source, position, did, reason, detail, frame, size)
select letter.source, letter.position, letter.did, letter.reason, letter.detail, letter.frame, letter.size
from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::integer[])
    as letter (source, position, did, reason, detail, frame, size)
left join (select did from letta_store.account where did = any($3::text[]) and forgotten offset 0) f on f.did = letter.did
where f.did is null;

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
-- Version 1 had no compatible_from.
select version, coalesce((to_jsonb(v) ->> 'compatible_from')::integer, version) as compatible_from
from letta_store.schema_version v order by version desc limit 1;

-- name: put_version
insert into letta_store.schema_version (version, compatible_from) values ($1, $2);

-- name: share_schema
-- Held by every connection that works with the schema, until it ends: indexer/store/migrations.py.
select pg_advisory_lock_shared(7815838946019);

-- name: try_own_schema
select pg_try_advisory_xact_lock(7815838946019);

-- name: unlimited_time
set local statement_timeout = 0;

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

-- name: keep_creation
-- The same until the connection ends.
select pg_advisory_lock(7815838946018);

-- name: encoding
select current_setting('server_encoding');

-- name: create_reader
-- The role that a dump grants its views to, as schema.sql makes it: dumps hold no roles.
do $$
begin
    if not exists (select from pg_roles where rolname = 'letta_reader') then
        create role letta_reader nologin;
    end if;
exception
    when duplicate_object or unique_violation then null;
end
$$;

-- name: analyze
analyze;

-- name: prompts_by_freshness
select freshness, count(*) as prompts from letta_store.freshness group by freshness order by freshness;

-- name: stale_prompts_by_reason
select reason, count(*) as prompts from letta_store.freshness, unnest(stale_reasons) as r (reason)
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

-- Chains, pending and wants.

-- name: put_wants
-- A want on each of these repositories, tracked from now on. What pending may settle ('decide') raises no bar for a
-- fetch that is under way; a fetch wanted anew does. What somebody asks for ($6 by reason) doesn't wait for a backoff.
insert into letta_store.repo as kept (did, space, want, want_no, wanted_rev, want_reasons, next_attempt_at, wanted_since)
select did, '', want, 1, rev, reasons, $5, $5
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as w (did, want, rev, reason),
    lateral (select array[reason] as reasons) r
on conflict (did, space) do update set
    want = case when kept.want = 'fetch' then 'fetch' else excluded.want end,
    want_no = kept.want_no + case when excluded.want = 'fetch' or kept.want is null then 1 else 0 end,
    wanted_rev = greatest(kept.wanted_rev, excluded.wanted_rev),
    wanted_since = case when kept.want is null then excluded.wanted_since else kept.wanted_since end,
    want_reasons = case when kept.want is null then excluded.want_reasons
        when excluded.want_reasons <@ kept.want_reasons then kept.want_reasons
        else kept.want_reasons || excluded.want_reasons end,
    attempts = case when excluded.want_reasons <@ $6::text[] then 0 else kept.attempts end,
    next_attempt_at = case when excluded.want_reasons <@ $6::text[] then excluded.next_attempt_at
        when kept.want is null then greatest(kept.next_attempt_at, excluded.next_attempt_at)
        else kept.next_attempt_at end;

-- name: check_hidden
-- Accounts that were away when we stopped hearing of them may be back.
update letta_store.account a set check_at = $1, checks = 0
where a.hidden and not a.forgotten and exists (select from letta_store.repo r where r.did = a.did);

-- name: want_every_repo
-- But those that are wanted for the same already, with no fetch of them under way.
update letta_store.repo as kept
set want = 'fetch', want_no = want_no + 1, wanted_since = case when want is null then $2 else wanted_since end,
    want_reasons = case when want is null then array[$1::text]
        when $1::text = any(want_reasons) then want_reasons else want_reasons || $1::text end
where space = '' and not coalesce(want = 'fetch' and $1::text = any(want_reasons) and claim_id is null, false);

-- name: meet_fetch_wants
-- A proven head equal to what is held: whatever was wanted up to it is here. A claim on such a want ends with it.
update letta_store.repo r
set want = null, wanted_rev = null, want_reasons = '{}', attempts = 0, behind = 0, last_error = null, claim_id = null,
    lease_until = null
from unnest($1::text[], $2::text[], $3::text[]) as head (did, rev, data)
left join (select did from letta_store.pending where did = any($1::text[]) and space = '' offset 0) p on p.did = head.did
where r.did = any($1::text[]) and r.did = head.did and r.space = '' and r.rev = head.rev and r.data_cid = head.data
    and r.want = 'fetch'
    and (r.wanted_rev is not null and r.wanted_rev <= head.rev)
    and r.want_reasons <@ $4::text[]
    and p.did is null;

-- name: pending_sizes
select did, count(*) as frames, sum(length(frame)) as bytes
from letta_store.pending where did = any($1::text[]) group by did;

-- name: pending_digests
select did, rev, digest from letta_store.pending where did = any($1::text[]) and space = '' and digest = any($2::text[]);

-- name: pending_total
select count(*) as frames, coalesce(sum(length(frame)), 0)::bigint as bytes from letta_store.pending;

-- name: put_pending
insert into letta_store.pending (did, space, rev, digest, source, reason, frame)
select did, '', rev, digest, source, reason, frame
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[])
    as p (did, rev, digest, source, reason, frame)
on conflict do nothing;

-- name: drop_pending
delete from letta_store.pending p
using unnest($1::text[], $2::text[], $3::text[]) as gone (did, rev, digest)
where p.did = any($1::text[]) and p.did = gone.did and p.space = '' and p.rev = gone.rev and p.digest = gone.digest;

-- name: purge_pending
delete from letta_store.pending where did = any($1::text[]);

-- name: pending_of
select rev, digest, source, reason, frame from letta_store.pending where did = $1 and space = '' order by rev, digest;

-- name: put_probes
-- As many as there is room for among $3; how many there wasn't.
with stranger as (
    select p.did from unnest($1::text[]) as p (did)
    left join (select did from letta_store.repo where did = any($1::text[]) offset 0) r on r.did = p.did
    left join (select did from letta_store.account where did = any($1::text[]) and forgotten offset 0) f on f.did = p.did
    left join (select did from letta_store.probe where did = any($1::text[]) offset 0) known on known.did = p.did
    where r.did is null and f.did is null and known.did is null
), put as (
    insert into letta_store.probe (did, next_attempt_at)
    select did, $2 from stranger limit greatest(0, $3 - (select count(*) from letta_store.probe))
    on conflict do nothing returning did
)
select (select count(*) from stranger) - (select count(*) from put) as dropped;

-- name: tracked
select r.did, r.rev, a.signing_key
from letta_store.repo r join letta_store.account a on a.did = r.did where r.space = '';

-- Repair: claims, settling, reconciling.

-- name: due_wants
-- Of accounts that are hidden only what pending may settle: their hosts give nothing out.
select r.did from letta_store.repo r join letta_store.account a on a.did = r.did
where r.want is not null and r.space = '' and r.next_attempt_at <= $1
    and coalesce(r.lease_until, $1) <= $1 and (r.want = 'decide' or not a.hidden) and r.attempts <= $3
order by r.next_attempt_at limit $2;

-- name: claim_want
update letta_store.repo r
set claim_id = $2, lease_until = $4, attempts = r.attempts + 1
from letta_store.account a
where r.did = $1 and r.space = '' and r.want is not null and coalesce(r.lease_until, $3) <= $3
    and r.next_attempt_at <= $3 and a.did = r.did
returning r.did, r.claim_id, r.rev, r.want, r.want_no, r.want_reasons, r.wanted_rev, r.attempts, r.behind, a.status,
    a.hidden, a.status_time, a.purged_rev, a.signing_key;

-- name: renew_claim
-- The claim as it stands now, before what is begun for it: all that was wanted until here is met by that.
update letta_store.repo r
set lease_until = $3
from letta_store.account a
where r.did = $1 and r.space = '' and r.claim_id = $2 and r.want is not null and a.did = r.did
returning r.did, r.claim_id, r.rev, r.want, r.want_no, r.want_reasons, r.wanted_rev, r.attempts, r.behind, a.status,
    a.hidden, a.status_time, a.purged_rev, a.signing_key;

-- name: extend_leases
update letta_store.repo r
set lease_until = $3
from unnest($1::text[], $2::uuid[]) as held (did, claim_id)
where r.did = any($1::text[]) and r.did = held.did and r.space = '' and r.claim_id = held.claim_id;

-- name: claim_state
select r.claim_id, r.want, a.hidden, a.purged_rev
from letta_store.repo r join letta_store.account a on a.did = r.did where r.did = $1 and r.space = '';

-- name: pending_left
select count(*) from letta_store.pending where did = $1 and space = '';

-- name: clear_want
update letta_store.repo
set want = null, wanted_rev = null, want_reasons = '{}', attempts = 0, behind = 0, last_error = null,
    claim_id = null, lease_until = null, next_attempt_at = $3
where did = $1 and space = '' and want_no = $2
returning did;

-- name: keep_deciding
-- Fetched; what is pending above the snapshot is decided next.
update letta_store.repo set want = 'decide', wanted_rev = null, behind = 0
where did = $1 and space = '' and want_no = $2
returning did;

-- name: release_want
update letta_store.repo
set claim_id = null, lease_until = null, next_attempt_at = $3, last_error = coalesce($4, last_error), behind = behind + $5
where did = $1 and space = '' and claim_id = $2;

-- name: end_claim
-- What was wanted when this was claimed is met; what was wanted since is taken on next.
update letta_store.repo
set claim_id = null, lease_until = null, next_attempt_at = $3, attempts = 0, behind = 0, last_error = null
where did = $1 and space = '' and claim_id = $2;

-- name: retry_wants
-- A run of its own tries everything anew, whatever the tries of earlier ones came to.
update letta_store.repo set attempts = 0, next_attempt_at = default where want is not null;

-- name: repo_rows
-- Every row of one repository: what a snapshot is compared with.
select did, space, collection, rkey, cid, rev, proof is not null as proven, size, uri, {prompt}
from letta_store.{table} r where did = $1 and space = $2;

-- name: raise_proofs
update letta_store.{table} r set proof = 'repo'
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as k (did, space, collection, rkey)
where r.did = any($1::text[]) and r.did = k.did and r.space = k.space and r.collection = k.collection
    and r.rkey = k.rkey and r.proof is null;

-- name: drop_rows
delete from letta_store.{table} r
using unnest($1::text[], $2::text[], $3::text[], $4::text[]) as k (did, space, collection, rkey)
where r.did = any($1::text[]) and r.did = k.did and r.space = k.space and r.collection = k.collection
    and r.rkey = k.rkey
returning r.did, r.space, r.collection, r.rkey, r.uri, r.size, {prompt};

-- name: drop_tombstones
-- Those that a snapshot has the say over, of paths with one of the prefixes $5.
delete from letta_store.tombstone where did = $1 and space = '' and (rev <= $2 or ($3 and not proven) or $4)
    and exists (select from unnest($5::text[]) as p (prefix) where starts_with(collection || '/' || rkey, p.prefix))
returning did, space;

-- name: drop_pending_up_to
-- Commits at or below a rev, and those with these digests.
delete from letta_store.pending where did = $1 and space = '' and (rev <= $2 or digest = any($3::text[]));

-- name: drop_versions_above
-- Versions of these keys above a rev: they didn't happen, or don't count any more.
delete from letta_store.{table} h
using unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
where h.did = any($1::text[]) and h.did = k.did and h.space = k.space and h.rkey = k.rkey and h.rev > $4
returning h.did, h.space;

-- name: put_snapshot
insert into letta_store.repo as kept (did, space, rev, data_cid, snapshot_rev) values ($1, '', $2, $3, $2)
on conflict (did, space) do update set
    snapshot_rev = case when $4 then excluded.snapshot_rev else greatest(kept.snapshot_rev, excluded.snapshot_rev) end,
    rev = case when $4 or excluded.rev >= kept.rev then excluded.rev else kept.rev end,
    data_cid = case when $4 or excluded.rev >= kept.rev then excluded.data_cid else kept.data_cid end;

-- name: untrack
-- An account that does not exist: nothing of it is kept but what may have been purged with it.
delete from letta_store.repo where did = $1 and space = '' and records = 0 and marks = 0 returning did;

-- name: fetch_instead
-- What is pending of this repository won't be decided while nobody knows the account.
update letta_store.repo set want = 'fetch' where did = $1 and space = '' and want is not null;

-- Accounts: identities and checks.

-- name: note_identities
-- What is known of these identities may have changed: keys are not believed until they are resolved again.
update letta_store.account a set signing_key = null, check_at = $2, checks = 0
where a.did = any($1::text[]) and exists (select from letta_store.repo r where r.did = a.did);

-- name: put_checks
update letta_store.account a set check_at = $2, checks = 0
where a.did = any($1::text[]) and exists (select from letta_store.repo r where r.did = a.did);

-- name: put_identity
-- Not over an identity event that came after the resolution began ($5): that one is resolved anew. A check that was
-- put off (checks > 0) is for a later time, but not about anything later.
update letta_store.account
set signing_key = $2, pds = $3, handle = $4, resolved_at = $6,
    check_at = case when (check_at <= $5 or checks > 0) and status = 'active' then null else check_at end
where did = $1 and not forgotten and (check_at is null or check_at <= $5 or checks > 0)
returning did;

-- name: due_checks
select a.did, a.status, a.active, a.status_time, a.hidden, a.checks, coalesce(r.rev, '') as rev
from letta_store.account a left join letta_store.repo r on r.did = a.did and r.space = ''
where a.check_at is not null and a.check_at <= $1 order by a.check_at limit $2;

-- name: postpone_check
update letta_store.account set check_at = $2, checks = checks + 1 where did = $1 and check_at <= $3;

-- name: end_check
update letta_store.account set check_at = null, checks = 0 where did = $1 and check_at <= $2;

-- name: due_probes
select did, attempts from letta_store.probe where next_attempt_at <= $1 order by next_attempt_at limit $2;

-- name: postpone_probe
update letta_store.probe set attempts = attempts + 1, next_attempt_at = $2 where did = $1;

-- name: end_probe
delete from letta_store.probe where did = $1;

-- name: forget_account
update letta_store.account set forgotten = true, handle = null, signing_key = null, pds = null, check_at = null
where did = $1;

-- name: purge_probes
delete from letta_store.probe where did = any($1::text[]);

-- name: forgotten
select did from letta_store.account where did = any($1::text[]) and forgotten order by did;

-- name: purge_letters
-- What was set aside may hold an account's content.
delete from letta_store.dead_letter where did = any($1::text[]);

-- name: empty_letters
-- A record was deleted: the frames of its account that were set aside may hold its content.
update letta_store.dead_letter set frame = null where did = any($1::text[]) and length(frame) > 0;

-- name: rows_after
-- A page of rows in key order, for the audit: at most $1, after the key that follows.
select did, space, collection, rkey, uri, cid, rev, value::text as value, block, proof is not null as proven{facts}
from letta_store.{table} where ({key}) > ({after})
order by {key} limit $1;

-- name: accounts_after
-- A page of accounts in did order, for the audit.
select did from letta_store.account where did > $1 order by did limit $2;

-- name: untrue_flags
-- Prompts of the accounts after $1 up to $2 whose stored flags are not what the defining view computes, and flags
-- without a prompt.
select
    letta_store.uri_of(coalesce(k.did, t.did), coalesce(k.space, t.space), 'xyz.quasigod.lab.letta.compiledPrompt',
        coalesce(k.rkey, t.rkey)) as uri,
    k.freshness as stored, t.freshness as computed, k.stale_reasons as stored_reasons, t.stale_reasons as computed_reasons
from (select * from letta_store.freshness where did > $1 and did <= $2) k
full join (select * from letta_store.freshness_truth where did > $1 and did <= $2) t
    on t.did = k.did and t.space = k.space and t.rkey = k.rkey
where k.freshness is distinct from t.freshness or k.stale_reasons is distinct from t.stale_reasons
order by uri;

-- name: agents_of_keys
-- The agents that these prompts name.
select p.did, p.space, p.rkey, p.agent_uri
from unnest($1::text[], $2::text[], $3::text[]) as k (did, space, rkey)
join letta_store.compiled_prompt p on p.did = k.did and p.space = k.space and p.rkey = k.rkey;

-- name: audited_repos
select r.did, r.rev, r.want, a.pds from letta_store.repo r join letta_store.account a on a.did = r.did
where r.space = '' and not a.hidden order by r.did;

-- name: repo_head
select rev from letta_store.repo where did = $1 and space = '';

-- name: repo_cids
select collection || '/' || rkey as path, cid, rev from letta_store.{table} where did = $1 and space = '';

-- name: untrack_all
delete from letta_store.repo where did = $1;

-- name: wants_by_reason
select reason, count(*) as repos from letta_store.repo, unnest(want_reasons) as w (reason)
where want is not null group by reason order by reason;

-- name: open_wants
-- How many wants are open, and how many of them have been tried $1 times in vain.
select count(*) as open,
    count(*) filter (where r.attempts >= $1 and (r.lease_until is null or r.lease_until <= $2)) as failed
from letta_store.repo r join letta_store.account a on a.did = r.did
where r.want is not null and (not a.hidden or (r.want = 'decide' and r.attempts < $1))
    and ($3::text[] is null or r.did = any($3::text[])) and r.did <> all($4::text[]);

-- name: kept_records
select coalesce(sum(records), 0)::bigint as records from letta_store.repo
where space = '' and ($1::text[] is null or did = any($1::text[]));

-- name: prunable_accounts
-- States of accounts that hold nothing here, told long ago: only kept against events out of order.
select a.did from letta_store.account a
where a.status_time < $1 and a.status_time > '0001-01-02 00:00+00' and not a.forgotten and a.purged_rev = ''
    and not exists (select from letta_store.repo r where r.did = a.did)
order by a.did limit $2;

-- name: prune_accounts
-- Of these, which are locked by now: a first record may have been on its way.
delete from letta_store.account a
where a.did = any($1::text[])
    and a.status_time < $2 and a.status_time > '0001-01-02 00:00+00' and not a.forgotten and a.purged_rev = ''
    and not exists (select from letta_store.repo r where r.did = a.did)
returning a.did;

-- name: start_discovery
insert into letta_store.discovery (source, collection) select $1, c from unnest($2::text[]) as d (c)
on conflict do nothing;

-- name: open_discoveries
select collection from letta_store.discovery where source = $1 and not done order by collection;

-- name: discovery_page
select page from letta_store.discovery where source = $1 and collection = $2;

-- name: note_discovery
update letta_store.discovery set page = $3::text, done = $3::text is null where source = $1 and collection = $2;

-- name: restart_discovery
update letta_store.discovery set page = null, done = false where source = $1;

-- name: restart_ended_discovery
-- What was broken off goes on; what was gone through to the end begins anew.
update letta_store.discovery set page = null, done = false
where source = $1 and not exists (select from letta_store.discovery d where d.source = $1 and not d.done);

-- name: restart_discoveries
update letta_store.discovery set page = null, done = false;

-- name: source_filter
select filter from letta_store.cursor where source = $1;

-- name: source_filters
select source, filter from letta_store.cursor where filter is not null;

-- name: put_source_filter
insert into letta_store.cursor (source, filter) values ($1, $2)
on conflict (source) do update set filter = excluded.filter;

-- Permissioned spaces.

-- name: space_states
-- How far each repository of these authors in a space has been read.
select did, space, rev, lthash, judgement from letta_store.repo
where did = any($1::text[]) and space <> '' and rev <> '' and lthash is not null;

-- name: space_state
select rev from letta_store.repo where did = $1 and space = $2;

-- name: is_forgotten_space
-- Whether a space is not to be indexed again, or nothing of this author.
select exists (select from letta_store.forgotten_space where space = $1)
    or exists (select from letta_store.account where did = $2 and forgotten) as forgotten;

-- name: hold_forgotten_spaces
-- Until this transaction ends no space is forgotten: whoever forgets one sees what this wrote.
lock table letta_store.forgotten_space in share mode;

-- name: put_space_state
insert into letta_store.repo as kept (did, space, rev, lthash, judgement) values ($1, $2, $3, $4, $5)
on conflict (did, space) do update set rev = excluded.rev, lthash = excluded.lthash, judgement = excluded.judgement,
    last_error = null;

-- name: put_space_cursor
insert into letta_store.space_source (account, space, rev, event_time, state, updated_at)
values ($1, $2, $3, letta_store.rev_time($3), 'live', $4)
on conflict (account, space) do update set rev = excluded.rev, event_time = excluded.event_time, state = excluded.state,
    detail = null, updated_at = excluded.updated_at;

-- name: put_space_source_state
-- What a followed account ($2 is '') or one of its repositories is doing; nothing is noted of what was forgotten.
insert into letta_store.space_source (account, space, state, detail, updated_at)
select $1, $2, $3, $4, $5
where not exists (select from letta_store.forgotten_space where space = $2)
    and not exists (select from letta_store.account where did = $1 and forgotten)
on conflict (account, space) do update set state = excluded.state, detail = excluded.detail,
    updated_at = excluded.updated_at;

-- name: raise_space_proofs
update letta_store.{table} r set proof = $3::text where did = $1 and space = $2 and proof is distinct from $3::text;

-- name: space_authors
select distinct did from letta_store.repo where space = $1;

-- name: forget_space
insert into letta_store.forgotten_space (space) values ($1) on conflict do nothing;

-- name: untrack_space
delete from letta_store.repo where did = any($1::text[]) and space = $2;

-- name: drop_space_sources
-- Of all authors, or of these.
delete from letta_store.space_source where space = $1 and ($2::text[] is null or account = any($2::text[]));

-- name: drop_account_spaces
-- How far the spaces of this account have been read, and what it was called in the settings.
delete from letta_store.space_source
where account = $1 or account in (select handle from letta_store.account where did = $1);

-- name: reset_spaces
-- What was held of these accounts in spaces is gone: their repositories are read anew, if they ever come back.
update letta_store.repo set rev = '', lthash = null, judgement = null where did = any($1::text[]) and space <> '';

-- name: purge_space_history
delete from letta_store.{table} r where r.did = any($1::text[]) and r.space = $2 returning r.did, r.space;

-- Gauges (indexer/gauges.py).

-- name: records_by_proof
-- All that is kept, of hidden accounts too. Typed tables hold one collection each: only proof and valid are read.
select collection, proof, sum(records)::bigint as records, sum(invalid)::bigint as invalid
from (
    select 'xyz.quasigod.lab.letta.conversation' as collection, coalesce(proof, '') as proof, count(*) as records,
        count(*) filter (where not valid) as invalid
    from letta_store.conversation group by proof
    union all
    select 'xyz.quasigod.lab.letta.compiledPrompt', coalesce(proof, ''), count(*), count(*) filter (where not valid)
    from letta_store.compiled_prompt group by proof
    union all
    select 'xyz.quasigod.lab.letta.agent', coalesce(proof, ''), count(*), count(*) filter (where not valid)
    from letta_store.agent group by proof
    union all
    select 'xyz.quasigod.lab.letta.message', coalesce(proof, ''), count(*), count(*) filter (where not valid)
    from letta_store.message group by proof
    union all
    select '', coalesce(proof, ''), count(*), count(*) filter (where not valid) from letta_store.other_record group by proof
) counted
group by collection, proof order by collection, proof;

-- name: issues_by_severity
select severity, count(*) as issues from letta.integrity_issue group by severity order by severity;

-- name: ages
-- Seconds until $1, 0 where nothing waits. A hidden account's fetch waits for its return, not for us.
select
    (select coalesce(extract(epoch from $1::timestamptz - min(t.stale_since)), 0)
     from letta_store.freshness k
     join letta_store.freshness_truth t on t.did = k.did and t.space = k.space and t.rkey = k.rkey
     where k.freshness = 'stale') as stalest_prompt_seconds,
    w.failing_wants, w.oldest_want_seconds
from (
    select count(*) filter (where r.attempts >= 3) as failing_wants,
        coalesce(extract(epoch from $1::timestamptz - min(r.wanted_since)), 0) as oldest_want_seconds
    from letta_store.repo r join letta_store.account a on a.did = r.did
    where r.want is not null and r.space = '' and (r.want = 'decide' or not a.hidden)
) w;

-- name: place
-- The folder only where the server is sure to be on this machine, and to us who may know it.
select pg_database_size(current_database()) as bytes,
    (select setting from pg_settings where name = 'data_directory' and inet_server_addr() is null) as folder;

-- The lease: which daemon writes the stream.

-- name: take_lease
-- If nobody holds it: it was not renewed in time, or the session that renewed it last has ended. As generation is a key,
-- this waits for those who hold the lease in a transaction (hold_lease), and is waited for by them.
update letta_store.lease
set generation = generation + 1, holder = $1, session = pg_backend_pid(), valid_until = clock_timestamp() + $2
where name = 'stream'
    and (valid_until <= clock_timestamp() or not exists (select from pg_stat_activity where pid = session))
returning generation;

-- name: lease_holder
select holder, valid_until > clock_timestamp() and exists (select from pg_stat_activity where pid = session) as held
from letta_store.lease where name = 'stream';

-- name: renew_lease
update letta_store.lease set session = pg_backend_pid(), valid_until = clock_timestamp() + $2
where name = 'stream' and generation = $1
returning generation;

-- name: release_lease
update letta_store.lease set valid_until = clock_timestamp() where name = 'stream' and generation = $1;

-- name: hold_lease
-- Renewing goes on meanwhile, taking it over waits.
select from letta_store.lease where name = 'stream' and generation = $1 for key share;

-- name: process
-- The one of the server that works for this connection, whatever a pool in between says it is.
select pg_backend_pid();

-- name: dead_processes
-- Of these processes of the server those that have been waiting for their clients for so long, and those that are gone.
select waiting.pid from unnest($1::int[]) as waiting (pid)
left join pg_stat_activity a on a.pid = waiting.pid
where a.pid is null or (a.wait_event_type = 'Client' and clock_timestamp() - a.state_change > $2);

-- name: end_silent
-- Ends the processes of other daemons that keep any of these waiting while they have waited for their clients for so
-- long in the middle of a statement, where no limit of the server's counts: from its plan to its values, or at its rows.
select a.pid, pg_terminate_backend(a.pid) as ended
from pg_stat_activity waiting, unnest(pg_blocking_pids(waiting.pid)) as blocking (pid), pg_stat_activity a
where waiting.pid = any($1::int[]) and waiting.wait_event_type = 'Lock'
    and a.pid = blocking.pid and a.application_name = 'letta-indexer' and a.usename = current_user
    and a.state = 'active' and a.wait_event_type = 'Client' and clock_timestamp() - a.state_change > $2;
