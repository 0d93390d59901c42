-- letta-indexer: the whole database, as of schema version 2.
--
-- letta        what people query: views and functions, each with a comment. A contract: columns are added, not changed.
-- letta_store  how it is kept. Free to change; nothing outside the indexer should read it.
--
-- Every key starts with did, so that the same tables can be distributed by did (Citus). Typed columns are generated
-- from value: this file alone says how a collection is typed. Every generated expression is total: any JSON in any
-- field gives a value or NULL, never an error. Only what is said of long texts (digests, lengths) is worked out where
-- records are decoded, once: indexer/texts.py.

create schema letta;
create schema letta_store;

comment on schema letta is 'Letta agents on the AT Protocol, indexed: conversations, compiled prompts, freshness.';
comment on schema letta_store is 'Storage of letta-indexer; not an interface.';

create table letta_store.schema_version (
    version integer primary key,
    applied_at timestamptz not null default now(),
    compatible_from integer not null
);
comment on table letta_store.schema_version is
    'The newest row counts. compatible_from: programs made for this version of the schema, or a later one, can work with it';
insert into letta_store.schema_version (version, compatible_from) values (2, 2);


-- Functions behind the generated columns: IMMUTABLE, total, bound at creation (no search_path at run time).

create function letta_store.text_at(value jsonb, field text) returns text
    language sql immutable parallel safe
    return case when jsonb_typeof(value -> field) = 'string' then value ->> field end;
comment on function letta_store.text_at is 'The string in a field, NULL for anything else';

create function letta_store.boolean_at(value jsonb, field text) returns boolean
    language sql immutable parallel safe
    return case when jsonb_typeof(value -> field) = 'boolean' then (value ->> field)::boolean end;
comment on function letta_store.boolean_at is 'The boolean in a field, NULL for anything else';

create function letta_store.number_at(value jsonb, field text) returns numeric
    language sql immutable parallel safe
    return case when jsonb_typeof(value -> field) = 'number' then (value ->> field)::numeric end;
comment on function letta_store.number_at is 'The number in a field, NULL for anything else';

-- The pattern leaves nothing that depends on DateStyle or TimeZone, so the cast is immutable for what gets there. Its
-- digits are spelled out: in some locales \d takes those of other scripts.
create function letta_store.instant(datetime text) returns timestamptz
    language plpgsql immutable strict parallel safe
as $$
declare
    last_day integer := 31;
    away interval;
    instant timestamp;
begin
    if datetime !~ '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$'
        or datetime like '0000%' then
        return null;
    end if;
    if substr(datetime, 9, 2) > '28' then
        case substr(datetime, 6, 2)
            when '02' then
                last_day := 28 + (date_part('month', (substr(datetime, 1, 4) || '-02-28')::date + 1) = 2)::integer;
            when '04', '06', '09', '11' then last_day := 30;
            else null;
        end case;
        if substr(datetime, 9, 2)::integer > last_day then
            return null;
        end if;
    end if;
    if octet_length(datetime) > 26 then  -- more than microseconds: cut, not rounded
        datetime := regexp_replace(datetime, '(\.[0-9]{6})[0-9]+', '\1');
    end if;
    if right(datetime, 1) = 'Z' then
        return datetime::timestamptz;
    end if;
    away := right(datetime, 5)::interval;  -- by hand: PostgreSQL takes offsets of less than 16 hours only
    datetime := left(datetime, -5);
    instant := left(datetime, -1)::timestamp - case right(datetime, 1) when '+' then away else -away end;
    if instant < timestamp '0001-01-01' or instant >= timestamp '10000-01-01' then  -- drivers can't read such a one
        return null;
    end if;
    return instant at time zone 'UTC';
end
$$;
comment on function letta_store.instant is
    'The instant a lexicon datetime names, cut to microseconds; NULL where it names none, and outside years 1 to 9999';

create function letta_store.rev_time(rev text) returns timestamptz
    language sql immutable parallel safe
    return case when rev ~ '^[2-7a-j][2-7a-z]{12}$' then
        (timestamp 'epoch' + interval '1 microsecond' * (
            ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 1, 1)) - 1)::bigint << 50)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 2, 1)) - 1)::bigint << 45)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 3, 1)) - 1)::bigint << 40)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 4, 1)) - 1)::bigint << 35)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 5, 1)) - 1)::bigint << 30)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 6, 1)) - 1)::bigint << 25)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 7, 1)) - 1)::bigint << 20)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 8, 1)) - 1)::bigint << 15)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 9, 1)) - 1)::bigint << 10)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 10, 1)) - 1)::bigint << 5)
            + ((strpos('234567abcdefghijklmnopqrstuvwxyz', substr(rev, 11, 1)) - 1)::bigint << 0)
        )::double precision) at time zone 'UTC' end;
