"""Settings: one name each, one order of precedence, errors that name the culprit and keep secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import config
from indexer.config import CONFIG_FILE, Settings, find_config, flag_name, load_settings, variable_name
from indexer.config_values import Listen, parse_duration, parse_listen, parse_size
from indexer.errors import SettingsError

DID = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
HOME = {"HOME": "/home/somebody"}


def load(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None, path: Path | None = None
) -> Settings:
    return load_settings(flags or {}, HOME | dict(environ or {}), path)


def refusal(flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_defaults_are_the_documented_ones() -> None:
    """Without any setting the daemon follows the public relay, keeps hashes, and listens on loopback."""
    settings = load()
    assert settings.sources == ("wss://relay1.us-east.bsky.network",)
    assert settings.collections == ("xyz.quasigod.lab.letta.*",)
    assert settings.listen == Listen("127.0.0.1", 9464)
    assert (settings.max_lag, settings.batch_age, settings.dead_letter_age) == (120.0, 0.002, 30 * 86400.0)
    assert (settings.quota_rows, settings.quota_bytes) == (100_000, 10 * 2**30)
    assert (settings.keep_history, settings.trust, settings.database_url) == ("hashes", "verify", None)
    assert settings.data_dir is None


def test_precedence_is_flag_environment_file_default(tmp_path: Path) -> None:
    """A flag wins over the environment, the environment over the file, the file over the default."""
    path = tmp_path / "any.toml"
    path.write_text(f'quota_rows = 1\nbatch_rows = 1\nmax_lag = 1\nonly = ["{DID}"]\n')
    environ = {"LETTA_INDEXER_QUOTA_ROWS": "2", "LETTA_INDEXER_BATCH_ROWS": "2"}
    settings = load({"quota_rows": "3"}, environ, path)
    assert (settings.quota_rows, settings.batch_rows, settings.max_lag) == (3, 2, 1.0)
    assert settings.only == (DID,)
    assert settings.dead_letter_rows == 10_000


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_can_be_given_in_each_place(name: str, tmp_path: Path) -> None:
    """Each field is read from its flag, its variable and its key, and its default is a value it accepts."""
    text = {"source": "file:x", "cursor": "file:x=4", "only": DID, "deny": DID, "database_url": "postgresql://h/d"}
    text |= {"data_dir": "/srv/x", "space_password_file": "/srv/y", "space_password": "abcd-efgh-ijkl-mnop"}
    text |= {"page_token_file": "/srv/z", "page_token": "correct-horse-battery"}
    value = text.get(name) or config.default_text(name)
    path = tmp_path / "one.toml"
    path.write_text(f'{name} = "{value}"\n')
    from_flag = getattr(load({name: value}), name)
    assert getattr(load({}, {variable_name(name): value}), name) == from_flag
    assert getattr(load({}, {}, path), name) == from_flag


def test_names_are_one_for_one() -> None:
    """No two fields share a flag or a variable, and every field says what it means."""
    names = list(Settings.model_fields)
    assert len({flag_name(name) for name in names}) == len({variable_name(name) for name in names}) == len(names)
    assert all(row.meaning for row in config.settings_table())


def test_not_given_is_not_a_value() -> None:
    """What a command line leaves out (None, an empty list) and an empty variable leave the default alone."""
    settings = load({"once": None, "only": [], "listen": None}, {"LETTA_INDEXER_MAX_LAG": "", "DATABASE_URL": ""})
    assert settings == load()


def test_false_is_a_value() -> None:
    """``--no-once`` wins over the environment."""
    assert load({"once": False}, {"LETTA_INDEXER_ONCE": "true"}).once is False


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        (
            {"LETTA_INDEXER_MAXLAG": "3"},
            "LETTA_INDEXER_MAXLAG: there is no such setting; did you mean LETTA_INDEXER_MAX",
        ),
        (
            {"letta_indexer_listen": "x"},
            "letta_indexer_listen: there is no such setting; did you mean LETTA_INDEXER_LI",
        ),
        ({"LETTA_INDEXER_XYZZY": "x"}, "LETTA_INDEXER_XYZZY: there is no such setting"),
    ],
)
def test_an_unknown_variable_is_refused(environ: Mapping[str, str], hint: str) -> None:
    """A typo in the environment ends the start, and the nearest name is suggested, also for an empty value."""
    assert hint in refusal({}, environ)
    assert hint in refusal({}, dict.fromkeys(environ, ""))


def test_variables_of_others_are_none_of_our_business() -> None:
    """Only names under our prefix are looked at, and the one that names the file is known."""
    assert load({}, {"LETTA_INDEX": "1", "_LETTA_INDEXER_COMPLETE": "1", "LETTA_INDEXER_CONFIG": "x"}) == load()


def test_an_unknown_key_or_flag_is_refused(tmp_path: Path) -> None:
    """A typo in the file is named together with the file; a kebab-case key gets the right spelling as a hint."""
    path = tmp_path / "typo.toml"
    path.write_text("max-lag = 3\n")
    with pytest.raises(
        SettingsError, match=r"max-lag in .*typo.toml: there is no such setting; did you mean max_lag\?"
    ):
        load({}, {}, path)
    assert "did you mean --once?" in refusal({"onse": True})


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"max_lag = ", "is no TOML file"), (b"max_lag = '\xff'", "is not UTF-8"), (None, "cannot read")],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    """A file that is missing, broken or not text is a settings error that names ``--config`` and the file."""
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"--config: .*broken.toml.*{words}|--config: {words} .*broken.toml"):
        load({}, {}, path)


def test_which_file_is_read(tmp_path: Path) -> None:
    """The flag's file, else the environment's, else the one in the folder if it is there."""
    environ = {"LETTA_INDEXER_CONFIG": "/b.toml"}
    assert find_config(Path("/a.toml"), environ, tmp_path) == Path("/a.toml")
    assert find_config(None, environ, tmp_path) == Path("/b.toml")
    assert find_config(None, {}, tmp_path) is None
    (tmp_path / CONFIG_FILE).touch()
    assert find_config(None, {}, tmp_path) == tmp_path / CONFIG_FILE


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("source", "https://host", "--source: expected wss://HOST"),
        ("source", "file:", "--source: expected"),
        ("source", "wss://", "--source: expected"),
        ("source", "wss://ho st", "--source: expected"),
        ("source", "wss://host:99999", "--source: expected"),
        ("cursor", ["a=b"], "--cursor: expected a valid integer"),
        ("cursor", ["a=-1"], "--cursor: expected a number greater than or equal to 0"),
        ("cursor", ["a"], "--cursor: expected SOURCE=N"),
        ("cursor", ["a=1", "a=2"], "--cursor: expected SOURCE=N, each source at most once"),
        ("once", "maybe", "--once: expected a valid boolean"),
        ("trust", "blindly", "--trust: expected 'verify' or 'relay', not 'blindly'"),
        ("data_dir", "~other/x", "--data-dir: cannot tell what ~ stands for"),
        ("collections", ["a.b*"], "--collections: expected a collection"),
        ("collections", ["*"], "--collections: expected a collection"),
        ("collections", "[]", "--collections: expected at least one collection"),
        ("only", ["alice.example"], "--only: expected a DID, such as did:plc:ewvi7nxzyoun6zhxrhs64oiz, not 'alice.exa"),
        ("deny", "[1", "--deny: expected a list"),
        ("plc_url", "plc.directory", "--plc-url: expected https://HOST"),
        ("relay_url", "wss://relay", "--relay-url: expected https://HOST"),
        ("listen", "9464", "--listen: expected HOST:PORT"),
        ("listen", "::1:9464", "--listen: expected HOST:PORT"),
        ("listen", "h:65536", "--listen: expected HOST:PORT"),
        ("max_lag", "0", "--max-lag: expected a time greater than 0"),
        ("max_lag", float("nan"), "--max-lag: expected a time greater than 0"),
        ("quota_rows", "0", "--quota-rows: expected a number greater than or equal to 1"),
        ("quota_rows", True, "--quota-rows: expected a number"),
        ("quota_bytes", "10 parsecs", "--quota-bytes: expected a size"),
        ("keep_history", "all", "--keep-history: expected 'hashes' or 'content', not 'all'"),
        ("log_level", "loud", "--log-level: expected 'debug', 'info', 'warning' or 'error', not 'loud'"),
    ],
)
def test_a_bad_value_is_named_with_what_is_expected(name: str, value: object, words: str) -> None:
    """Each error names the setting as its user wrote it, and what would be right."""
    assert refusal({name: value}).startswith(words)


def test_every_error_is_told_at_once_and_where_it_was_found(tmp_path: Path) -> None:
    """Three mistakes in three places give three lines, each leading to its place."""
    path = tmp_path / "bad.toml"
    path.write_text('listen = "nowhere"\n')
    with pytest.raises(SettingsError) as caught:
        load({"max_lag": "x"}, {"LETTA_INDEXER_QUOTA_ROWS": "-1"}, path)
    starts = {line.split(":")[0] for line in str(caught.value).splitlines()}
    assert starts == {"--max-lag", "LETTA_INDEXER_QUOTA_ROWS", f"listen in {path}"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "mysql://u:hunter2@h/d"),
        ("source", "wss://u:hunter2@h"),
        ("relay_url", "https://u:hunter2@h"),
        ("plc_url", "https://hunter2@h"),
    ],
)
def test_no_error_quotes_a_password(name: str, value: str) -> None:
    """A value that may hold a secret never shows, neither in the message nor in what led to it."""
    assert "hunter2" not in refusal({name: value})


def test_the_database_url_does_not_show_in_settings() -> None:
    """Printing or logging the settings doesn't print the password."""
    settings = load({"database_url": "postgresql://u:hunter2@h/d"})
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://u:hunter2@h/d"


