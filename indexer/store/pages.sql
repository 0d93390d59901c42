-- What the page for people reads: the views of letta, public rows only, every result bounded, pages by key.
-- What is looked up for each row shown stands in a subquery of its own: joined, the planner may well read all there is.

-- name: page_begin
-- For the rest of the transaction: limits of time, and the rights of letta_reader where this user may take them on.
select set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true),
    set_config('max_parallel_workers_per_gather', '0', true),
    case when pg_has_role('letta_reader',
        case when current_setting('server_version_num')::integer < 160000 then 'MEMBER' else 'SET' end)
    then set_config('role', 'letta_reader', true) end;

-- name: page_sources
select source, seq, event_time, state, left(detail, 400) as detail, updated_at
from letta.source where not starts_with(source, 'space:') order by source limit $1;

-- name: page_counts
-- Exact up to $1.
select
    (select count(*) from (select from letta.repo where space = '' limit $1) r) as repos,
    (select count(*) from (select from letta.repo where space = '' and want is not null limit $1) r) as wanted,
    (select count(*) from (select from letta.agent where space = '' limit $1) r) as agents,
    (select count(*) from (select from letta.compiled_prompt where space = '' limit $1) r) as prompts,
    (select count(*) from (select from letta.stale_prompt where space = '' limit $1) r) as stale;

-- name: page_stale
-- Of the first $5 stale prompts by key the longest stale first, after ($1, $2, $3); partial where there are more.
with seen as (
    select uri, did, rkey, agent, stale_reasons, compiled_at,
        coalesce(stale_since, timestamptz '0001-01-01 00:00+00') as stale_since
    from letta.stale_prompt where space = '' order by did, space, rkey limit $5
), shown as (
    select * from seen where $1::timestamptz is null or (stale_since, did, rkey) > ($1, $2::text, $3::text)
    order by stale_since, did, rkey limit $4
)
select s.uri, s.did, s.rkey, left(s.agent, 400) as agent, s.stale_reasons, s.compiled_at, s.stale_since,
    (select p.evidence from letta.stale_prompt p where p.did = s.did and p.space = '' and p.rkey = s.rkey) as evidence,
    (select left(c.title, 200) from letta.conversation_all c
        where c.did = s.did and c.space = '' and c.rkey = s.rkey) as title,
    (select left(a.name, 200) from letta.agent a
        where a.did = split_part(s.agent, '/', 3) collate "C" and a.space = ''
            and a.rkey = split_part(s.agent, '/', 5) collate "C" and a.uri = s.agent) as agent_name,
    (select count(*) from seen) = $5 as partial
from shown s
order by s.stale_since, s.did, s.rkey;

-- name: page_repos
-- Of the next $4 repositories after $1 those in a state, at most $5; looked_at and last say where the look ended.
with seen as (
    select did, left(handle, 260) as handle, status, hidden, records, bytes, want, want_reasons, attempts,
        next_attempt_at, left(last_error, 400) as last_error
    from letta.repo
    where space = '' and ($1::text is null or did > $1) and did >= $2 and did < $2 || chr(127)
    order by did limit $4
)
select w.looked_at, w.last, r.*
from (select count(*) as looked_at, max(did) as last from seen) w
left join lateral (
    select * from seen
    where case $3 when 'wanted' then want is not null when 'hidden' then hidden
        when 'current' then want is null and not hidden else true end
    order by did limit $5) r on true
order by r.did;

-- name: page_repo
select did, left(handle, 260) as handle, active, status, hidden, rev, snapshot_rev, records, bytes, want, want_reasons,
    wanted_rev, attempts, next_attempt_at, left(last_error, 400) as last_error, first_seen
from letta.repo where did = $1 and space = '';

-- name: page_agents
-- Agents after ($1, $2), of one account where $3 names it. Of each account $5 conversations are looked at, and $5 stale
-- prompts, each of the agent that it names itself.
with shown as (
    select uri, did, rkey, name, model, created_at from letta.agent
    where space = '' and ($1::text is null or (did, space, rkey) > ($1, '', $2::text))
        and ($3::text is null or did = $3)
    order by did, space, rkey limit $4
)
select s.uri, s.did, s.rkey, left(s.name, 200) as name, left(s.model, 100) as model, s.created_at,
    n.conversations, n.looked_at = $5 as at_least, p.stale, p.looked_at = $5 as stale_at_least
from shown s
left join lateral (
    select count(*) as looked_at, count(*) filter (where c.agent = s.uri) as conversations
    from (select rkey, agent from letta.conversation_all where did = s.did and space = '' order by rkey desc limit $5) c
) n on true
left join lateral (
    select count(*) as looked_at, count(*) filter (where c.agent = s.uri) as stale
    from (select rkey, agent from letta.stale_prompt where did = s.did and space = '' order by rkey desc limit $5) c
) p on true
order by s.did, s.rkey;