comment on function letta_store.rev_time is 'The instant in a TID, NULL where it is none';

-- A reference names a record only in one form: a DID, a collection and a record key, each as short as its specification
-- asks. Handles name nothing. The result is bounded (2,000 bytes), so that it can be indexed whatever a record says.
-- Refers to nothing of ours by name: views call it, and a reader has no right to the names of letta_store.
create function letta_store.record_uri(reference text) returns text
    language plpgsql immutable strict parallel safe
as $$
declare
    did constant text := 'did:[a-z]+:[A-Za-z0-9._:%-]*[A-Za-z0-9._-]';
    nsid constant text := '[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+\.[A-Za-z][A-Za-z0-9]*';
    rkey constant text := '[A-Za-z0-9._:~-]+';
    name constant text := split_part(substr(reference, 62), '/', 1);
    key constant text := split_part(substr(reference, 62), '/', 2);
    uri text := reference;
    parts text[];
begin
    -- What nearly all look like, told without regular expressions: those take ten times as long.
    if octet_length(reference) < 120 and reference like 'at://did:plc:________________________/xyz.quasigod.lab.letta.%'
        and ltrim(substr(reference, 14, 24), 'abcdefghijklmnopqrstuvwxyz234567') = ''
        and name <> '' and ltrim(name, 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ') = ''
        and key <> '' and ltrim(key, 'abcdefghijklmnopqrstuvwxyz0123456789') = ''
        and substr(reference, 62) = name || '/' || key then
        return reference;
    end if;
    if octet_length(reference) > 2000 then
        return null;
    end if;
    if reference like 'at:space/%' then
        uri := regexp_replace(reference, '^at:space/([^/]+)/', 'at://\1/space/');
    end if;
    if uri !~ format('^at://%1$s(/space/%2$s/%3$s/%1$s)?/%2$s/%3$s$', did, nsid, rkey) or uri ~ '/\.\.?(/|$)' then
        return null;
    end if;
    parts := string_to_array(regexp_replace(substr(uri, 6), '^([^/]+)/space/', '\1/'), '/');
    for at in 1 .. cardinality(parts) by 3 loop  -- a DID, a collection or the type of a space, a record key
        if octet_length(parts[at]) > 1024 or octet_length(parts[at + 1]) > 317 or octet_length(parts[at + 2]) > 512
            or octet_length(parts[at + 1]) - octet_length(split_part(parts[at + 1], '.', -1)) > 254
            or parts[at + 1] ~ '[^.]{64}' then  -- regular expressions here count to 255 only
            return null;
        end if;
    end loop;
    return uri;
end
$$;
comment on function letta_store.record_uri is 'The canonical URI of the record that a reference names, NULL if it names none';

create function letta_store.uri_of(did text, space text, collection text, rkey text) returns text
    language sql immutable parallel safe
    return case space when '' then 'at://' || did else space || '/' || did end || '/' || collection || '/' || rkey;

create function letta_store.did_of(uri text) returns text
    language sql immutable parallel safe
    return split_part(uri, '/', case split_part(uri, '/', 4) when 'space' then 7 else 3 end);

create function letta_store.space_of(uri text) returns text
    language sql immutable parallel safe
    return case split_part(uri, '/', 4) when 'space'
        then array_to_string((string_to_array(uri, '/'))[1:6], '/') else '' end;

create function letta_store.rkey_of(uri text) returns text
    language sql immutable parallel safe
    return split_part(uri, '/', -1);

-- Of a canonical URI that of its text. Other forms of it hash as it does; what names no record hashes to anything.
create function letta_store.reference_hash(reference text) returns bigint
    language sql immutable parallel safe
    return hashtextextended(
        case when reference like 'at:space/%' then letta_store.record_uri(reference) else reference end, 0);

create function letta_store.template_hash(raw_system_hash text) returns text
    language sql immutable parallel safe
    return case when octet_length(raw_system_hash) = 64 and raw_system_hash ~ '^[0-9A-Fa-f]+$' then lower(raw_system_hash) end;


-- Accounts and repositories.

create table letta_store.account (
    did text collate "C" primary key,
    handle text,
    handle_time timestamptz not null default '0001-01-01 00:00+00',
    active boolean not null default true,
    status text not null default 'active',
    status_time timestamptz not null default '0001-01-01 00:00+00',
    hidden boolean not null generated always as (not active and status not in ('desynchronized', 'throttled')) stored,
    purged_rev text collate "C" not null default '',
    forgotten boolean not null default false,
    signing_key text,
    pds text,
    resolved_at timestamptz,
    check_at timestamptz,
    checks integer not null default 0
);
create index account_check on letta_store.account (check_at) where check_at is not null;
comment on table letta_store.account is
    'Every did that owns or is named by a row. purged_rev: nothing at or below it comes back. check_at: when its identity and status are asked for next. Writers lock these rows first';

create table letta_store.repo (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rev text collate "C" not null default '',
    snapshot_rev text collate "C" not null default '',
    data_cid text collate "C",
    lthash bytea,
    judgement text,
    records bigint not null default 0,
    bytes bigint not null default 0,
    marks bigint not null default 0,
    want text check (want in ('decide', 'fetch')),
    want_no bigint not null default 0,
    wanted_rev text collate "C",
    want_reasons text[] not null default '{}',
    claim_id uuid,
    lease_until timestamptz,
    attempts integer not null default 0,
    behind integer not null default 0,
    next_attempt_at timestamptz not null default '0001-01-01 00:00+00',
    last_error text,
    first_seen timestamptz not null default now(),
    wanted_since timestamptz,
    primary key (did, space)
) partition by list (space);
create index repo_want on letta_store.repo (next_attempt_at) where want is not null and space = '';
comment on table letta_store.repo is
    'A repository is tracked when it has a row. rev, data_cid: the last proven state. want: decide (pending may settle it) or fetch; behind: fetches in a row that fell short. marks: tombstones and versions';

create table letta_store.pending (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rev text collate "C" not null,
    digest text collate "C" not null,
    source text not null,
    reason text not null,
    frame bytea not null,
    seen_at timestamptz not null default now(),
    primary key (did, space, rev, digest)
);
comment on table letta_store.pending is 'Commits that could not be decided yet, as they came; bounded per repository and in all';

create table letta_store.probe (
    did text collate "C" primary key,
    attempts integer not null default 0,
    next_attempt_at timestamptz not null default now()
);
comment on table letta_store.probe is 'Untracked accounts to be asked once whether they hold what we follow';

create table letta_store.discovery (
    source text not null,
    collection text not null,
    page text,
    done boolean not null default false,
    primary key (source, collection)
);
comment on table letta_store.discovery is 'How far each source''s host has been asked for the repositories that hold a collection';


-- Records: one row each. other_record is the pattern of the typed tables.

create table letta_store.other_record (
    did text collate "C" not null,
    space text collate "C" not null default '',
    collection text collate "C" not null,
    rkey text collate "C" not null,
    uri text collate "C" not null generated always as (letta_store.uri_of(did, space, collection, rkey)) stored,
    cid text collate "C" not null,
    rev text collate "C" not null,
    value jsonb not null,
    size integer not null,
    block bytea,
    digests jsonb,
    valid boolean,
    violations jsonb,
    proof text,
    indexed_at timestamptz not null default now(),
    primary key (did, space, collection, rkey)
) partition by list (space);
comment on table letta_store.other_record is
    'Records of collections without a table of their own. block: the original bytes where value cannot give them back';

create table letta_store.conversation (
    like letta_store.other_record including defaults including generated,
    agent text generated always as (letta_store.text_at(value, 'agent')) stored,
    agent_uri text collate "C" generated always as (letta_store.record_uri(letta_store.text_at(value, 'agent'))) stored,
    role text generated always as (letta_store.text_at(value, 'role')) stored,
    title text generated always as (letta_store.text_at(value, 'title')) stored,
    model text generated always as (letta_store.text_at(value, 'model')) stored,
    hidden boolean generated always as (letta_store.boolean_at(value, 'hidden')) stored,
    created_at timestamptz generated always as (letta_store.instant(letta_store.text_at(value, 'createdAt'))) stored,
    updated_at timestamptz generated always as (letta_store.instant(letta_store.text_at(value, 'updatedAt'))) stored,
    primary key (did, space, rkey)
) partition by list (space);
create index conversation_agent on letta_store.conversation (did, hashtextextended(agent_uri, 0));

create table letta_store.compiled_prompt (
    like letta_store.other_record including defaults including generated,
    agent text generated always as (letta_store.text_at(value, 'agent')) stored,
    agent_uri text collate "C" generated always as (letta_store.record_uri(letta_store.text_at(value, 'agent'))) stored,
    agent_hash bigint generated always as (letta_store.reference_hash(letta_store.text_at(value, 'agent'))) stored,
    conversation text generated always as (letta_store.text_at(value, 'conversation')) stored,
    raw_system_hash text generated always as (letta_store.text_at(value, 'rawSystemHash')) stored,
    template_hash text collate "C"
        generated always as (letta_store.template_hash(letta_store.text_at(value, 'rawSystemHash'))) stored,
    memfs_revision text generated always as (letta_store.text_at(value, 'memfsRevision')) stored,
    compiled_at timestamptz generated always as (letta_store.instant(letta_store.text_at(value, 'compiledAt'))) stored,
    content_bytes integer,
    content_sha256 text,
    core_memory_sha256 text,
    core_memory_in_content boolean,
    primary key (did, space, rkey)
) partition by list (space);
comment on table letta_store.compiled_prompt is
    'content_bytes to core_memory_in_content: said of long texts, once, by whoever decodes them';
-- One index for both questions: the prompts of an agent anywhere, and the latest of them in one repository. The hash is
-- a column, since a reader's row policies keep the functions of an expression from being asked before them.
create index compiled_prompt_agent on letta_store.compiled_prompt
    (agent_hash, did, space, compiled_at desc nulls last, rkey desc) where agent_uri is not null;

-- One row a prompt, apart from it: flags come and go, and a prompt is long.
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

create table letta_store.agent (
    like letta_store.other_record including defaults including generated,
    name text generated always as (letta_store.text_at(value, 'name')) stored,
    model text generated always as (letta_store.text_at(value, 'model')) stored,
    system_sha256 text,
    memfs_revision text generated always as (letta_store.text_at(value, 'memfsRevision')) stored,
    primary_conversation text generated always as (letta_store.text_at(value, 'primaryConversation')) stored,
    created_at timestamptz generated always as (letta_store.instant(letta_store.text_at(value, 'createdAt'))) stored,
    primary key (did, space, rkey)
) partition by list (space);

create table letta_store.message (
    like letta_store.other_record including defaults including generated,
    conversation text generated always as (letta_store.text_at(value, 'conversation')) stored,
    conversation_uri text collate "C"
        generated always as (letta_store.record_uri(letta_store.text_at(value, 'conversation'))) stored,
    role text generated always as (letta_store.text_at(value, 'role')) stored,
    status text generated always as (letta_store.text_at(value, 'status')) stored,
    seq numeric generated always as (letta_store.number_at(value, 'seq')) stored,
    created_at timestamptz generated always as (letta_store.instant(letta_store.text_at(value, 'createdAt'))) stored,
    primary key (did, space, rkey)
) partition by list (space);
create index message_conversation on letta_store.message (did, hashtextextended(conversation_uri, 0));

create table letta_store.tombstone (
    did text collate "C" not null,
    space text collate "C" not null default '',
    collection text collate "C" not null,
    rkey text collate "C" not null,
    rev text collate "C" not null,
    proven boolean not null,
    primary key (did, space, collection, rkey)
);
comment on table letta_store.tombstone is
    'The last delete of each key: nothing at or below it comes back, whatever order events arrive in';

create table letta_store.recompile (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rkey text collate "C" not null,
    rev text collate "C" not null,
    ordinal integer not null default 0,
    cid text collate "C" not null,
    superseded boolean not null default false,
    compiled_at timestamptz,
    raw_system_hash text,
    memfs_revision text,
    content_bytes integer,
    content_sha256 text,
    core_memory_sha256 text,
    value jsonb,
    seen_at timestamptz not null default now(),
    primary key (did, space, rkey, rev, cid, ordinal)
) partition by list (space);
comment on table letta_store.recompile is
    'Every compile seen since the key''s last delete. value only with --keep-history content. superseded: the host of a space no longer had it. ordinal: before the others of its rev where negative';

create table letta_store.conversation_version (
    did text collate "C" not null,
    space text collate "C" not null default '',
    rkey text collate "C" not null,
    rev text collate "C" not null,
    cid text collate "C" not null,
    agent text,
    role text,
    seen_at timestamptz not null default now(),
    primary key (did, space, rkey, rev, cid)
) partition by list (space);


-- Public records and those of spaces are kept apart, so that a policy that lets a role see public ones only is settled when
-- a query is planned: what such a role asks never visits, counts or estimates rows that are private (docs/privacy.md).
do $$
declare
    name text;
begin
    foreach name in array array['conversation', 'compiled_prompt', 'agent', 'message', 'other_record', 'recompile',
        'conversation_version', 'freshness', 'repo'] loop
        execute format('create table letta_store.%I partition of letta_store.%I for values in (%L)',
            name || '_public', name, '');
        execute format('create table letta_store.%I partition of letta_store.%I default', name || '_private', name);
    end loop;
end
$$;


-- Sources and what was set aside.

create table letta_store.cursor (
    source text primary key,
    seq bigint,
    event_time timestamptz,
    rev text,
    filter text,
    state text not null default 'connecting',
    detail text,
    updated_at timestamptz not null default now()
);
comment on table letta_store.cursor is 'How far each source has been committed: rows and cursor in one transaction';

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

create table letta_store.space_source (
    account text collate "C" not null,
    space text collate "C" not null default '',
    rev text,
    event_time timestamptz,
    state text not null,
    detail text,
    updated_at timestamptz not null default now(),
    primary key (account, space)
);
comment on table letta_store.space_source is
    'The cursor of each repository in a space, by its author; where space is empty the state of a followed account, as it is named in the settings';

create table letta_store.forgotten_space (
    space text collate "C" primary key
);
comment on table letta_store.forgotten_space is 'Spaces that are not indexed again';

create table letta_store.dead_letter (
    id bigint generated always as identity primary key,
    source text not null,
    position bigint,
    did text,
    reason text not null,
    detail text not null,
    frame bytea,
    size integer not null,
    seen_at timestamptz not null default now()
);
comment on table letta_store.dead_letter is 'Frames and rows set aside, newest kept: bounded by rows, bytes and age';


-- Freshness. The view freshness_truth is the definition (docs/architecture.md says it in words), by two functions of which
-- the statement refresh makes use as well: it keeps the table freshness equal to it, in every transaction that can change
-- the outcome. Both are written so that the planner puts their text where they are called.

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


-- What people query. Every view runs with its reader's rights; accounts that are hidden (deactivated, suspended, taken
-- down, deleted) are left out everywhere but in letta.repo.

