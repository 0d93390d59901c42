"""What a database's URL says: to libpq's programs all of it, to people nothing that is secret."""

from __future__ import annotations

import pytest

from indexer.errors import DatabaseUnavailable, SchemaError
from indexer.store import Store
from indexer.store.dsn import connection_variables, place_of


def test_urls_as_libpq_reads_them_from_the_environment() -> None:
    """Each part of a URL has the variable that libpq knows for it."""
    url = "postgresql://a%40b:p%2Fw@db.example:7/x%20y?sslmode=require&application_name=n&target_session_attrs=any"
    assert connection_variables(url) == {
        "PGHOST": "db.example",
        "PGPORT": "7",
        "PGUSER": "a@b",
        "PGPASSWORD": "p/w",
        "PGDATABASE": "x y",
        "PGSSLMODE": "require",
        "PGAPPNAME": "n",
        "PGTARGETSESSIONATTRS": "any",
    }


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql:///d", None, None),
        ("postgresql://[::1]:7/d", "::1", "7"),
        ("postgresql://%2Frun%2FPg/d", "/run/Pg", None),
        ("postgresql://u:p@one:1,two,[::3]:3/d", "one,two,::3", "1,,3"),
        ("postgresql://one,two/d", "one,two", None),
        ("postgresql://u@/d?host=/run/pg&port=7", "/run/pg", "7"),
    ],
)
def test_hosts_of_every_form(url: str, host: str | None, port: str | None) -> None:
    """One host or several, addresses, and folders of sockets come out as libpq takes them."""
    found = connection_variables(url)
    assert (found.get("PGHOST"), found.get("PGPORT"), found["PGDATABASE"]) == (host, port, "d")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://USER:SECRET@db.example/letta", "database letta at db.example:5432"),
        ("postgresql://USER:SECRET@[::1]:7/letta?sslmode=require", "database letta at [::1]:7"),
        ("postgresql://db.example?user=USER&password=SECRET", "database of the default name at db.example:5432"),
        ("postgresql://USER@one:1,two:2/letta", "database letta at one:1, at two:2"),
        ("postgresql://USER@one,two/letta?port=7", "database letta at one:7, at two:7"),
        ("postgresql://USER@/letta?host=/run/pg&port=7", "database letta at port 7 of the socket folder /run/pg"),
        ("postgres:///letta?password=SECRET", "database letta at port 5432 of the socket folder of this machine"),
    ],
)
def test_place_of_a_database(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """People are told where the database is looked for, never as whom."""
    for name in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    assert place_of(url) == place
    monkeypatch.setenv("PGHOST", "of.the.environment")
    assert ("of.the.environment" in place_of(url)) == ("of this machine" in place)


async def test_who_cannot_connect_says_where(database: str) -> None:
    """A server that doesn't answer, and one without the database, are named by host, port and database."""
    port_nobody_has, nothing = "postgresql://USER:SECRET@127.0.0.1:1/letta", database.replace("/test_", "/no_test_")
    for url, kind, place in (
        (port_nobody_has, DatabaseUnavailable, r"\(database letta at 127\.0\.0\.1:1\)"),
        (nothing, SchemaError, r"\(database no_test_\w+ at port \d+ of the socket folder /"),
    ):

        async def dsn(url: str = url) -> str:
            return url

        with pytest.raises(kind, match=place) as error:
            await Store(dsn).open()
        assert "SECRET" not in str(error.value)
        assert "USER" not in str(error.value)
