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

-- The prompts of an agent are found by a column: readers too look for the latest of them.
-- Of a canonical URI that of its text. Other forms of it hash as it does; what names no record hashes to anything.
create function letta_store.reference_hash(reference text) returns bigint
    language sql immutable parallel safe
    return hashtextextended(
        case when reference like 'at:space/%' then letta_store.record_uri(reference) else reference end, 0);

alter table letta_store.compiled_prompt
    add column agent_hash bigint generated always as (letta_store.reference_hash(letta_store.text_at(value, 'agent'))) stored;
drop index letta_store.compiled_prompt_agent;
create index compiled_prompt_agent on letta_store.compiled_prompt
    (agent_hash, did, space, compiled_at desc nulls last, rkey desc) where agent_uri is not null;
grant select (agent_hash) on letta_store.compiled_prompt to letta_reader;
grant select (digests) on letta_store.conversation, letta_store.compiled_prompt, letta_store.agent, letta_store.message,
    letta_store.other_record to letta_reader;

-- The flags of prompts, in a table of their own. Readers who were granted a space see its flags as before.
create table letta_store.freshness (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rkey text collate "C" not null,
    freshness text not null,
    stale_reasons text[] not null,
    was text,
    primary key (did, space, rkey)
) partition by list (space);
create index freshness_stale on letta_store.freshness (did, space, rkey) where freshness = 'stale';
comment on table letta_store.freshness is
    'What freshness_truth says of each prompt, as far as it is counted, listed and announced; was: the freshness before';

create table letta_store.freshness_public partition of letta_store.freshness for values in ('');
create table letta_store.freshness_private partition of letta_store.freshness default;
insert into letta_store.freshness (did, space, rkey, freshness, stale_reasons)
select did, space, rkey, freshness, stale_reasons from letta_store.compiled_prompt;
alter table letta_store.freshness enable row level security;
grant select (did, space, rkey, freshness, stale_reasons, was) on letta_store.freshness to letta_reader;
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
create function letta_store.pair_facts(did text, space text, agent_uri text)
    returns table (
        latest text, latest_at timestamptz, latest_uri text, latest_cid text, latest_rev text, latest_template text,
        latest_revision text, latest_memory text,
        agent text, agent_cid text, agent_rev text, agent_template text, agent_revision text, agent_memory text)
    language sql stable parallel safe
begin atomic
    select s.*, a.*
    from (select) one
    left join lateral (  -- each partition by itself: of both together some plans sort all there is
        (select p.rkey, p.compiled_at, p.uri, p.cid, p.rev, p.template_hash, p.memfs_revision,
            coalesce(p.digests ->> 'memfsRevision', p.memfs_revision)
        from letta_store.compiled_prompt p
        where pair_facts.space = '' and p.agent_hash = hashtextextended(pair_facts.agent_uri, 0)
            and p.did = pair_facts.did and p.space = '' and p.agent_uri = pair_facts.agent_uri
        order by p.compiled_at desc nulls last, p.rkey desc limit 1)
        union all
        (select p.rkey, p.compiled_at, p.uri, p.cid, p.rev, p.template_hash, p.memfs_revision,
            coalesce(p.digests ->> 'memfsRevision', p.memfs_revision)
        from letta_store.compiled_prompt p
        where pair_facts.space <> '' and p.agent_hash = hashtextextended(pair_facts.agent_uri, 0)
            and p.did = pair_facts.did and p.space = pair_facts.space and p.space <> ''
            and p.agent_uri = pair_facts.agent_uri
        order by p.compiled_at desc nulls last, p.rkey desc limit 1)) s on true
    left join lateral (
        select a.uri, a.cid, a.rev, a.system_sha256, a.memfs_revision,
            coalesce(a.digests ->> 'memfsRevision', a.memfs_revision)
        from letta_store.agent a join letta_store.account x on x.did = a.did and not x.hidden
        where a.did = letta_store.did_of(pair_facts.agent_uri)
            -- public, or of the prompts' own space: of another one none has this URI
            and a.space = case split_part(pair_facts.agent_uri, '/', 4) when 'space' then pair_facts.space else '' end
            and a.rkey = letta_store.rkey_of(pair_facts.agent_uri) and a.uri = pair_facts.agent_uri
        limit 1) a on true
    offset 0;  -- so that it stays one thing, which is looked up once for all prompts of an agent
end;
comment on function letta_store.pair_facts is
    'What the prompts of an agent in a repository are compared with, always one row: the latest of them, and the agent if it can be seen from there. memory: the revision as it was written, or its digest where jsonb does not hold that';