def test_database_url_is_the_weaker_name() -> None:
    """``DATABASE_URL`` counts, unless our own variable is set; an error names the one that was read."""
    ours, theirs = {"LETTA_INDEXER_DATABASE_URL": "postgres://a/1"}, {"DATABASE_URL": "postgres://b/2"}
    assert str(load({}, theirs).database_url) == "**********"
    chosen = load({}, ours | theirs).database_url
    assert chosen is not None
    assert chosen.get_secret_value() == "postgres://a/1"
    assert refusal({}, {"DATABASE_URL": "sqlite:///x"}).startswith("DATABASE_URL: expected postgresql://")


def test_lists_in_the_environment() -> None:
    """A list in a variable is separated by commas, or is JSON (for items that hold a comma)."""
    assert load({}, {"LETTA_INDEXER_SOURCE": "wss://a, wss://b,"}).source == ("wss://a", "wss://b")
    assert load({}, {"LETTA_INDEXER_SOURCE": '["file:a,b"]'}).source == ("file:a,b",)
    cursors = load({}, {"LETTA_INDEXER_CURSOR": "firehose:a:1=5,jetstream:b=6"}).cursor
    assert cursors == {"firehose:a:1": 5, "jetstream:b": 6}


def test_cursors_in_a_file_are_a_table(tmp_path: Path) -> None:
    """TOML has tables, so a table of positions works as well as a list of SOURCE=N."""
    path = tmp_path / "cursors.toml"
    path.write_text('[cursor]\n"firehose:a" = 5\n')
    assert load({}, {}, path).cursor == {"firehose:a": 5}


