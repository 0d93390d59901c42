"""Whose did equals whose: classes of items whose did a statement demands to be the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from pglast import ast, enums

from tests.scaling.levels import Item, Level, Node, Place, column, operator_name


class Classes:
    """Disjoint sets (union-find) of dids: of items, by level and name, and of parameters."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make the classes of both one."""
        self._parents[self.of(one)] = self.of(other)

    def of(self, one: Hashable) -> Hashable:
        """What stands for the class of this."""
        while one in self._parents and self._parents[one] != one:
            one = self._parents[one]
        return one


def classes_of(top: Level) -> Classes:
    """The classes of a whole statement."""
    classes = Classes()
    for level in top.walk():
        for demand in level.demands:
            sides = _sides_of_equality(demand)
            dids = [did for side in sides if (did := _did(side, level)) is not None]
            if len(dids) == 2:
                classes.join(*dids)
        for item in level.items.values():
            for did in _exposed(item):
                classes.join((id(level), item.name), did)
    return classes


def dids_of(level: Level) -> Iterator[Hashable]:
    """The dids of all that comes from shards in a level; a subquery that has none to show is looked into."""
    for item in level.sharded:
        if item.query is None or any(True for _ in _exposed(item)):
            yield (id(level), item.name)
        else:
            for branch in _leaves(item.query):
                yield from dids_of(branch)


def is_equality(node: Node) -> bool:
    """Whether a demand is ``left = right``."""
    return isinstance(node, ast.A_Expr) and node.kind == enums.A_Expr_Kind.AEXPR_OP and operator_name(node) == "="


def _sides_of_equality(demand: Node) -> tuple[Node, ...]:
    return (demand.lexpr, demand.rexpr) if is_equality(demand) else ()


def _did(side: Node, level: Level) -> Hashable | None:
    """What names a did: the did of an item here or around, or a parameter."""
    while isinstance(side, ast.TypeCast | ast.CollateClause):
        side = side.arg
    if isinstance(side, ast.ParamRef):
        return ("parameter", side.number)
    names = column(side)
    if names is None or names[-1] != "did":
        return None
    owner: Level | None = level
    while owner is not None:
        if len(names) == 2 and names[0] in owner.items:
            return (id(owner), names[0])
        if len(names) == 1 and (only := _only(owner)) is not None:
            return (id(owner), only.name)
        owner = owner.outer
    return None


def _only(level: Level) -> Item | None:
    """The item that an unqualified did must be of: the only one, or the only one that comes from a table."""
    items = [item for item in level.items.values() if item.place is not Place.ANYWHERE] or list(level.items.values())
    return items[0] if len(items) == 1 else None


def _exposed(item: Item) -> Iterator[Hashable]:
    """The dids within a subquery that its column did is made of."""
    if item.query is not None and item.place is Place.SHARDS:
        for branch in _leaves(item.query):
            yield from _own(branch)


def _leaves(query: Level) -> Iterator[Level]:
    if query.branches:
        for branch in query.branches:
            yield from _leaves(branch)
    else:
        yield query


def _own(query: Level) -> Iterator[Hashable]:
    """The did in a query's own output: only where it is one that rows are distributed by."""
    for target in _outputs(query.node):
        names = column(target.val) or ()
        if names == ("*",):
            yield from ((id(query), item.name) for item in query.sharded[:1])
        elif names[-1:] == ("*",) or (names[-1:] == ("did",) and target.name in (None, "did")):
            did = (id(query), names[0]) if len(names) > 1 else _did(target.val, query)
            if did is not None:
                yield did


def _outputs(node: Node) -> tuple[ast.ResTarget, ...]:
    if isinstance(node, ast.SelectStmt):
        return node.targetList or ()
    return node.returningClause.exprs if node.returningClause else ()
