"""The anatomy of a statement: each query in it is a level, with what stands in its FROM and what is demanded of that.

Parsed by PostgreSQL's own parser (libpg_query), so nothing that PostgreSQL takes is misread. Names are resolved as far
as the rules need: whose ``did`` a ``did`` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from pglast import ast, enums, parse_sql

Node: TypeAlias = Any  # a node of pglast's, or None; its classes give the fields no types


class Place(Enum):
    """Where the rows come from that something in a FROM gives."""

    SHARDS = "distributed by did"
    COORDINATOR = "a local table"
    ANYWHERE = "rows of the statement's own: unnest, values, results of a subquery fetched beforehand"


Places = Mapping[str, Place]  # of tables and views, by their qualified names


@dataclass(slots=True)
class Item:
    """Something in a FROM, or the table that is written to, by the name it has in its level."""

    name: str
    place: Place
    lateral: bool = False
    optional: bool = False  # the inner side of a left join
    query: Level | None = None  # of a subquery
    is_named: bool = False  # a query of WITH


@dataclass(slots=True, eq=False)
class Level:
    """One SELECT, INSERT, UPDATE or DELETE. Branches of a UNION are levels of their own."""

    node: Node
    outer: Level | None
    items: dict[str, Item] = field(default_factory=dict)
    demands: list[Node] = field(default_factory=list)  # that all have to hold: WHERE and ON, split at AND
    inner: list[Level] = field(default_factory=list)  # subqueries in expressions
    branches: list[Level] = field(default_factory=list)
    ctes: dict[str, Level] = field(default_factory=dict)
    target: Item | None = None

    @property
    def sharded(self) -> list[Item]:
        """What comes from shards, the table written to included."""
        return [item for item in self.items.values() if item.place is Place.SHARDS]

    @property
    def correlated(self) -> bool:
        """Whether this names something of the level around it."""
        own = {name for level in self.walk() for name in level.items}
        names = {ref[0] for ref in map(_names, find(self.node, ast.ColumnRef)) if len(ref) > 1}
        return self.outer is not None and bool(names & self.outer.items.keys() - own)

    def walk(self) -> Iterator[Level]:
        """This level and all in it; a query with a name of its own (WITH) where it is written."""
        yield self
        named = self.ctes.values()
        subqueries = [item.query for item in self.items.values() if item.query is not None and not item.is_named]
        for level in [*named, *self.branches, *subqueries, *self.inner]:
            yield from level.walk()

    def find_cte(self, name: str) -> Level | None:
        """The query that a name of a WITH stands for, here or around."""
        if name in self.ctes:
            return self.ctes[name]
        return self.outer.find_cte(name) if self.outer is not None else None


def read(sql: str, places: Places) -> list[Level]:
    """The levels on top of all statements in a text; statements without rows (DDL, LOCK) have none."""
    return [
        _level(statement.stmt, None, places)
        for statement in parse_sql(sql)
        if isinstance(statement.stmt, ast.SelectStmt | ast.InsertStmt | ast.UpdateStmt | ast.DeleteStmt)
    ]


def find(node: Node, *kinds: type[ast.Node], within: bool = True) -> Iterator[Any]:
    """Every node of these kinds at or below a node; with ``within=False`` not below subqueries in expressions."""
    if isinstance(node, tuple | list):
        for one in node:
            yield from find(one, *kinds, within=within)
    elif isinstance(node, ast.Node):
        if isinstance(node, kinds):
            yield node
        if within or not isinstance(node, ast.SubLink):
            for name in node:
                yield from find(getattr(node, name), *kinds, within=within)


def column(node: Node) -> tuple[str, ...] | None:
    """The names of a column reference, None for anything else; casts are looked through."""
    while isinstance(node, ast.TypeCast | ast.CollateClause):
        node = node.arg
    return _names(node) if isinstance(node, ast.ColumnRef) else None


def function_name(call: Node) -> str:
    """The unqualified name of a function that is called."""
    return str(call.funcname[-1].sval)


def operator_name(expression: Node) -> str:
    """The unqualified name of an operator that is used."""
    return str(expression.name[-1].sval)


def _names(ref: Node) -> tuple[str, ...]:
    return tuple("*" if isinstance(part, ast.A_Star) else part.sval for part in ref.fields)


def _level(node: Node, outer: Level | None, places: Places) -> Level:
    level = Level(node, outer)
    for cte in node.withClause.ctes if getattr(node, "withClause", None) else ():
        level.ctes[cte.ctename] = _level(cte.ctequery, level, places)
    if isinstance(node, ast.SelectStmt) and node.op != enums.SetOperation.SETOP_NONE:
        level.branches = [_level(node.larg, level, places), _level(node.rarg, level, places)]
        return level
    if not isinstance(node, ast.SelectStmt):
        level.target = _add_table(level, node.relation, places)
    if isinstance(node, ast.InsertStmt):
        if node.selectStmt is not None:
            level.branches = [_level(node.selectStmt, level, places)]
        _add_expressions(level, (node.onConflictClause, node.returningClause), places)
        return level
    sources = node.usingClause if isinstance(node, ast.DeleteStmt) else node.fromClause
    for source in sources or ():
        _add(level, source, places)
    level.demands += _split(node.whereClause)
    rest = [getattr(node, name) for name in node if name not in ("fromClause", "usingClause", "withClause")]
    _add_expressions(level, (*rest, *(demand for demand in level.demands)), places)
    return level


def _add_expressions(level: Level, expressions: Node, places: Places) -> None:
    for link in _links(expressions):
        known = any(link.subselect is one.node for one in level.inner)
        if not known:
            level.inner.append(_level(link.subselect, level, places))


def _links(node: Node) -> Iterator[ast.SubLink]:
    """Subqueries in an expression, not those within them."""
    if isinstance(node, tuple | list):
        for one in node:
            yield from _links(one)
    elif isinstance(node, ast.SubLink):
        yield node
    elif isinstance(node, ast.Node):
        for name in node:
            yield from _links(getattr(node, name))


def _add(level: Level, source: Node, places: Places, *, optional: bool = False) -> None:
    """Add one source in a FROM to a level, and what a join demands."""
    if isinstance(source, ast.JoinExpr):
        inner_right = source.jointype in (enums.JoinType.JOIN_LEFT, enums.JoinType.JOIN_FULL)
        inner_left = source.jointype in (enums.JoinType.JOIN_RIGHT, enums.JoinType.JOIN_FULL)
        _add(level, source.larg, places, optional=optional or inner_left)
        _add(level, source.rarg, places, optional=optional or inner_right)
        level.demands += _split(source.quals)
    elif isinstance(source, ast.RangeVar):
        _add_table(level, source, places).optional = optional
    elif isinstance(source, ast.RangeTableSample):
        _add(level, source.relation, places, optional=optional)
    elif isinstance(source, ast.RangeSubselect):
        query = _level(source.subquery, level, places)
        name = _name_of(source, f"subquery {len(level.items)}")
        level.items[name] = Item(name, _place_of_rows(query), bool(source.lateral), optional, query)
    else:  # a function: rows of its own
        name = _name_of(source, f"function {len(level.items)}")
        level.items[name] = Item(name, Place.ANYWHERE, optional=optional)
        _add_expressions(level, source, places)


def _name_of(source: Node, otherwise: str) -> str:
    alias = getattr(source, "alias", None)
    return str(alias.aliasname) if alias else otherwise


def _add_table(level: Level, table: Node, places: Places) -> Item:
    name = _name_of(table, table.relname)
    cte = level.find_cte(table.relname) if not table.schemaname else None
    if cte is not None:
        item = Item(name, _place_of_rows(cte), query=cte, is_named=True)
    else:
        item = Item(name, _place_of_table(f"{table.schemaname or 'pg_catalog'}.{table.relname}", places))
    level.items[name] = item
    return item


def _place_of_table(qualified: str, places: Places) -> Place:
    """Raises KeyError for a table of ours whose place nobody has decided."""
    return Place.COORDINATOR if qualified.startswith("pg_catalog.") else places[qualified]


def place_of(query: Level) -> Place:
    """Where the rows of a query come from: shards, if any of them do."""
    found = {item.place for item in query.items.values()}
    found |= {_place_of_rows(level) for level in (*query.branches, *query.inner)}
    return next((place for place in Place if place in found), Place.ANYWHERE)


def _place_of_rows(query: Level) -> Place:
    """Where the rows of a subquery come from: one with a LIMIT or OFFSET of its own is run by itself, and fetched."""
    cut = getattr(query.node, "limitOffset", None) or getattr(query.node, "limitCount", None)
    return Place.ANYWHERE if cut is not None and not query.correlated else place_of(query)


def _split(condition: Node) -> list[Node]:
    if condition is None:
        return []
    if isinstance(condition, ast.BoolExpr) and condition.boolop == enums.BoolExprType.AND_EXPR:
        return [part for arg in condition.args or () for part in _split(arg)]
    return [condition]
