-- Distributes the tables of letta-indexer over a Citus cluster, by did. docs/scaling.md says when, how, and what was tried.
--
--     letta-indexer stopped; on the coordinator, as the owner of the tables, after `create extension citus`:
--     psql -v ON_ERROR_STOP=1 --single-transaction -f citus.sql DATABASE
--
-- Works on an empty schema and on a filled one, whose rows are copied to the shards. Run again it changes nothing: tables
-- that are distributed already are passed over. In one transaction, so that a failure leaves everything as it was.

-- Shards a table, for those that are distributed from here on. Each is a connection's work for every batch, and some thirty
-- tables on its node, partitions included: few are faster to write to. But there can't be more nodes with data than shards.
-- For a cluster of up to eight:
set citus.shard_count = 8;

do $$
declare
    -- By did, and co-located: what belongs to one account is on one node, and joins on did stay there. account is first,
    -- as the table that the others are placed by. Partitions follow the tables they are part of.
    distributed constant text[] := array[
        'account',
        'repo',
        'pending',
        'conversation',
        'compiled_prompt',
        'agent',
        'message',
        'other_record',
        'tombstone',
        'recompile',
        'conversation_version',
        'freshness'];
    -- Local to the coordinator: small, and none is joined with the others by did. An update of a position takes half a
    -- millisecond here; in a table that every node has a copy of it takes six times as long.
    local constant text[] := array[
        'schema_version',
        'lease',
        'cursor',
        'space_source',
        'forgotten_space',
        'discovery',
        'probe',
        'dead_letter'];
    place constant regclass := 'letta_store.account';
    unknown text;
    name text;
begin
    select string_agg(c.relname, ', ' order by c.relname) into unknown
    from pg_class c
    where c.relnamespace = 'letta_store'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
        and c.relname <> all (distributed || local);
    if unknown is not null then
        raise exception 'no place is known for %', unknown
            using hint = 'this file is of another release of letta-indexer than the schema';
    end if;

    foreach name in array distributed loop
        if not exists (
            select from pg_dist_partition p where p.logicalrelid = format('letta_store.%I', name)::regclass) then
            perform create_distributed_table(
                format('letta_store.%I', name)::regclass, 'did',
                colocate_with => case when name = 'account' then 'none' else place::text end);
        end if;
    end loop;
end
$$;

-- What came of it: every table once, all distributed ones of one group.
select c.relname as "table", case when p.logicalrelid is null then 'local' else 'distributed' end as place, p.colocationid
from pg_class c
left join pg_dist_partition p on p.logicalrelid = c.oid
where c.relnamespace = 'letta_store'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
order by 2, 1;
