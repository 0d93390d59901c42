"""What a statement has to keep to so that Citus can run it on tables distributed by did: one function a rule.

Each takes a statement and gives what breaks the rule, in words; nothing is a statement that keeps to it. They are about
the text alone: a statement can keep to all of them and fail all the same, since none of this was run on Citus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pglast import ast, enums

from tests.scaling.joins import classes_of, dids_of, is_equality
from tests.scaling.levels import Item, Level, Node, Place, column, find, function_name, operator_name

COORDINATOR_ONLY = ("pg_notify", "pg_advisory", "pg_try_advisory")  # a notify on a worker is never heard
LOCKER = "lock_accounts"  # the one statement that locks accounts of several dids


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement by name: its levels on top, and the functions that are not immutable."""

    name: str
    tops: tuple[Level, ...]
    unstable: frozenset[str]

    def levels(self) -> Iterator[Level]:
        """Every level in it."""
        for top in self.tops:
            yield from top.walk()


Rule: TypeAlias = Callable[[Statement], Iterator[str]]


def joins_are_on_did(statement: Statement) -> Iterator[str]:
    """What comes from shards is joined on did, subqueries that name what is around them included.

    Else: "complex joins are only supported when all distributed tables are co-located and joined on their distribution
    columns". Joined on a URI too, it is joined on did as well.
    """
    for top in statement.tops:
        classes = classes_of(top)
        for level in top.walk():
            together = [level, *(inner for inner in level.inner if inner.correlated)]
            names = [item.name for one in together for item in one.sharded]
            if len(names) > 1 and len({classes.of(did) for one in together for did in dids_of(one)}) > 1:
                yield f"not joined on did: {', '.join(names)}"


def changes_depend_on_no_clock(statement: Statement) -> Iterator[str]:
    """No function that isn't immutable in what is set on a conflict or by an update, nor in the conditions of a change.

    Shards would each call it for themselves: Citus refuses it there, in CASE and COALESCE even of inserts.
    """
    for level in statement.levels():
        if level.target is None or level.target.place is not Place.SHARDS:
            continue
        node = level.node
        places = [getattr(node, "onConflictClause", None), getattr(node, "whereClause", None)]
        if isinstance(node, ast.UpdateStmt):
            places.append(node.targetList)
        if isinstance(node, ast.InsertStmt):
            places += find(node.selectStmt, ast.CaseExpr, ast.CoalesceExpr)
        for call in find(places, ast.FuncCall, ast.SQLValueFunction):
            name = function_name(call) if isinstance(call, ast.FuncCall) else call.op.name.lower()
            if isinstance(call, ast.SQLValueFunction) or name in statement.unstable:
                yield f"{name} is not immutable"


def guards_are_fetched_first(statement: Statement) -> Iterator[str]:
    """Beside rows of its own (unnest), a statement asks shards by a left join of ``(select … offset 0)``.

    Never by a subquery in an expression that names those rows, nor by any subquery within ON CONFLICT.
    """
    for level in statement.levels():
        rows = {item.name for item in level.items.values() if item.place is Place.ANYWHERE}
        for inner in level.inner:
            if rows and inner.correlated and any(one.sharded for one in inner.walk()):
                yield f"a correlated subquery beside {', '.join(sorted(rows))}"
        if rows and all(item.optional for item in level.sharded):
            for item in level.sharded:
                if not _has_dids(level, item):
                    yield f"{item.name} is left joined to rows without offset 0"
        conflict = getattr(level.node, "onConflictClause", None)
        if next(find(conflict, ast.SubLink), None) is not None:
            yield "a subquery within ON CONFLICT"


def laterals_need_no_merging(statement: Statement) -> Iterator[str]:
    """A lateral subquery over shards beside rows of the statement's own has no LIMIT, OFFSET, DISTINCT or aggregate.

    "Limit clause is currently unsupported when a lateral subquery references a column from a function". Correlated on
    the did of a distributed table it may have them.
    """
    for level in statement.levels():
        laterals = [item for item in level.sharded if item.lateral]
        if len(laterals) == len(level.items) or len(laterals) < len(level.sharded):
            continue
        for item in laterals:
            if item.query is not None and any(map(_merges, item.query.walk())):
                yield f"{item.name}: LIMIT, OFFSET, DISTINCT or GROUP BY in a lateral subquery beside rows"


def _merges(level: Level) -> bool:
    names = ("limitCount", "limitOffset", "distinctClause", "groupClause")
    return any(getattr(level.node, name, None) is not None for name in names)


