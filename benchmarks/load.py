"""Captures to measure with: commits of strangers, and of accounts that write under our prefix, ready to be sent.

A capture is a file of whole WebSocket frames, as a server sends them, so that sending costs a copy in the kernel and
nothing else. Relevant commits are real: signed, with the tree nodes that prove them, each account's chain unbroken
from its first commit on. Noise repeats the commits of one stranger's repository under other sequence numbers.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from indexer.model import AGENT, COMPILED_PROMPT, MESSAGE
from indexer.simulator import events
from indexer.simulator.keys import Secp256k1Key, did_key
from indexer.simulator.repository import Repository, Write
from indexer.syntax import tid_of

FIRST = 1_000_000  # the first sequence number, of a width that does not change
TIME = "2026-01-02T03:04:05.678Z"
START = 1_767_323_045_000_000  # µs: that time
COMMITS_OF_ACCOUNT = 20  # relevant ones: an agent, then prompts or messages
NOISE_BYTES = 2_800  # of the mean frame, as on the public relay
SEQ = b"\x63seq\x1a"  # a key of the body, the head of a number of four bytes

_WORDS = [hashlib.sha256(bytes((number,))).hexdigest()[: number % 9 + 2] for number in range(256)]


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture on disk: ``path`` holds WebSocket frames, ``ends`` where each of them ends, ``keys`` who signs."""

    path: Path
    frames: int
    relevant: int
    size: int
    last: int  # sequence number
    keys: dict[str, str]

    @property
    def ends(self) -> Path:
        """The file of offsets: 8 bytes each, of this machine's order."""
        return self.path.with_suffix(".ends")


