"""Ways to make a ``#commit`` wrong, each a pure function of its body.

An alteration returns the altered body, or None where it doesn't apply (no record in the commit, say). What it
touches, it keeps consistent otherwise: a commit block that changes gets its new CID everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

from indexer.simulator.archive import Block, read_car, write_car
from indexer.simulator.clock import microseconds, tid
from indexer.simulator.dagcbor import Link, Value, cid_of, decode, encode
from indexer.simulator.keys import Secp256k1Key

Body: TypeAlias = "dict[str, Value]"
Alteration: TypeAlias = Callable[[Random, Body], "Body | None"]

FAR_FUTURE = tid(microseconds(datetime(2140, 1, 1, tzinfo=UTC)), 0)
_STRANGER = Secp256k1Key(b"a stranger's key")
_SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def wrong_signature(rng: Random, body: Body) -> Body:
    """The commit is signed by a stranger's key."""
    return _recommit(body, _resigned)


def high_s(rng: Random, body: Body) -> Body:
    """The signature's s is the other, not canonical one (secp256k1)."""

    def change(commit: Body) -> Body:
        signature = commit["sig"]
        flipped = _SECP256K1_ORDER - int.from_bytes(signature[32:], "big") % _SECP256K1_ORDER
        return commit | {"sig": signature[:32] + flipped.to_bytes(32, "big")}

    return _recommit(body, change)


def future_rev(rng: Random, body: Body) -> Body:
    """A revision of the year 2140 that the account never signed."""
    altered = _recommit(body, lambda commit: _resigned(commit | {"rev": FAR_FUTURE}))
    return altered | {"rev": FAR_FUTURE}


def missing_record(rng: Random, body: Body) -> Body | None:
    """The block of one record is left out."""
    op = _some_op(rng, body)
    return op and _with_blocks(body, [block for block in _blocks(body) if block[0] != op["cid"].cid])


def missing_node(rng: Random, body: Body) -> Body:
    """The root node of the tree is left out."""
    data = decode(dict(_blocks(body))[body["commit"].cid])[0]["data"].cid
    return _with_blocks(body, [block for block in _blocks(body) if block[0] != data])


def missing_commit(rng: Random, body: Body) -> Body:
    """The commit object itself is left out."""
    return _with_blocks(body, [block for block in _blocks(body) if block[0] != body["commit"].cid])


def forged_record(rng: Random, body: Body) -> Body | None:
    """A record's bytes are altered and stand under the CID of the true ones."""
    op = _some_op(rng, body)
    if op is None:
        return None
    return _with_blocks(
        body, [(cid, _forged(block) if cid == op["cid"].cid else block) for cid, block in _blocks(body)]
    )


def swapped_record(rng: Random, body: Body) -> Body | None:
    """A record is altered and the operation names its new CID, which the tree contradicts."""
    op = _some_op(rng, body)
    if op is None:
        return None
    old = op["cid"].cid
    forged = _forged(dict(_blocks(body))[old])
    ops = [other | {"cid": Link(cid_of(forged))} if other is op else other for other in body["ops"]]
    blocks = [(cid_of(forged), forged) if cid == old else (cid, block) for cid, block in _blocks(body)]
    return _with_blocks(body | {"ops": ops}, blocks)


def altered_path(rng: Random, body: Body) -> Body | None:
    """An operation names another record key than the tree."""
    op = _some_op(rng, body)
    if op is None:
        return None
    path = op["path"][:-1] + ("a" if op["path"][-1] != "a" else "b")
    return body | {"ops": [other | {"path": path} if other is op else other for other in body["ops"]]}


def hidden_op(rng: Random, body: Body) -> Body | None:
    """An operation the commit made is not listed."""
    if not body["ops"]:
        return None
    hidden = rng.randrange(len(body["ops"]))
    return body | {"ops": [op for at, op in enumerate(body["ops"]) if at != hidden]}


def wrong_prev_data(rng: Random, body: Body) -> Body | None:
    """``prevData`` is the root of some other tree: the chain is broken."""
    return None if "prevData" not in body else body | {"prevData": Link(cid_of(b"elsewhere"))}


def cut_inside(rng: Random, body: Body) -> Body:
    """The CAR ends in the middle of a block."""
    return body | {"blocks": cut_car(body["blocks"], rng, inside=True)}


def cut_between(rng: Random, body: Body) -> Body | None:
    """The CAR ends properly, but too early: whole blocks are missing."""
    return None if len(_blocks(body)) < 2 else body | {"blocks": cut_car(body["blocks"], rng, inside=False)}


def flipped_bit(rng: Random, body: Body) -> Body:
    """One bit in one block is another."""
    blocks = _blocks(body)
    at = rng.randrange(len(blocks))
    cid, block = blocks[at]
    byte = rng.randrange(len(block))
    blocks[at] = cid, block[:byte] + bytes((block[byte] ^ 1 << rng.randrange(8),)) + block[byte + 1 :]
    return _with_blocks(body, blocks)


def too_big(rng: Random, body: Body) -> Body:
    """The host left operations and blocks out, as it did before Sync 1.1 for large commits."""
    blocks = [block for block in _blocks(body) if block[0] == body["commit"].cid]
    return _with_blocks(body | {"ops": [], "tooBig": True}, blocks)


ALTERATIONS: dict[str, Alteration] = {
    function.__name__: function
    for function in (
        wrong_signature,
        high_s,
        future_rev,
        missing_record,
        missing_node,
        missing_commit,
        forged_record,
        swapped_record,
        altered_path,
        hidden_op,
        wrong_prev_data,
        cut_inside,
        cut_between,
        flipped_bit,
        too_big,
    )
}


def cut_car(car: bytes, rng: Random, *, inside: bool) -> bytes:
    """A CAR that ends early: after at least one whole block, at a block's boundary or ``inside`` a block."""
    roots, blocks = read_car(car)
    kept = rng.randrange(1, len(blocks)) if len(blocks) > 1 else 0
    whole = write_car(roots, blocks[:kept])
    if not inside:
        return whole
    end = len(write_car(roots, blocks[: kept + 1]))
    return car[: rng.randrange(len(whole) + 1, end)]


def _blocks(body: Body) -> list[Block]:
    return read_car(body["blocks"])[1]


def _with_blocks(body: Body, blocks: list[Block]) -> Body:
    return body | {"blocks": write_car([body["commit"].cid], blocks)}


def _some_op(rng: Random, body: Body) -> Body | None:
    """An operation that wrote a record."""
    writing = [op for op in body["ops"] if op["cid"] is not None]
    return rng.choice(writing) if writing else None


def _forged(block: bytes) -> bytes:
    value, _ = decode(block)
    return encode(value | {"forged": True})


def _resigned(commit: Body) -> Body:
    unsigned = {name: value for name, value in commit.items() if name != "sig"}
    return unsigned | {"sig": _STRANGER.sign(encode(unsigned))}


def _recommit(body: Body, change: Callable[[Body], Body]) -> Body:
    """Replace the commit object, with its new CID as root and in ``commit``."""
    old = body["commit"].cid
    block = encode(change(decode(dict(_blocks(body))[old])[0]))
    blocks = [(cid_of(block), block) if cid == old else (cid, other) for cid, other in _blocks(body)]
    return _with_blocks(body | {"commit": Link(cid_of(block))}, blocks)