def writes_name_their_dids(statement: Statement) -> Iterator[str]:
    """Every UPDATE and DELETE of a distributed table has ``did = $n`` or ``did = any($n)``: few shards, not all."""
    for level in statement.levels():
        target = level.target if isinstance(level.node, ast.UpdateStmt | ast.DeleteStmt) else None
        if target is not None and target.place is Place.SHARDS and not _has_dids(level, target):
            yield f"{target.name}: neither did = $n nor did = any($n)"


def row_locks_name_one_did(statement: Statement) -> Iterator[str]:
    """FOR UPDATE, with SKIP LOCKED or not, is of one did: "SELECT … FOR UPDATE work in single-shard queries only"."""
    for level in statement.levels():
        if not getattr(level.node, "lockingClause", None):
            continue
        for item in level.sharded:
            if not _has_dids(level, item, several=False):
                yield f"{item.name} is locked without did = $n"


def accounts_are_locked_in_one_place(statement: Statement) -> Iterator[str]:
    """Locks by an upsert whose condition is false are taken by one statement, so that Citus can be given one a did."""
    for level in statement.levels():
        conflict = getattr(level.node, "onConflictClause", None)
        condition = getattr(conflict, "whereClause", None)
        if isinstance(condition, ast.A_Const) and statement.name != LOCKER:
            yield f"locks rows, which is what {LOCKER} is for"


def effects_here_stand_alone(statement: Statement) -> Iterator[str]:
    """Notifications and advisory locks have no distributed table in their statement: a worker might run them."""
    for top in statement.tops:
        calls = [function_name(call) for call in find(top.node, ast.FuncCall)]
        if any(level.sharded for level in top.walk()):
            yield from (f"{name} beside a distributed table" for name in calls if name.startswith(COORDINATOR_ONLY))


def nothing_recurses_or_rolls_up(statement: Statement) -> Iterator[str]:
    """No WITH RECURSIVE, ROLLUP, CUBE, GROUPING SETS or TABLESAMPLE: each works within one shard only."""
    for top in statement.tops:
        if any(level.sharded for level in top.walk()):
            yield from ("WITH RECURSIVE" for clause in find(top.node, ast.WithClause) if clause.recursive)
            yield from ("GROUPING SETS" for _ in find(top.node, ast.GroupingSet))
            yield from ("TABLESAMPLE" for _ in find(top.node, ast.RangeTableSample))


def limits_are_ordered(statement: Statement) -> Iterator[str]:
    """Where only some rows are taken it is said which: shards answer in any order."""
    for level in statement.levels():
        node = level.node
        if getattr(node, "limitCount", None) is not None and not node.sortClause and level.sharded:
            yield "LIMIT without ORDER BY"


def local_tables_stand_apart(statement: Statement) -> Iterator[str]:
    """No local table in one FROM with a distributed one: "direct joins between distributed and local tables"."""
    for level in statement.levels():
        local = [item.name for item in level.items.values() if item.place is Place.COORDINATOR]
        if local and level.sharded:
            yield f"local {', '.join(local)} beside distributed {', '.join(item.name for item in level.sharded)}"


def conflicts_are_found_by_did(statement: Statement) -> Iterator[str]:
    """ON CONFLICT names a key that has did in it: no other is unique across shards."""
    for level in statement.levels():
        infer = getattr(getattr(level.node, "onConflictClause", None), "infer", None)
        if infer is None or level.target is None or level.target.place is not Place.SHARDS:
            continue
        if "did" not in [element.name for element in infer.indexElems]:
            yield "ON CONFLICT of a key without did"


def _has_dids(level: Level, item: Item, *, several: bool = True) -> bool:
    """Whether a level demands the did of an item to be a parameter, or with ``several`` one of an array of them."""
    return any(_names_dids(demand, item.name, several=several) for demand in level.demands)


def _names_dids(demand: Node, name: str, *, several: bool) -> bool:
    names = column(demand.lexpr) if isinstance(demand, ast.A_Expr) else None
    if names is None or names[-1] != "did" or (len(names) > 1 and names[0] != name):
        return False
    value = demand.rexpr
    while isinstance(value, ast.TypeCast):
        value = value.arg
    several_are = demand.kind == enums.A_Expr_Kind.AEXPR_OP_ANY and operator_name(demand) == "="
    return isinstance(value, ast.ParamRef) and (is_equality(demand) or (several and several_are))


RULES: tuple[Rule, ...] = (
    joins_are_on_did,
    changes_depend_on_no_clock,
    guards_are_fetched_first,
    laterals_need_no_merging,
    writes_name_their_dids,
    row_locks_name_one_did,
    accounts_are_locked_in_one_place,
    effects_here_stand_alone,
    nothing_recurses_or_rolls_up,
    limits_are_ordered,
    local_tables_stand_apart,
    conflicts_are_found_by_did,
)