create view letta.record with (security_invoker = true) as
with kept as (
    select did, space, collection, rkey, uri, cid, rev, value, valid, violations, proof, indexed_at from letta_store.conversation
    union all
    select did, space, collection, rkey, uri, cid, rev, value, valid, violations, proof, indexed_at from letta_store.compiled_prompt
    union all
    select did, space, collection, rkey, uri, cid, rev, value, valid, violations, proof, indexed_at from letta_store.agent
    union all
    select did, space, collection, rkey, uri, cid, rev, value, valid, violations, proof, indexed_at from letta_store.message
    union all
    select did, space, collection, rkey, uri, cid, rev, value, valid, violations, proof, indexed_at from letta_store.other_record
)
select
    r.uri, r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.value, r.valid, r.violations,
    r.proof is not null as verified, r.proof, r.indexed_at
from kept r join letta_store.account x on x.did = r.did
where not x.hidden;
comment on view letta.record is
    'Every record under the followed collections. verified: its proof holds; valid: it fits its schema (null: none known)';

create view letta.conversation_all with (security_invoker = true) as
select
    r.uri, r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.value, r.valid, r.violations,
    r.proof is not null as verified, r.proof, r.indexed_at,
    r.agent, r.role, r.title, r.model, r.value -> 'modelSettings' as model_settings, coalesce(r.hidden, false) as hidden,
    r.created_at, r.updated_at
