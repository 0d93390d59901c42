"""What a database's URL says, taken apart as libpq does."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlsplit

_DEFAULT_PORT = "5432"

# Names of a URL's parameters that libpq knows by another name in the environment.
_VARIABLES = {"application_name": "APPNAME", "dbname": "DATABASE", "target_session_attrs": "TARGETSESSIONATTRS"}
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::([0-9]*))?")


def connection_variables(dsn: str) -> dict[str, str]:
    """What libpq reads from the environment in place of a connection URL; of several hosts, lists with commas."""
    parts = urlsplit(dsn)
    hosts = [match for one in parts.netloc.rpartition("@")[2].split(",") if (match := _HOST.fullmatch(one))]
    ports = [match[3] or "" for match in hosts]
    found = {
        "host": ",".join(unquote(match[1] or match[2] or "") for match in hosts),
        "port": ",".join(ports) if any(ports) else "",
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
        **dict(parse_qsl(parts.query)),
    }
    return {f"PG{_VARIABLES.get(name, name.upper())}": value for name, value in found.items() if value}


def place_of(dsn: str) -> str:
    """Where a database is, for people: its name, host and port, or the folder of its socket. No user, no secret."""
    known = {**os.environ, **connection_variables(dsn)}
    hosts, ports = known.get("PGHOST", "").split(","), known.get("PGPORT", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [_at(host, port or _DEFAULT_PORT) for host, port in zip(hosts, ports, strict=False)]
    return f"database {known.get('PGDATABASE', 'of the default name')} {', '.join(places)}"


def _at(host: str, port: str) -> str:
    if not host or host.startswith("/"):
        return f"at port {port} of the socket folder {host or 'of this machine'}"
    return f"at [{host}]:{port}" if ":" in host else f"at {host}:{port}"
