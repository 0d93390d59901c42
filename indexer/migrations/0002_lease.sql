-- compatible from: 2
-- Schema version 1 to 2: which programs can work with a schema is said in the schema itself.

alter table letta_store.schema_version add column compatible_from integer not null default 1;
alter table letta_store.schema_version alter column compatible_from drop default;
comment on table letta_store.schema_version is
    'The newest row counts. compatible_from: programs made for this version of the schema, or a later one, can work with it';

-- Since when a repository is wanted.
alter table letta_store.repo add column wanted_since timestamptz;
update letta_store.repo set wanted_since = now() where want is not null;
grant select (wanted_since) on letta_store.repo to letta_reader;
create or replace view letta.repo with (security_invoker = true) as
select
    r.did, r.space, x.handle, x.active, x.status, x.hidden, r.rev, r.snapshot_rev, r.records, r.bytes,
    r.want, r.want_reasons, r.wanted_rev, r.attempts, r.next_attempt_at, r.last_error, r.first_seen, r.judgement,
    case when r.want is not null then r.wanted_since end as wanted_since
from letta_store.repo r join letta_store.account x on x.did = r.did;

-- Which daemon writes the stream.
create table letta_store.lease (
    name text primary key check (name = 'stream'),
    generation bigint not null default 0 unique,
    holder text not null default '',
    session integer not null default 0,
    valid_until timestamptz not null default '-infinity'
);
insert into letta_store.lease (name) values ('stream');
comment on table letta_store.lease is
    'Which daemon writes the stream: the one whose generation this is. Unique, since an update of a key waits for every transaction that holds the row. session: the server process of whoever renewed it last; valid_until: by the clock of this server';

-- What is said of long texts is worked out by whoever decodes them; what is there stays.
alter table letta_store.compiled_prompt
    alter column content_bytes drop expression,
    alter column content_sha256 drop expression,
    alter column core_memory_sha256 drop expression,
    alter column core_memory_in_content drop expression;
alter table letta_store.agent alter column system_sha256 drop expression;
comment on table letta_store.compiled_prompt is
    'content_bytes to core_memory_in_content: said of long texts, once, by whoever decodes them';
drop function letta_store.sha256_at;
drop function letta_store.contains;

-- The flags of prompts, in a table of their own. Readers who were granted a space see its flags as before.
create table letta_store.freshness (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rkey text collate "C" not null,
    freshness text not null,
    stale_reasons text[] not null,
    stale_rev text collate "C",
    evidence jsonb,
    was text,
    primary key (did, space, rkey)
) partition by list (space);
create index freshness_stale on letta_store.freshness (did, space, rkey) where freshness = 'stale';
comment on table letta_store.freshness is
    'What freshness_truth says of each prompt. stale_rev: the earliest rev that contradicts it; was: the freshness before';

create table letta_store.freshness_public partition of letta_store.freshness for values in ('');
create table letta_store.freshness_private partition of letta_store.freshness default;
insert into letta_store.freshness (did, space, rkey, freshness, stale_reasons, stale_rev, evidence)
select did, space, rkey, freshness, stale_reasons,
    (select min((e ->> 'rev') collate "C") from jsonb_array_elements(evidence) e), evidence
from letta_store.compiled_prompt;
alter table letta_store.freshness enable row level security;
grant select (did, space, rkey, freshness, stale_reasons, stale_rev, evidence, was) on letta_store.freshness to letta_reader;
do $$
declare
    found record;
begin
    for found in
        select p.polname as name, pg_get_expr(p.polqual, p.polrelid) as rows, r.rolname as reader
        from pg_policy p join pg_roles r on r.oid = any(p.polroles)
        where p.polrelid = 'letta_store.compiled_prompt'::regclass
    loop
        execute format('create policy %I on letta_store.freshness for select to %I using (%s)',
            found.name, found.reader, found.rows);
    end loop;
end
$$;