from letta_store.conversation r join letta_store.account x on x.did = r.did
where not x.hidden;
comment on view letta.conversation_all is 'Every conversation, hidden ones included';

create view letta.conversation with (security_invoker = true) as
select * from letta.conversation_all where not hidden;
comment on view letta.conversation is 'Conversations as a listing shows them: hidden ones are left out';

create view letta.recompile with (security_invoker = true) as
select
    letta_store.uri_of(h.did, h.space, 'xyz.quasigod.lab.letta.compiledPrompt', h.rkey) as uri, h.did, h.space, h.rkey,
    h.rev, h.cid, h.previous_cid,
    case
        when h.superseded or h.previous_superseded then null
        when h.previous_cid is null then 'first'
        when h.content_sha256 is distinct from h.previous_content then 'full'
        when h.core_memory_sha256 is distinct from h.previous_core_memory
            or h.memfs_revision is distinct from h.previous_memfs_revision then 'memory'
        else 'touch'
    end as kind,
    h.compiled_at, h.raw_system_hash, h.memfs_revision, h.content_bytes, h.content_sha256, h.core_memory_sha256,
    case when h.content_sha256 is not null then h.value ->> 'content' end as content,
    case when h.core_memory_sha256 is not null then h.value ->> 'coreMemory' end as core_memory, h.superseded, h.seen_at