-- name: page_agent
select uri, did, rkey, cid, rev, left(name, 200) as name, left(model, 100) as model, system_sha256,
    left(memfs_revision, 256) as memfs_revision, left(primary_conversation, 400) as primary_conversation, created_at,
    verified, valid, left(system, $3) as system, length(system) > $3 as system_cut
from letta.agent where did = $1 and space = '' and rkey = $2;

-- name: page_conversations
-- The conversations of an account, the newest keys first, from below $2; of one agent where $3 names it. So are prompts
-- without a record of their conversation: each belongs to the agent that it names itself.
with named as (
    (select rkey from letta.conversation_all
        where did = $1 and space = '' and ($2::text is null or rkey < $2) and ($3::text is null or agent = $3)
        order by rkey desc limit $4)
    union
    (select rkey from letta.compiled_prompt
        where did = $1 and space = '' and ($2::text is null or rkey < $2) and ($3::text is null or agent = $3)
        order by rkey desc limit $4)
), shown as (
    select rkey from named order by rkey desc limit $4
)
select s.rkey, left(coalesce(p.agent, c.agent), 400) as agent, left(c.title, 200) as title, left(c.role, 40) as role,
    c.hidden, c.rkey is not null as recorded, c.created_at, p.freshness, p.stale_reasons, p.compiled_at,
    (select left(a.name, 200) from letta.agent a
        where a.did = split_part(coalesce(p.agent, c.agent), '/', 3) collate "C" and a.space = ''
            and a.rkey = split_part(coalesce(p.agent, c.agent), '/', 5) collate "C" and a.uri = coalesce(p.agent, c.agent)
    ) as agent_name
from shown s
left join lateral (
    select rkey, agent, title, role, hidden, created_at from letta.conversation_all
    where did = $1 and space = '' and rkey = s.rkey limit 1) c on true
left join lateral (
    select agent, freshness, stale_reasons, compiled_at from letta.compiled_prompt
    where did = $1 and space = '' and rkey = s.rkey and ($3::text is null or agent = $3) limit 1) p on true
order by s.rkey desc;

-- name: page_prompt
select p.uri, p.did, p.rkey, p.cid, p.rev, left(p.agent, 400) as agent, left(p.conversation, 400) as conversation,
    left(p.raw_system_hash, 256) as raw_system_hash,
    left(p.memfs_revision, 256) as memfs_revision, p.compiled_at, p.content_bytes, p.core_memory_in_content,
    p.verified, p.valid, p.freshness, p.stale_reasons, p.stale_since, p.evidence, p.recompiles,
    left(p.content, $3) as content, length(p.content) > $3 as content_cut,
    left(p.core_memory, $3) as core_memory, length(p.core_memory) > $3 as core_memory_cut,
    (select left(c.title, 200) from letta.conversation_all c
        where c.did = p.did and c.space = '' and c.rkey = p.rkey) as title,
    (select left(a.name, 200) from letta.agent a
        where a.did = split_part(p.agent, '/', 3) collate "C" and a.space = ''
            and a.rkey = split_part(p.agent, '/', 5) collate "C" and a.uri = p.agent) as agent_name
from letta.compiled_prompt p
where p.did = $1 and p.space = '' and p.rkey = $2;

-- name: page_history
-- The compiles of a prompt, the latest first, from below ($3, $4).
select rev, cid, kind, compiled_at, left(memfs_revision, 256) as memfs_revision,
    left(raw_system_hash, 256) as raw_system_hash, content_bytes, seen_at
from letta.recompile
where did = $1 and space = '' and rkey = $2 and ($3::text is null or (rev, cid) < ($3, $4::text))
order by rev desc, cid desc limit $5;

-- name: page_kept
-- Which of these compiles have their text still. The case keeps the texts of all others from being read.
select distinct cid
from (select cid, case when cid = any($3::text[]) then content is not null or core_memory is not null end as kept
      from letta.recompile where did = $1 and space = '' and rkey = $2) h
where kept
union
select cid from letta.compiled_prompt
where did = $1 and space = '' and rkey = $2 and cid = any($3::text[]);

-- name: page_texts
-- The texts of these compiles, each cut to $4 characters.
select cid, left(content, $4) as content, length(content) > $4 as content_cut,
    left(core_memory, $4) as core_memory, length(core_memory) > $4 as core_memory_cut
from letta.compiled_prompt where did = $1 and space = '' and rkey = $2 and cid = any($3::text[])
union all
select cid, left(content, $4), length(content) > $4, left(core_memory, $4), length(core_memory) > $4
from (select cid, case when cid = any($3::text[]) then content end as content,
          case when cid = any($3::text[]) then core_memory end as core_memory
      from letta.recompile where did = $1 and space = '' and rkey = $2) h
where content is not null or core_memory is not null
limit 8;
