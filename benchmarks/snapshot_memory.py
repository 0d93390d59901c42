"""How much memory and time a large repository takes to read from disk: ``python benchmarks/snapshot_memory.py [N]``.

Writes the CAR of a repository with N records (1,000,000 by default), 50 of them ours, in a folder of its own, and reads
it back in a process of its own, whose peak of resident memory it prints.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from indexer.cbor import cid_of, encode_json
from indexer.mst import encode_node, key_depth
from indexer.snapshot import open_snapshot
from indexer.syntax import tid_of

OURS = 50
LETTA = "xyz.quasigod.lab.letta."
Item = tuple[bytes, bytes]


def records(number: int, ours: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and block of each record, in key order: likes, then ours."""
    for collection, count in (("app.bsky.feed.like", number - ours), (LETTA + "agent", ours)):
        for at in range(count):
            text = hashlib.sha256(f"{collection}{at}".encode()).hexdigest() * 3
            yield f"{collection}/{tid_of(at * 1_000_000)}".encode(), encode_json({"$type": collection, "text": text})


def write(file: BinaryIO, number: int, ours: int = OURS) -> None:
    """Writes the archive of ``number`` records: these first, then the tree from below, the commit last."""
    items = []
    put(file, b"", header(b""))
    for key, block in records(number, ours):
        items.append((key, put(file, cid_of(block), block)))
    root = tree(file, items, max(key_depth(key) for key, _ in items))
    commit = (
        b"".join(
            (
                b"\xa6\x63did",
                encode_text("did:plc:" + "a" * 24),
                b"\x63rev",
                encode_text(tid_of(1)),
                b"\x63sig\x58\x40",
            ),
        )
        + bytes(64)
        + b"\x64data\xd8\x2a\x58\x25\x00"
        + root
        + b"\x64prev\xf6\x67version\x03"
    )
    put(file, cid_of(commit), commit)
    file.seek(0)
    put(file, b"", header(cid_of(commit)))


def header(root: bytes) -> bytes:
    """An archive's header, of the same length for every root."""
    return b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + root.ljust(36, b"\0") + b"\x67version\x01"


def encode_text(text: str) -> bytes:
    """DAG-CBOR of a short text."""
    return bytes((0x60 | len(text),)) + text.encode() if len(text) < 24 else bytes((0x78, len(text))) + text.encode()


def put(file: BinaryIO, cid: bytes, block: bytes) -> bytes:
    """Writes one section and gives its CID."""
    length = len(cid) + len(block)
    while length >= 128:
        file.write(bytes((length % 128 + 128,)))
        length //= 128
    file.write(bytes((length,)) + cid + block)
    return cid


def tree(file: BinaryIO, items: Sequence[Item], layer: int) -> bytes:
    """Writes the subtree that holds ``items`` and gives its CID."""
    keys, values, links = [], [], []
    below: list[Item] = []
    for item in items:
        if key_depth(item[0]) == layer:
            keys.append(item[0])
            values.append(item[1])
            links.append(tree(file, below, layer - 1) if below else None)
            below = []
        else:
            below.append(item)
    links.append(tree(file, below, layer - 1) if below else None)
    block = encode_node(keys, values, links)
    return put(file, cid_of(block), block)


def resident() -> tuple[int, int]:
    """Resident memory now and at its peak, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) // 1024, int(lines["VmHWM"].split()[0]) // 1024


def read(path: Path) -> None:
    """Reads the archive as a repair does and prints what it took."""
    before, started = resident()[0], time.process_time()
    with path.open("rb") as file:
        snapshot = open_snapshot(file)
        indexed = time.process_time()
        found = sum(1 for _ in snapshot.records((LETTA,)))
        walked = time.process_time()
        now, peak = resident()
    print(f"{path.stat().st_size / 1e6:.0f} MB, {found} records of ours")
    print(f"processor time: index {indexed - started:.2f} s, walk {(walked - indexed) * 1000:.1f} ms")
    print(f"resident: {before} MB before, {now} MB after, {peak} MB at most")


def main() -> None:
    """Writes, then reads in a fresh process."""
    if sys.argv[1:2] == ["--read"]:
        read(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repository.car"
        with path.open("w+b") as file:
            write(file, int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
        subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