from (
    select
        v.*,
        lag(v.cid) over compiles as previous_cid,
        lag(v.superseded) over compiles as previous_superseded,
        lag(v.content_sha256) over compiles as previous_content,
        lag(v.core_memory_sha256) over compiles as previous_core_memory,
        lag(v.memfs_revision) over compiles as previous_memfs_revision
    from letta_store.recompile v
    window compiles as (partition by v.did, v.space, v.rkey order by v.rev, v.ordinal, v.cid)
) h join letta_store.account x on x.did = h.did
where not x.hidden and h.cid is distinct from h.previous_cid;
comment on view letta.recompile is
    'Every compile seen of every prompt, by rev; kind: first, full (content changed), memory (core memory or its revision changed), touch; none where a version is unknown (superseded)';

create view letta.compiled_prompt with (security_invoker = true) as
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
comment on view letta.compiled_prompt is
    'Every compiled prompt with its freshness: fresh, stale (with reasons and evidence) or unverified (nothing to compare with)';

create view letta.stale_prompt with (security_invoker = true) as
select
    uri, did, space, collection, rkey, cid, rev, value, valid, verified, agent, conversation, raw_system_hash,
    memfs_revision, compiled_at, previous_cid, recompiles, freshness, stale_reasons, stale_since, evidence
