"""A process that sends frames as fast as they are taken: ``python -m tests.drills.sender NOISE RELEVANT BETWEEN``.

NOISE and RELEVANT are captures whose frames carry sequence numbers of four bytes (:data:`FIRST` and above). Each of the
relevant ones goes out in its turn, with BETWEEN of the noise before it, the same ones again and again; all are numbered
anew from :data:`FIRST` on. The first line printed is the port; one connection is served, whatever cursor it asks for.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice, repeat
from pathlib import Path

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from indexer.simulator.capture import read_capture

FIRST = 1_000_000
WAIT = 60.0  # seconds for somebody to connect
SEQ = b"\x63seq\x1a"  # a key of the body, and the head of a number of four bytes


class Numbered:
    """Frames as WebSocket messages in one piece of memory, whose sequence numbers can be written over."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        messages = [Frame(Opcode.BINARY, frame).serialize(mask=False) for frame in frames]
        self.data = bytearray().join(messages)
        self._places: list[int] = []
        start = 0
        for message in messages:
            self._places.append(start + message.index(SEQ) + len(SEQ))
            start += len(message)

    def number(self, first: int) -> int:
        """Number them from ``first`` on; returns the number after them."""
        for seq, place in enumerate(self._places, first):
            struct.pack_into(">I", self.data, place, seq)
        return first + len(self._places)


class Peer:
    """One connection, its handshake answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._protocol = ServerProtocol()
        requests: list[Request] = []
        while not requests:
            self._protocol.receive_data(connection.recv(65_536))
            requests = [event for event in self._protocol.events_received() if isinstance(event, Request)]
        self._protocol.send_response(self._protocol.accept(requests[0]))
        self._answer()

    def send(self, data: bytes | bytearray) -> None:
        """Send whole messages, once what the peer has sent (pings) has its answer."""
        while select.select([self._connection], [], [], 0)[0]:
            self._protocol.receive_data(self._connection.recv(65_536))
            self._answer()
        self._connection.sendall(data)

    def wait(self) -> None:
        """Wait until the peer has gone."""
        while received := self._connection.recv(65_536):
            self._protocol.receive_data(received)
            self._answer()

    def _answer(self) -> None:
        self._connection.sendall(b"".join(self._protocol.data_to_send()))


def main() -> None:
    """Serve one connection."""
    noise, relevant = ([*read_capture(Path(name))] for name in sys.argv[1:3])
    between = int(sys.argv[3])
    crowd = Numbered(islice(chain.from_iterable(repeat(noise)), between))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection, suppress(ConnectionError):
        peer, seq = Peer(connection), FIRST
        for frame in relevant:
            seq = crowd.number(seq)
            peer.send(crowd.data)
            one = Numbered([frame])
            seq = one.number(seq)
            peer.send(one.data)
        peer.wait()


if __name__ == "__main__":
    main()