@pytest.mark.parametrize(
    ("relay", "source"), [("https://r:8/", "wss://r:8"), ("http://127.0.0.1:1", "ws://127.0.0.1:1")]
)
def test_the_default_source_is_the_relay_in_use(relay: str, source: str) -> None:
    """Another relay means another default firehose, with TLS exactly if the relay's URL has it."""
    assert load({"relay_url": relay}).sources == (source,)


def test_home_unknown_is_an_error_only_where_it_matters() -> None:
    """Without HOME a folder below it cannot be told; an absolute one works, and so does none."""
    with pytest.raises(SettingsError, match=r"data.dir: cannot tell what ~ stands for"):
        load_settings({"data_dir": "~/x"}, {}, None)
    assert load_settings({}, {}, None).data_dir is None
    assert load_settings({"data_dir": "/srv/x"}, {}, None).data_dir == Path("/srv/x")


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GiB", 10 * 2**30), ("500MB", 500 * 10**6), ("1.5 kib", 1536), ("1_000", 1000), (7, 7), ("8 B", 8)],
)
def test_sizes(text: object, size: int) -> None:
    """Decimal and binary units are told apart, in any case, with or without a space."""
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("12h", 43200), ("5m", 300), ("10ms", 0.01), (2, 2)])
def test_durations(text: object, seconds: float) -> None:
    """A time is a number of seconds, or has a unit."""
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.booleans() | st.lists(st.integers()))
def test_whatever_is_written_gives_a_value_or_a_plain_error(value: object) -> None:
    """No input makes the parsers raise anything but ValueError, nor return something out of range."""
    for parse in (parse_size, parse_duration):
        try:
            complaint, result = "", parse(value)
        except ValueError as error:
            complaint, result = str(error), 1
        assert result > 0
        assert complaint == "" or complaint.startswith("expected ")


@given(st.ip_addresses().map(str), st.integers(0, 65535))
def test_listen_survives_being_written(host: str, port: int) -> None:
    """An address, IPv6 included, is read back as it was written."""
    assert parse_listen(str(Listen(host, port))) == Listen(host, port)


def test_the_table_is_in_the_documentation() -> None:
    """README.md or a page of docs/ holds the table of settings exactly as the code defines them."""
    root = Path(__file__).parent.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    table = config.render_settings_table()
    assert any(table in page.read_text(encoding="utf-8") for page in pages), f"paste this into README.md:\n{table}"