from letta.compiled_prompt
where freshness = 'stale';
comment on view letta.stale_prompt is
    'Prompts that some record contradicts: stale_reasons says what changed, evidence which record says so, found and expected';

create view letta.agent with (security_invoker = true) as
select
    r.uri, r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.value, r.valid, r.violations,
    r.proof is not null as verified, r.proof, r.indexed_at,
    r.name, r.model, case when r.system_sha256 is not null then r.value ->> 'system' end as system, r.system_sha256,
    r.memfs_revision, r.primary_conversation, r.created_at
from letta_store.agent r join letta_store.account x on x.did = r.did
where not x.hidden;
comment on view letta.agent is 'Every agent; system_sha256 is what the raw_system_hash of its prompts has to be';

create view letta.message with (security_invoker = true) as
select
    r.uri, r.did, r.space, r.collection, r.rkey, r.cid, r.rev, r.value, r.valid, r.violations,
    r.proof is not null as verified, r.proof, r.indexed_at,
    r.conversation, r.role, r.status, r.seq, r.value -> 'content' as content, r.created_at
from letta_store.message r join letta_store.account x on x.did = r.did
where not x.hidden;
comment on view letta.message is 'Every message';

create view letta.thread with (security_invoker = true) as
select
    m.conversation_uri as conversation, m.did, m.space,
    row_number() over (partition by m.did, m.space, m.conversation_uri order by m.seq, m.rkey) as position,
    m.uri, m.seq, m.role, m.status, m.value -> 'content' as content, m.created_at
from letta_store.message m join letta_store.account x on x.did = m.did
where not x.hidden and m.conversation_uri is not null;
comment on view letta.thread is 'The messages of each conversation in order of seq; filter by conversation';