drop function letta_store.refresh_freshness;
drop view letta_store.freshness_truth;
create or replace view letta.compiled_prompt with (security_invoker = true) as
select
    r.uri, r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.value, r.valid, r.violations,
    r.proof is not null as verified, r.proof, r.indexed_at,
    r.agent, r.conversation,
    case when r.content_sha256 is not null then r.value ->> 'content' end as content,
    case when r.core_memory_sha256 is not null then r.value ->> 'coreMemory' end as core_memory,
    r.raw_system_hash, r.memfs_revision, r.compiled_at, r.content_bytes, r.core_memory_in_content,
    (select h.cid from letta_store.recompile h
     where h.did = r.did and h.space = r.space and h.rkey = r.rkey and (h.rev, h.ordinal) < (r.rev, 0)
        and h.cid <> r.cid
     order by h.rev desc, h.ordinal desc, h.cid desc limit 1) as previous_cid,
    (select count(*) from (
        select h.cid, lag(h.cid) over (order by h.rev, h.ordinal, h.cid) as previous from letta_store.recompile h
        where h.did = r.did and h.space = r.space and h.rkey = r.rkey) c
     where c.cid <> c.previous) as recompiles,
    k.freshness, k.stale_reasons, letta_store.rev_time(k.stale_rev) as stale_since, k.evidence
from letta_store.compiled_prompt r join letta_store.account x on x.did = r.did
join letta_store.freshness k on k.did = r.did and k.space = r.space and k.rkey = r.rkey
where not x.hidden;

alter table letta_store.compiled_prompt
    drop column freshness, drop column stale_reasons, drop column stale_since, drop column evidence;

create view letta_store.freshness_truth as
with fact as (
    select
        p.did, p.space, p.rkey, p.agent_uri, p.memfs_revision, p.template_hash,
        k.freshness as stored, k.stale_reasons as stored_reasons, k.stale_rev as stored_rev, k.evidence as stored_evidence,
        s.uri as sibling_uri, s.cid as sibling_cid, s.rev as sibling_rev,
        s.memfs_revision as sibling_memfs_revision, s.template_hash as sibling_template_hash,
        a.uri as agent_record, a.cid as agent_cid, a.rev as agent_rev,
        a.system_sha256, a.memfs_revision as agent_memfs_revision,
        coalesce(a.system_sha256 <> p.template_hash, false) as agent_template,
        -- as it was written, whatever jsonb holds
        a.memfs_revision is not null and coalesce(a.digests ->> 'memfsRevision', a.memfs_revision)
            is distinct from coalesce(p.digests ->> 'memfsRevision', p.memfs_revision) as agent_memory,
        coalesce(a.system_sha256 is null and s.compiled_at > p.compiled_at
            and s.template_hash <> p.template_hash, false) as sibling_template,
        coalesce(s.compiled_at > p.compiled_at and coalesce(s.digests ->> 'memfsRevision', s.memfs_revision)
            is distinct from coalesce(p.digests ->> 'memfsRevision', p.memfs_revision), false) as sibling_memory
    from letta_store.compiled_prompt p
    left join letta_store.freshness k on k.did = p.did and k.space = p.space and k.rkey = p.rkey
    -- Both are the same for all prompts of an agent: looked up by index, and by most plans once.
    left join lateral (
        select s.* from letta_store.compiled_prompt s
        where hashtextextended(s.agent_uri, 0) = hashtextextended(p.agent_uri, 0)
            and s.did = p.did and s.space = p.space and s.agent_uri = p.agent_uri
        order by s.compiled_at desc nulls last, s.rkey desc limit 1) s on true
    left join lateral (
        select a.* from letta_store.agent a join letta_store.account x on x.did = a.did and not x.hidden
        where a.did = letta_store.did_of(p.agent_uri) and a.space = letta_store.space_of(p.agent_uri)
            and a.rkey = letta_store.rkey_of(p.agent_uri) and a.uri = p.agent_uri
            and (a.space = '' or a.space = p.space)
        limit 1) a on true
), judged as (  -- what only stale prompts have is worked out for these alone
    select
        f.did, f.space, f.rkey, f.agent_uri, f.stored, f.stored_reasons, f.stored_rev, f.stored_evidence,
        case
            when agent_template or sibling_template or agent_memory or sibling_memory then 'stale'
            when f.system_sha256 = f.template_hash then 'fresh'
            else 'unverified'
        end as freshness,
        case when agent_template or sibling_template or agent_memory or sibling_memory then
            array_remove(array[
                case when agent_memory or sibling_memory then 'memory_changed' end,
                case when agent_template or sibling_template then 'template_changed' end], null)
        else '{}' end as stale_reasons,
        least(
            case when agent_template or agent_memory then f.agent_rev end,
            case when sibling_template or sibling_memory then f.sibling_rev end) as stale_rev,
        case when agent_template or sibling_template or agent_memory or sibling_memory then
            to_jsonb(array_remove(array[
                case when agent_template then jsonb_build_object(
                    'reason', 'template_changed', 'record', f.agent_record, 'cid', f.agent_cid, 'rev', f.agent_rev,
                    'field', 'rawSystemHash', 'found', f.template_hash, 'expected', f.system_sha256) end,
                case when sibling_template then jsonb_build_object(
                    'reason', 'template_changed', 'record', f.sibling_uri, 'cid', f.sibling_cid, 'rev', f.sibling_rev,
                    'field', 'rawSystemHash', 'found', f.template_hash, 'expected', f.sibling_template_hash) end,
                case when agent_memory then jsonb_build_object(
                    'reason', 'memory_changed', 'record', f.agent_record, 'cid', f.agent_cid, 'rev', f.agent_rev,
                    'field', 'memfsRevision', 'found', left(f.memfs_revision, 256),
                    'expected', left(f.agent_memfs_revision, 256)) end,
                case when sibling_memory then jsonb_build_object(
                    'reason', 'memory_changed', 'record', f.sibling_uri, 'cid', f.sibling_cid, 'rev', f.sibling_rev,
                    'field', 'memfsRevision', 'found', left(f.memfs_revision, 256),
                    'expected', left(f.sibling_memfs_revision, 256)) end], null))
        end as evidence
    from fact f
)
select
    did, space, rkey, agent_uri, freshness, stale_reasons, stale_rev, letta_store.rev_time(stale_rev) as stale_since,
    evidence, stored, stored_reasons,
    stored is distinct from freshness or stored_reasons is distinct from stale_reasons
        or stored_rev is distinct from stale_rev or stored_evidence is distinct from evidence as differs