def text(rng: Random, size: int) -> str:
    """Words that compress about as prose does."""
    return " ".join(rng.choices(_WORDS, k=size // 5))[:size]


def prompt(did: str, rkey: str, number: int, size: int) -> dict[str, object]:
    """A compiled prompt of agent ``a``, whose record is about ``size`` bytes long."""
    rng = Random(f"{did}{rkey}{number}")
    memory = text(rng, size // 8)
    return {
        "$type": COMPILED_PROMPT,
        "agent": f"at://{did}/{AGENT}/a",
        "conversation": f"at://{did}/xyz.quasigod.lab.letta.conversation/{rkey}",
        "content": text(rng, max(0, size - 520 - 2 * len(memory))) + memory,
        "coreMemory": memory,
        "rawSystemHash": hashlib.sha256(b"template").hexdigest(),
        "memfsRevision": hashlib.sha1(b"%d" % (number % 3)).hexdigest(),
        "compiledAt": TIME,
    }


def message(did: str, rkey: str, number: int, size: int) -> dict[str, object]:
    """A message whose record is about ``size`` bytes long."""
    return {
        "$type": MESSAGE,
        "conversation": f"at://{did}/xyz.quasigod.lab.letta.conversation/c",
        "role": "assistant",
        "status": "complete",
        "seq": number,
        "content": text(Random(f"{did}{rkey}"), max(0, size - 260)),
        "createdAt": TIME,
    }


class Author:
    """An account that writes under our prefix, one record a commit."""

    def __init__(self, number: int, collection: str, size: int) -> None:
        self.did = f"did:plc:{number:024d}".replace("0", "a").replace("1", "b").replace("8", "c").replace("9", "d")
        self._key = Secp256k1Key(self.did.encode())
        self._repository = Repository(self.did, self._key, tid_of(START))
        self._collection, self._size, self._count = collection, size, 0
        self._start = START + number % 1_000  # µs: accounts don't share their record keys, as in the network

    @property
    def key(self) -> str:
        """Its public key."""
        return did_key(self._key)

    def next(self) -> bytes:
        """The frame of its next commit: its agent, then one record after the other."""
        self._count += 1
        micros = self._start + self._count * 1_000
        if self._count == 1:
            record: object = {"$type": AGENT, "name": "bench", "system": "template", "createdAt": TIME}
            path = f"{AGENT}/a"
        else:
            rkey = tid_of(micros)
            make = prompt if self._collection == COMPILED_PROMPT else message
            record, path = make(self.did, rkey, self._count, self._size), f"{self._collection}/{rkey}"
        made = self._repository.commit([Write(path, record)], tid_of(micros))
        return events.commit(self.did, made, seq=FIRST, time=TIME)


def relevant_frames(count: int, collection: str, size: int) -> tuple[list[bytes], dict[str, str]]:
    """Frames of relevant one-operation commits, accounts taking turns; and the accounts' keys."""
    accounts = max(1, count // COMMITS_OF_ACCOUNT)
    authors = [Author(number, collection, size) for number in range(accounts)]
    return [authors[at % accounts].next() for at in range(count)], {one.did: one.key for one in authors}


def noise_frames(count: int = 256) -> list[bytes]:
    """Frames of a stranger's likes and posts, ``NOISE_BYTES`` long on average."""
    rng = Random(1)
    repository = Repository("did:plc:zzzzzzzzzzzzzzzzzzzzzzzz", Secp256k1Key(b"stranger"), tid_of(START))
    likes = [Write(f"app.bsky.feed.like/{tid_of(START + at)}", {"at": at}) for at in range(2_000)]
    repository.commit(likes, tid_of(START + 1))
    frames = []
    for at in range(count):
        post = {"$type": "app.bsky.feed.post", "text": text(rng, 60), "createdAt": TIME}
        path = f"app.bsky.feed.post/{tid_of(START + 10_000_000 + at)}"
        made = repository.commit([Write(path, post)], tid_of(START + 2 + at))
        bare = len(events.commit(repository.did, made, seq=FIRST, time=TIME))
        padding = bytes(max(0, NOISE_BYTES - bare - 40))
        block = hashlib.sha256(padding).digest() + padding
        made = replace(made, blocks=(*made.blocks, (b"\x01\x71\x12\x20" + hashlib.sha256(block).digest(), block)))
        frames.append(events.commit(repository.did, made, seq=FIRST, time=TIME))
    return frames


def mixed(count: int, share: float, relevant: list[bytes]) -> Iterator[bytes]:
    """``count`` frames of which ``share`` (0 to 1) are relevant, evenly spread; ``relevant`` are used in order."""
    noise = noise_frames() if share < 1 else []
    used = 0
    for at in range(count):
        if int((at + 1) * share) > used:
            yield relevant[used]
            used += 1
        else:
            yield noise[at % len(noise)]


def write_capture(path: Path, frames: Iterator[bytes], keys: dict[str, str], relevant: int) -> Capture:
    """Number the frames, and write them as a server would send them."""
    ends = array("Q")
    size = payload = 0
    with path.open("wb") as file:
        for number, frame in enumerate(frames):
            before, found, after = frame.partition(SEQ)
            assert found, "a frame without a sequence number"
            numbered = before + SEQ + (FIRST + number).to_bytes(4, "big") + after[4:]
            head = websocket_head(len(numbered))
            file.write(head + numbered)
            size += len(head) + len(numbered)
            payload += len(numbered)
            ends.append(size)
    capture = Capture(path, len(ends), relevant, payload, FIRST + len(ends) - 1, keys)
    capture.ends.write_bytes(ends.tobytes())
    return capture


def websocket_head(size: int) -> bytes:
    """What stands before an unmasked, unfragmented binary message of ``size`` bytes (RFC 6455, 5.2)."""
    if size < 126:
        return bytes((0x82, size))
    if size < 1 << 16:
        return b"\x82\x7e" + size.to_bytes(2, "big")
    return b"\x82\x7f" + size.to_bytes(8, "big")


def drain_capture(folder: Path, count: int, share: float) -> Capture:
    """Frames of which ``share`` are relevant prompts of 1 KB."""
    wanted = int(count * share)
    frames, keys = relevant_frames(wanted, COMPILED_PROMPT, 1_000) if wanted else ([], {})
    return write_capture(folder / f"drain-{share:g}.ws", mixed(count, share, frames), keys, wanted)


def values_of(frames: list[bytes]) -> list[tuple[str, str, str, str, str]]:
    """What a plain insert of the same records would write: did, path, CID, rev and the value as JSON."""
    from indexer.car import read_car
    from indexer.cbor import cid_text, decode_record, to_json_text
    from indexer.frames import commit_event, decode_frame

    rows = []
    for frame in frames:
        commit = commit_event(decode_frame(frame)[1])
        (operation,) = commit.operations
        assert operation.cid is not None
        block = read_car(commit.blocks).block(operation.cid)
        value = to_json_text(decode_record(block).data)
        rows.append((commit.did, operation.path, cid_text(operation.cid), commit.rev, value))
    return rows


def save_keys(path: Path, keys: dict[str, str]) -> Path:
    """Write the accounts' keys for another process."""
    path.write_text(json.dumps(keys))
    return path