create view letta.integrity_issue with (security_invoker = true) as
with prompt as (
    select
        p.uri, p.did, p.space, p.rkey, p.rev, p.agent, p.agent_uri, p.compiled_at, p.core_memory_in_content,
        letta_store.record_uri(p.conversation) as conversation_uri
    from letta_store.compiled_prompt p join letta_store.account x on x.did = p.did where not x.hidden
), conversation as (
    select c.uri, c.did, c.space, c.rkey, c.agent, c.agent_uri, c.role
    from letta_store.conversation c join letta_store.account x on x.did = c.did where not x.hidden
), agent as (
    select a.uri, a.did, a.space, letta_store.record_uri(a.primary_conversation) as primary_uri
    from letta_store.agent a join letta_store.account x on x.did = a.did where not x.hidden
), message as (
    select m.uri, m.did, m.space, m.conversation_uri
    from letta_store.message m join letta_store.account x on x.did = m.did where not x.hidden
), primaries as (
    select did, space, agent_uri, count(*) as conversations from conversation
    where role = 'primary' and agent_uri is not null group by did, space, agent_uri
), reference as (
    select did, space, uri, 'agent' as field, agent_uri as target from prompt
    union all select did, space, uri, 'conversation', conversation_uri from prompt
    union all select did, space, uri, 'agent', agent_uri from conversation
    union all select did, space, uri, 'primaryConversation', primary_uri from agent
    union all select did, space, uri, 'conversation', conversation_uri from message
)
select 'rkey_mismatch' as kind, 'error' as severity, p.uri, p.did, p.space,
    jsonb_build_object('conversation', p.conversation_uri) as detail
from prompt p
where letta_store.did_of(p.conversation_uri) = p.did and letta_store.space_of(p.conversation_uri) = p.space
    and letta_store.rkey_of(p.conversation_uri) <> p.rkey
union all
select 'agent_mismatch', 'error', p.uri, p.did, p.space,
    jsonb_build_object('prompt', left(p.agent, 2000), 'conversation', left(c.agent, 2000))
from prompt p join conversation c on c.did = p.did and c.space = p.space and c.rkey = p.rkey
where coalesce(p.agent_uri, p.agent) is distinct from coalesce(c.agent_uri, c.agent)
union all
select 'prompt_without_conversation', 'warning', p.uri, p.did, p.space, jsonb_build_object('rkey', p.rkey)
from prompt p
left join conversation c on c.did = p.did and c.space = p.space and c.rkey = p.rkey
where c.did is null
union all
select 'no_primary', 'warning', a.uri, a.did, a.space, jsonb_build_object('primaries', 0)
from agent a
left join primaries n on n.did = a.did and n.space = a.space and n.agent_uri = a.uri
where n.did is null
union all
select 'several_primaries', 'error', a.uri, a.did, a.space, jsonb_build_object('primaries', n.conversations)
from agent a join primaries n on n.did = a.did and n.space = a.space and n.agent_uri = a.uri
where n.conversations > 1
union all
select 'dangling_reference', 'warning', f.uri, f.did, f.space, jsonb_build_object('field', f.field, 'target', f.target)
from reference f
left join agent a on a.did = f.did and a.space = f.space and a.uri = f.target
left join conversation c on c.did = f.did and c.space = f.space and c.uri = f.target
left join prompt p on p.did = f.did and p.space = f.space and p.uri = f.target
left join message m on m.did = f.did and m.space = f.space and m.uri = f.target
left join letta_store.other_record o on o.did = f.did and o.space = f.space and o.uri = f.target
where letta_store.did_of(f.target) = f.did and letta_store.space_of(f.target) = f.space
    and a.did is null and c.did is null and p.did is null and m.did is null and o.did is null
union all
select 'conversation_changed', 'error', c.uri, c.did, c.space,
    jsonb_build_object('agents', v.agents, 'roles', v.roles, 'versions', v.versions)
from conversation c
join (
    select did, space, rkey, count(distinct coalesce(agent, '')) as agents, count(distinct coalesce(role, '')) as roles,
        count(distinct cid) as versions
    from letta_store.conversation_version group by did, space, rkey
) v on v.did = c.did and v.space = c.space and v.rkey = c.rkey
where v.agents > 1 or v.roles > 1
union all
select 'core_memory_not_in_content', 'information', p.uri, p.did, p.space, null
from prompt p where not p.core_memory_in_content
union all
select 'compiled_in_future', 'information', p.uri, p.did, p.space,
    jsonb_build_object('compiled_at', p.compiled_at, 'rev', p.rev)
from prompt p where p.compiled_at > letta_store.rev_time(p.rev);
comment on view letta.integrity_issue is
    'What does not fit together within one repository; severity: error, warning or information';