create function letta_store.judgement(
    template text, memory text, compiled_at timestamptz, latest_template text, latest_memory text, latest_at timestamptz,
    agent_template text, agent_memory text)
    returns table (
        by_agent_template boolean, by_latest_template boolean, by_agent_memory boolean,
        by_latest_memory boolean, freshness text, stale_reasons text[])
    language sql immutable parallel safe
begin atomic
    select
        b.*,
        case
            when b.by_agent_template or b.by_latest_template or b.by_agent_memory or b.by_latest_memory then 'stale'
            when judgement.agent_template = judgement.template then 'fresh'
            else 'unverified'
        end,
        case when b.by_agent_memory or b.by_latest_memory then
            case when b.by_agent_template or b.by_latest_template
                then '{memory_changed,template_changed}'::text[] else '{memory_changed}' end
        when b.by_agent_template or b.by_latest_template then '{template_changed}' else '{}' end
    from (
        select
            coalesce(judgement.agent_template <> judgement.template, false) as by_agent_template,
            coalesce(judgement.agent_template is null and judgement.latest_at > judgement.compiled_at
                and judgement.latest_template <> judgement.template, false) as by_latest_template,
            judgement.agent_memory is not null
                and judgement.agent_memory is distinct from judgement.memory as by_agent_memory,
            coalesce(judgement.latest_at > judgement.compiled_at
                and judgement.latest_memory is distinct from judgement.memory, false) as by_latest_memory) b;
end;
comment on function letta_store.judgement is
    'A prompt''s freshness and the reasons for it, out of its template''s hash, memory and instant, and what pair_facts gives';

create view letta_store.freshness_truth with (security_invoker = true) as
select
    p.did, p.space, p.rkey, p.agent_uri, j.freshness, j.stale_reasons,
    letta_store.rev_time(least(
        case when j.by_agent_template or j.by_agent_memory then f.agent_rev collate "C" end,
        case when j.by_latest_template or j.by_latest_memory then f.latest_rev collate "C" end)) as stale_since,
    case when j.freshness = 'stale' then to_jsonb(array_remove(array[
        case when j.by_agent_template then jsonb_build_object(
            'reason', 'template_changed', 'record', f.agent, 'cid', f.agent_cid, 'rev', f.agent_rev,
            'field', 'rawSystemHash', 'found', p.template_hash, 'expected', f.agent_template) end,
        case when j.by_latest_template then jsonb_build_object(
            'reason', 'template_changed', 'record', f.latest_uri, 'cid', f.latest_cid, 'rev', f.latest_rev,
            'field', 'rawSystemHash', 'found', p.template_hash, 'expected', f.latest_template) end,
        case when j.by_agent_memory then jsonb_build_object(
            'reason', 'memory_changed', 'record', f.agent, 'cid', f.agent_cid, 'rev', f.agent_rev,
            'field', 'memfsRevision', 'found', left(p.memfs_revision, 256), 'expected', left(f.agent_revision, 256)) end,
        case when j.by_latest_memory then jsonb_build_object(
            'reason', 'memory_changed', 'record', f.latest_uri, 'cid', f.latest_cid, 'rev', f.latest_rev,
            'field', 'memfsRevision', 'found', left(p.memfs_revision, 256), 'expected', left(f.latest_revision, 256)) end
    ], null)) end as evidence
from letta_store.compiled_prompt p
cross join lateral letta_store.pair_facts(p.did, p.space, p.agent_uri) f
cross join lateral letta_store.judgement(
    p.template_hash, coalesce(p.digests ->> 'memfsRevision', p.memfs_revision), p.compiled_at,
    f.latest_template, f.latest_memory, f.latest_at, f.agent_template, f.agent_memory) j;
comment on view letta_store.freshness_truth is
    'What freshness, stale_reasons, stale_since and evidence of every prompt are, from the records alone; the last two are not stored';
grant select on letta_store.freshness_truth to letta_reader;

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
    k.freshness, k.stale_reasons,
    case when k.freshness = 'stale' then (
        select t.stale_since from letta_store.freshness_truth t
        where t.did = r.did and t.space = r.space and t.rkey = r.rkey) end as stale_since,
    case when k.freshness = 'stale' then (
        select t.evidence from letta_store.freshness_truth t
        where t.did = r.did and t.space = r.space and t.rkey = r.rkey) end as evidence
from letta_store.compiled_prompt r join letta_store.account x on x.did = r.did
join letta_store.freshness k on k.did = r.did and k.space = r.space and k.rkey = r.rkey
where not x.hidden;

alter table letta_store.compiled_prompt
    drop column freshness, drop column stale_reasons, drop column stale_since, drop column evidence;
analyze letta_store.freshness;
analyze letta_store.compiled_prompt;

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