from judged;
comment on view letta_store.freshness_truth is
    'What freshness, stale_reasons, stale_since and evidence of every prompt have to be, from the records alone; differs: whether something else is stored in letta_store.freshness';
analyze letta_store.freshness;

create or replace function letta.revoke_space(space text, reader name) returns void
    language plpgsql
    set search_path = pg_catalog
as $$
declare
    canonical constant text := letta_store.space_of(letta_store.record_uri(space || '/did:plc:any/any.any.any/any'));
    name text;
begin
    foreach name in array array['conversation', 'compiled_prompt', 'agent', 'message', 'other_record', 'recompile',
        'conversation_version', 'freshness', 'repo', 'space_source'] loop
        execute format('drop policy if exists %I on letta_store.%I',
            letta_store.space_policy(coalesce(canonical, space), reader), name);
    end loop;
end
$$;

create or replace function letta.grant_space(space text, reader name) returns void
    language plpgsql
    set search_path = pg_catalog
as $$
declare
    canonical constant text := letta_store.space_of(letta_store.record_uri(space || '/did:plc:any/any.any.any/any'));
    name text;
begin
    if coalesce(canonical, '') = '' then
        raise exception 'expected a space''s URI, such as at://DID/space/TYPE/KEY';
    end if;
    if reader = 'letta_reader' or not exists (select from pg_roles where rolname = reader) then
        raise exception 'expected a role of its own: letta_reader sees public records only';
    end if;
    perform letta.revoke_space(canonical, reader);
    execute format('grant letta_reader to %I', reader);
    foreach name in array array['conversation', 'compiled_prompt', 'agent', 'message', 'other_record', 'recompile',
        'conversation_version', 'freshness', 'repo', 'space_source'] loop
        execute format('create policy %I on letta_store.%I for select to %I using (space = %L)',
            letta_store.space_policy(canonical, reader), name, reader, canonical);
    end loop;
end
$$;