create view letta.repo with (security_invoker = true) as
select
    r.did, r.space, x.handle, x.active, x.status, x.hidden, r.rev, r.snapshot_rev, r.records, r.bytes,
    r.want, r.want_reasons, r.wanted_rev, r.attempts, r.next_attempt_at, r.last_error, r.first_seen, r.judgement,
    case when r.want is not null then r.wanted_since end as wanted_since
from letta_store.repo r join letta_store.account x on x.did = r.did;
comment on view letta.repo is 'Every tracked repository: its account''s status, how much of it is kept, what is wanted of it and why, its last error';

create view letta.source with (security_invoker = true) as
select source, seq, rev, event_time, state, detail, updated_at from letta_store.cursor
union all
select 'space:' || case space when '' then account else space || '#' || account end, null, rev, event_time, state, detail,
    updated_at
from letta_store.space_source;
comment on view letta.source is
    'Every source: the committed cursor, the time of its last event, whether it is live; spaces only to those who may see them';

create view letta.dead_letter with (security_invoker = true) as
select id, source, position, did, reason, detail, size, seen_at from letta_store.dead_letter;
comment on view letta.dead_letter is 'What was set aside and why; the frames themselves are not shown';


-- letta_reader: may read the views and no more. Its rights are on columns; its rows, by static policies, public ones.
-- Who is to see a space as well is granted it by letta.grant_space, which adds static policies for that role.

do $$
begin
    if not exists (select from pg_roles where rolname = 'letta_reader') then
        create role letta_reader nologin;
    end if;
exception
    when duplicate_object or unique_violation then null;  -- another database of this server was first
    when insufficient_privilege then
        raise exception 'role letta_reader is missing and this user may not create it'
            using hint = 'create role letta_reader nologin, as a superuser, once for this server';
end
$$;

grant usage on schema letta to letta_reader;
grant select on all tables in schema letta to letta_reader;

do $$
declare
    name text;
    statement text;
begin
    foreach name in array array['conversation', 'compiled_prompt', 'agent', 'message', 'other_record', 'recompile',
        'conversation_version', 'freshness', 'repo'] loop
        execute format('alter table letta_store.%I enable row level security', name);
        execute format('create policy public_records on letta_store.%I for select to letta_reader using (space = %L)', name, '');
    end loop;
    alter table letta_store.space_source enable row level security;
    create policy no_spaces on letta_store.space_source for select to letta_reader using (false);
    -- Row level security also keeps the planner's samples of a table (pg_stats) from those who read it.
    foreach name in array array['account', 'cursor', 'dead_letter'] loop
        execute format('alter table letta_store.%I enable row level security', name);
        execute format('create policy every_row on letta_store.%I for select to letta_reader using (true)', name);
    end loop;
    grant select (did, handle, active, status, hidden) on letta_store.account to letta_reader;
    for statement in  -- every column but the raw bytes
        select format('grant select (%s) on letta_store.%I to letta_reader', string_agg(quote_ident(attname), ', '), relname)
        from pg_attribute join pg_class on pg_class.oid = attrelid
        where relnamespace = 'letta_store'::regnamespace and relkind in ('r', 'p') and attnum > 0 and not attisdropped
            and attname not in ('block', 'frame', 'lthash')
            and relname in ('conversation', 'compiled_prompt', 'agent', 'message', 'other_record', 'recompile',
                'conversation_version', 'freshness', 'repo', 'cursor', 'space_source', 'dead_letter')
        group by relname
    loop
        execute statement;
    end loop;
    grant select on letta_store.freshness_truth to letta_reader;
end
$$;

create function letta_store.space_policy(space text, reader name) returns name
    language sql immutable parallel safe
    return ('space ' || left(encode(sha256((reader || ' ' || replace(space, '\', '\\'))::bytea), 'hex'), 48))::name;
comment on function letta_store.space_policy is 'The name of the policies that let a role see a space';

create function letta.revoke_space(space text, reader name) returns void
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
comment on function letta.revoke_space is 'Takes back what grant_space gave; the role still sees what is public';

create function letta.grant_space(space text, reader name) returns void
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
comment on function letta.grant_space is
    'Lets a role see the records of one space, beside the public ones. For the owner of the tables; undone by revoke_space';

revoke execute on function letta.grant_space, letta.revoke_space from public;
