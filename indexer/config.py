"""The settings: one typed definition, read from flags, the environment and a TOML file.

Each setting has one name, spelled as its place demands: field and TOML key ``max_lag``, flag ``--max-lag``,
environment ``LETTA_INDEXER_MAX_LAG``. A flag wins over the environment, the environment over the file, the file
over the default. A name nobody knows is an error, with the nearest known one as a hint.

Nothing here looks at the process's environment or its arguments: both are passed in.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from indexer.config_values import (
    MAX_INTEGER,
    Listen,
    check_database,
    check_did,
    check_http,
    check_pattern,
    check_source,
    lower_case,
    parse_cursors,
    parse_duration,
    parse_list,
    parse_listen,
    parse_size,
    refuse_boolean,
)
from indexer.errors import SettingsError

PREFIX: Final = "LETTA_INDEXER_"
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
CONFIG_FILE: Final = "letta-indexer.toml"
FALLBACK_DATABASE_VARIABLE: Final = "DATABASE_URL"


def _check_secret_url(url: SecretStr) -> SecretStr:
    check_database(url.get_secret_value())
    return url


def _check_some(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if not patterns:
        raise ValueError("expected at least one collection")
    return patterns


Count: TypeAlias = Annotated[int, BeforeValidator(refuse_boolean), Field(ge=1, le=MAX_INTEGER)]
Size: TypeAlias = Annotated[int, BeforeValidator(parse_size)]
Duration: TypeAlias = Annotated[float, BeforeValidator(parse_duration)]
Url: TypeAlias = Annotated[str, AfterValidator(check_http)]
Source: TypeAlias = Annotated[str, AfterValidator(check_source)]
Did: TypeAlias = Annotated[str, AfterValidator(check_did)]
Pattern: TypeAlias = Annotated[str, AfterValidator(check_pattern)]
DatabaseUrl: TypeAlias = Annotated[SecretStr, AfterValidator(_check_secret_url)]
Position: TypeAlias = Annotated[int, BeforeValidator(refuse_boolean), Field(ge=0, le=MAX_INTEGER)]


def _setting(default: object, metavar: str, meaning: str) -> Any:
    return Field(default, description=meaning, json_schema_extra={"metavar": metavar})


class Settings(BaseModel):
    """Every setting, checked. Sizes are bytes, times are seconds. Build it with :func:`load_settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    source: Annotated[tuple[Source, ...], BeforeValidator(parse_list)] = _setting(
        (),
        "URL",
        "Where events come from: wss://HOST (a firehose), jetstream+wss://HOST or file:PATH (a capture). "
        "Repeatable. Default: the firehose of --relay-url",
    )
    cursor: Annotated[dict[str, Position], BeforeValidator(parse_cursors)] = _setting(
        {}, "SOURCE=N", "Start this source after position N, this once, whatever is stored. Repeatable"
    )
    once: bool = _setting(False, "", "End when every source is caught up and every want is met or has failed")
    trust: Annotated[Literal["verify", "relay"], BeforeValidator(lower_case)] = _setting(
        "verify",
        "verify|relay",
        "'verify' demands proofs and fetches what is missing, 'relay' takes the source's word and fetches nothing",
    )
    database_url: DatabaseUrl | None = _setting(
        None,
        "URL",
        "The PostgreSQL to write to; DATABASE_URL is read too. Without it an embedded one runs in --data-dir",
    )
    data_dir: Path | None = _setting(
        None,
        "DIRECTORY",
        "Where the embedded PostgreSQL keeps its data. "
        "Default: ~/.local/share/letta-indexer, for root /var/lib/letta-indexer",
    )
    space_account: Annotated[tuple[str, ...], BeforeValidator(parse_list)] = _setting(
        (),
        "ACCOUNT",
        "Follow the permissioned spaces of this account (a handle or DID), with an app password. Repeatable. "
        "Without --source the spaces alone are followed",
    )
    space_password_file: Path | None = _setting(
        None, "FILE", "The app password; for several accounts one line each: ACCOUNT PASSWORD"
    )
    space_password: SecretStr | None = Field(
        None, description="The app password itself; never a flag", json_schema_extra={"metavar": "", "flag": False}
    )
    spaces: Annotated[tuple[str, ...], BeforeValidator(parse_list)] = _setting(
        (), "SPACE", "Only spaces of this type or with this URI. Repeatable. Default: all of the accounts' spaces"
    )
    collections: Annotated[tuple[Pattern, ...], BeforeValidator(parse_list), AfterValidator(_check_some)] = _setting(
        ("xyz.quasigod.lab.letta.*",),
        "PATTERN",
        "The collections to index: a name, or a prefix that ends in '.*'. Repeatable",
    )
    only: Annotated[tuple[Did, ...], BeforeValidator(parse_list)] = _setting(
        (), "DID", "Index these accounts and no others. Repeatable"
    )
    deny: Annotated[tuple[Did, ...], BeforeValidator(parse_list)] = _setting(
        (), "DID", "Never index these accounts, also if --only names them. Repeatable"
    )
    plc_url: Url = _setting("https://plc.directory", "URL", "The directory that did:plc identities are resolved at")
    relay_url: Url = _setting(
        "https://relay1.us-east.bsky.network", "URL", "The relay that repositories are discovered at"
    )
    allow_private_hosts: bool = _setting(
        False, "", "Also connect to loopback and private addresses: for tests and private networks only"
    )
    listen: Annotated[Listen, BeforeValidator(parse_listen)] = _setting(
        "127.0.0.1:9464",
        "HOST:PORT",
        "Where /metrics, /healthz, /readyz and the page at / are served; port 0 takes any, printed",
    )
    page_token_file: Path | None = _setting(
        None,
        "FILE",
        "What the page asks for as password, of 16 characters at least. Without it there is a page only where --listen "
        "is on loopback",
    )
    page_token: SecretStr | None = Field(
        None, description="The page's token itself; never a flag", json_schema_extra={"metavar": "", "flag": False}
    )
    max_lag: Duration = _setting("120", "TIME", "A source whose last event is older than this is not ready")
    quota_rows: Count = _setting(100_000, "N", "The most rows kept for one account, history and tombstones included")
    quota_bytes: Size = _setting("10GiB", "SIZE", "The most bytes kept for one account")
    keep_history: Annotated[Literal["hashes", "content"], BeforeValidator(lower_case)] = _setting(
        "hashes", "hashes|content", "What is kept of a prompt that was overwritten: its hashes, or its text too"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_case)] = _setting(
        "info", "debug|info|warning|error", "The least important kind of message that is logged"
    )
    log_format: Annotated[Literal["auto", "console", "json"], BeforeValidator(lower_case)] = _setting(
        "auto", "auto|console|json", "'auto' is 'console' on a terminal and 'json' elsewhere"
    )
    batch_rows: Count = _setting(2000, "N", "A transaction is committed once it holds this many changes")
    batch_bytes: Size = _setting("8MiB", "SIZE", "A transaction is committed once its changes have this size")
    batch_age: Duration = _setting(
        "2ms", "TIME", "A transaction is committed once its first change has waited this long"
    )
    purge_after: Duration = _setting(
        "24h", "TIME", "How long the host of a deleted account may be unreachable before its records go anyway"
    )
    dead_letter_rows: Count = _setting(10_000, "N", "The most frames kept that were set aside; the oldest go first")
    dead_letter_bytes: Size = _setting(
        "64MiB", "SIZE", "The most bytes of frames kept that were set aside; the oldest go first"
    )
    dead_letter_age: Duration = _setting("30d", "TIME", "How long a frame that was set aside is kept")
    idle_timeout: Duration = _setting("300", "TIME", "A connection without any event for this long is made anew")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources to follow: those asked for, else the firehose of the relay, unless it is spaces that are."""
        if self.source or self.space_account:
            return self.source
        return ("ws" + self.relay_url.removeprefix("http"),)


def flag_name(name: str) -> str:
    """Return the flag of the field ``name``: ``--max-lag`` for ``max_lag``."""
    return "--" + name.replace("_", "-")


def has_flag(name: str) -> bool:
    """Return whether the field ``name`` may be given as a flag: a secret may not."""
    extra = Settings.model_fields[name].json_schema_extra
    return not isinstance(extra, dict) or extra.get("flag") is not False


def is_secret(name: str) -> bool:
    """Return whether the field ``name`` holds a secret: its value is never quoted, logged or shown."""
    return SecretStr.__name__ in repr(Settings.model_fields[name].annotation)


def variable_name(name: str) -> str:
    """Return the environment variable of the field ``name``: ``LETTA_INDEXER_MAX_LAG`` for ``max_lag``."""
    return PREFIX + name.upper()


@dataclass(frozen=True, slots=True)
class _Given:
    """A value and where it was found, in words that lead a reader to it."""

    value: object
    origin: str


def find_config(flag: Path | None, environ: Mapping[str, str], folder: Path) -> Path | None:
    """Return the TOML file to read: the flag's, the environment's, or ``letta-indexer.toml`` in ``folder``.

    A file asked for is returned whether it exists or not (so that its absence is an error when it is read);
    the last one only if it is there. None: no file.
    """
    if flag is not None:
        return flag
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named)
    return folder / CONFIG_FILE if (folder / CONFIG_FILE).is_file() else None


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None) -> Settings:
    """Return the settings that these flags, this environment and this file give together.

    ``flags`` maps field names to values; None and empty lists count as not given, and so does an empty variable.
    In the environment a list is separated by commas or is JSON. Raises SettingsError, one line for each thing
    wrong: it names the setting and what is expected, and never quotes a value that could hold a password.
    """
    given = _from_file(toml_path) | _from_environment(environ) | _from_flags(flags)
    if "data_dir" in given:
        given["data_dir"] = _expand_home(given["data_dir"], environ)
    try:
        return Settings.model_validate({name: entry.value for name, entry in given.items()})
    except ValidationError as error:
        lines = [_explain(problem, given) for problem in error.errors(include_url=False)]
    raise SettingsError("\n".join(lines))


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    given = {name: value for name, value in flags.items() if value not in (None, [], ())}
    _refuse_unknown({name: flag_name(name) for name in given}, flag_name)
    return {name: _Given(value, flag_name(name)) for name, value in given.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    ours = [key for key in environ if key.upper().startswith(PREFIX) and key != CONFIG_VARIABLE]
    names = {(key.removeprefix(PREFIX).lower() if key == key.upper() else key): key for key in ours}
    _refuse_unknown(names, variable_name)
    given = {name: _Given(environ[key], key) for name, key in names.items() if environ[key]}
    if fallback := environ.get(FALLBACK_DATABASE_VARIABLE):
        given.setdefault("database_url", _Given(fallback, FALLBACK_DATABASE_VARIABLE))
    return given


def _from_file(path: Path | None) -> dict[str, _Given]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # also bytes that are no UTF-8
        place = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        raise SettingsError(f"--config: {path} is no TOML file: {place}") from None
    _refuse_unknown({key: f"{key} in {path}" for key in table}, str)
    return {key: _Given(value, f"{key} in {path}") for key, value in table.items()}


def _refuse_unknown(names: Mapping[str, str], spell: Callable[[str], str]) -> None:
    """Raise SettingsError if a key of ``names`` (value: how the user wrote it) is no field."""
    known = Settings.model_fields
    lines = []
    for name, written in names.items():
        if name not in known:
            wanted = name.lower().removeprefix(PREFIX.lower()).replace("-", "_")
            near = difflib.get_close_matches(wanted, known, n=1)
            lines.append(f"{written}: there is no such setting" + (f"; did you mean {spell(near[0])}?" if near else ""))
    if lines:
        raise SettingsError("\n".join(lines))


def _expand_home(entry: _Given, environ: Mapping[str, str]) -> _Given:
    path = str(entry.value)
    if not path.startswith("~"):
        return entry
    home = environ.get("HOME", "")
    if path[1:2] not in ("", "/") or not home.startswith("/"):
        raise SettingsError(f"{entry.origin}: cannot tell what ~ stands for here; give an absolute path")
    return _Given(home + path[1:], entry.origin)


def _explain(problem: Any, given: Mapping[str, _Given]) -> str:
    """Turn one problem of pydantic's into a line: the setting as its user wrote it, what is expected, the value."""
    name = str(problem["loc"][0])
    origin = given[name].origin if name in given else name
    expected = problem["msg"].removeprefix("Value error, ")
    expected = expected.replace("Input should be g", "expected a number g").replace("Input should be", "expected")
    shown = str(problem["input"])
    if is_secret(name) or "@" in shown or len(shown) > 200 or not expected.startswith("expected"):
        return f"{origin}: {expected}"
    return f"{origin}: {expected}, not {shown!r}"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as the documentation shows it."""

    flag: str
    env: str
    key: str
    default: str
    meaning: str


def settings_table() -> list[Row]:
    """Return every setting, in the order of its definition."""
    return [
        Row(
            flag_name(name) if has_flag(name) else "",
            variable_name(name),
            name,
            default_text(name),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def default_text(name: str) -> str:
    """Return the default of the field ``name`` as a user would write it; '' where there is none."""
    default = Settings.model_fields[name].default
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(default) if isinstance(default, tuple | dict) else "" if default is None else str(default)


def render_settings_table() -> str:
    """Return :func:`settings_table` as a Markdown table, for the README."""
    lines = ["| flag | environment | TOML | default | meaning |", "|---|---|---|---|---|"]
    for row in settings_table():
        default = f"`{row.default}`" if row.default else ""
        meaning = row.meaning.replace("|", "\\|")
        flag = f"`{row.flag}`" if row.flag else ""
        lines.append(f"| {flag} | `{row.env}` | `{row.key}` | {default} | {meaning} |")
    return "\n".join(lines) + "\n"
