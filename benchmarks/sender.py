"""A process that sends a capture to whoever connects: ``python -m benchmarks.sender FILE [RATE [COUNT]]``.

It speaks just enough HTTP to answer the handshake. Without a rate the file goes out as fast as it is taken, by the
kernel's own copy. With a rate (frames a second) each frame goes at its time, and the moments they were sent (seconds
of the monotonic clock, which all processes of a machine share) are printed at the end as JSON.

The first line printed is the port. Loopback only; it ends after one connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import sys
import time
from array import array
from contextlib import suppress
from pathlib import Path

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
WAIT = 60.0  # seconds for somebody to connect, and for the peer to go


def accept(server: socket.socket) -> socket.socket:
    """The first connection, its handshake answered."""
    connection, _ = server.accept()
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65_536)
    headers = dict(line.split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
    key = next(value for name, value in headers.items() if name.lower() == b"sec-websocket-key")
    token = base64.b64encode(hashlib.sha1(key + GUID).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    connection.sendall(head + token + b"\r\n\r\n")
    return connection


def send_paced(connection: socket.socket, path: Path, rate: float, count: int) -> list[float]:
    """Send ``count`` frames, each at its time; the moments they went."""
    ends = array("Q", path.with_suffix(".ends").read_bytes())
    data = memoryview(path.read_bytes())
    sent = []
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start, begin = time.monotonic(), 0
    for number, end in enumerate(ends[:count]):
        wait = start + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        sent.append(time.monotonic())
        connection.sendall(data[begin:end])
        begin = end
    return sent


def drain(connection: socket.socket) -> None:
    """Wait until the peer has gone."""
    connection.settimeout(WAIT)
    with suppress(OSError):
        while connection.recv(65_536):
            pass


def main() -> None:
    """Serve one connection."""
    path = Path(sys.argv[1])
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        print(server.getsockname()[1], flush=True)
        with accept(server) as connection:
            connected = time.monotonic()
            moments = [connected]
            if rate:
                moments = send_paced(connection, path, rate, int(sys.argv[3]))
            else:
                with path.open("rb") as file, suppress(OSError):  # who only wanted to connect has gone
                    connection.sendfile(file)
            drain(connection)
    print(json.dumps(moments), flush=True)


if __name__ == "__main__":
    main()
