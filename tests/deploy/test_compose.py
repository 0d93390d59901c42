"""The containers: composed of what is there, closed to the outside, with secrets in files.

No engine runs here, so no image is built or started: what is checked is what docker-compose makes of the file, that
everything it mounts exists, and the parts that run without one (the secrets, the roles).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import yaml

from indexer.config import load_settings
from tests.deploy.debian import DebianPostgres, debian_postgres
from tests.deploy.programs import DEPLOY, program, run
from tests.indexing import Sql
from tests.readme import psql

SERVICES = {"postgres", "indexer", "prometheus", "grafana"}
SECRETS = ("postgres_password", "indexer_password", "dashboard_password", "grafana_password", "page_token")


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of deploy/ with the secrets made."""
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy, ignore=shutil.ignore_patterns("secrets"))
    assert run(copy / "compose" / "make-secrets.sh") == (0, "")
    return copy


@pytest.fixture
def composed(deploy: Path) -> dict[str, Any]:
    """The file as docker-compose understands it."""
    code, said = run(program("docker-compose"), "-f", deploy / "compose.yaml", "config")
    assert code == 0, said
    config: dict[str, Any] = yaml.safe_load(said)
    return config


def mounts(config: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """What is mounted from this machine: from where, to where, and whether it can be written."""
    for service in config["services"].values():
        for volume in service.get("volumes", []):
            source, target, mode = volume.split(":")
            if source.startswith("/"):
                yield source, target, mode == "rw"


def test_the_services_are_closed(composed: dict[str, Any]) -> None:
    """Every service has a read-only root, no capability and no way to more; ports are open to this machine alone."""
    assert set(composed["services"]) == SERVICES
    for name, service in composed["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert "ports" not in composed["services"]["postgres"]
    assert set(composed["services"]["postgres"]["networks"]) == {"database"}
    assert composed["networks"]["database"]["internal"] is True


def test_what_is_mounted_exists(composed: dict[str, Any]) -> None:
    """Every file that a service is given is there, and none can be written by it."""
    found = list(mounts(composed))
    assert len(found) == 5
    assert [(source, target) for source, target, writable in found if writable or not Path(source).exists()] == []


def test_images_are_of_one_version(composed: dict[str, Any]) -> None:
    """An image of somebody else's is named by its version; ours is built from the Dockerfile beside it."""
    images = {name: service["image"] for name, service in composed["services"].items()}
    assert images.pop("indexer") == "letta-indexer"
    assert [image for image in images.values() if not re.search(r":v?\d+[\w.-]*$", image)] == []
    build = composed["services"]["indexer"]["build"]
    assert (Path(build["context"]) / build["dockerfile"]).is_file()


def test_no_secret_is_in_the_file(composed: dict[str, Any], deploy: Path) -> None:
    """Passwords are files: none is in what docker-compose knows, and none in the environment of a service."""
    words = json.dumps(composed)
    made = [(deploy / "secrets" / name).read_text(encoding="utf-8") for name in SECRETS]
    assert len(set(made)) == len(SECRETS)
    assert all(len(secret) == 32 and secret not in words for secret in made)
    named = {Path(secret["file"]).name for secret in composed["secrets"].values()}
    assert named == {*SECRETS, "letta-indexer.toml"}
    assert {Path(secret["file"]).exists() for secret in composed["secrets"].values()} == {True}


def test_secrets_are_made_once(deploy: Path) -> None:
    """A second call changes nothing; the folder is its owner's alone, and no commit takes it along."""
    folder = deploy / "secrets"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run(deploy / "compose" / "make-secrets.sh") == (0, "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert folder.stat().st_mode & 0o777 == 0o700
    assert before[".gitignore"] == b"*\n"


def test_the_daemon_takes_its_settings(composed: dict[str, Any], deploy: Path) -> None:
    """What the daemon is given are settings it knows, and lead to the database as the role that owns it."""
    environment = composed["services"]["indexer"]["environment"]
    assert environment.pop("LETTA_INDEXER_CONFIG") == "/run/secrets/letta-indexer.toml"
    secrets = {name: value.replace("/run/secrets", str(deploy / "secrets")) for name, value in environment.items()}
    settings = load_settings({}, secrets, deploy / "secrets" / "letta-indexer.toml")
    assert settings.database_url is not None
    url = urlsplit(settings.database_url.get_secret_value())
    assert (url.hostname, url.username, url.path) == ("postgres", "letta_indexer", "/letta")
    assert url.password == (deploy / "secrets" / "indexer_password").read_text(encoding="utf-8")


@pytest.fixture
def postgres() -> Iterator[DebianPostgres]:
    """A PostgreSQL of this test's own: roles are the whole server's."""
    with debian_postgres() as cluster:
        yield cluster


async def test_the_roles(postgres: DebianPostgres, deploy: Path) -> None:
    """The daemon's role can create the schema in its database; the dashboards' reads the views and writes nothing."""
    script = (deploy / "compose" / "create-roles.sql").read_text(encoding="utf-8")
    path = deploy / "create-roles.sql"
    path.write_text(script.replace("/run/secrets", str(deploy / "secrets")), encoding="utf-8")
    await psql(postgres.url, f"\\i {path}")
    owner = await connected(postgres, deploy, "indexer")
    await owner.execute((DEPLOY.parent / "schema.sql").read_text(encoding="utf-8"))
    reader = await connected(postgres, deploy, "dashboard")
    assert await reader.fetchval("select count(*) from letta.record") == 0
    assert await reader.fetchval("show statement_timeout") == "30s"
    await reader.execute("set default_transaction_read_only = off")
    for statement in ("select * from letta_store.account", "delete from letta.record", "create table letta.t ()"):
        with pytest.raises(asyncpg.PostgresError):
            await reader.execute(statement)
    await reader.close()
    await owner.close()


async def connected(postgres: DebianPostgres, deploy: Path, role: str) -> Sql:
    """A connection of one of our roles, by the password in its file."""
    password = (deploy / "secrets" / f"{role}_password").read_text(encoding="utf-8")
    return await asyncpg.connect(
        host="127.0.0.1", port=postgres.port, user=f"letta_{role}", password=password, database="letta"
    )


def test_the_image() -> None:
    """The Dockerfile builds in one stage and runs in another, as a user of its own, and is asked for its health."""
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert len(re.findall(r"^FROM \S+-slim-\S+", lines, re.MULTILINE)) == 2
    assert re.search(r"^USER \d+:\d+$", lines, re.MULTILINE)
    assert "/healthz" in lines[lines.index("HEALTHCHECK") :]


def test_the_image_is_built_from_what_is_sent() -> None:
    """Everything that the Dockerfile copies is let through to the builder, and nothing but what it copies."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert [name for name in copied if not (DEPLOY.parent / name).exists()] == []


def test_scripts_are_sound() -> None:
    """The shell reads the scripts without a word."""
    for path in (DEPLOY / "compose").glob("*.sh"):
        assert subprocess.run(["/bin/sh", "-n", path], check=False).returncode == 0
