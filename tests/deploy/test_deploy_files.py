"""The files of `deploy/` parse, hold no secret, are hardened, and use options that `dpf` has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dp_forward.cli.main import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


# What is run


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Instructions and their words; lines that go on are joined."""
    text = re.sub(r"\\\n\s*", "", dockerfile.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit's service, each as often as it stands there."""
    text = (
        re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).partition("[Service]")[2].partition("\n[")[0]
    )
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Every `dpf` command line of the files and of the page, without the word itself."""
    found = []
    for path in DOCKERFILES:
        words = dict(instructions(path))
        assert json.loads(words["ENTRYPOINT"]) == ["dpf"]
        found.append((path.name, json.loads(words["CMD"])))
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            found.append((f"compose: {name}", service["command"]))
    found += [(path.name, shlex.split(unit(path)["ExecStart"][0])[1:]) for path in UNITS]
    page = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    found += [
        ("deploy.md", shlex.split(line)) for line in re.findall(r"^ *dpf (.+)$", page, flags=re.MULTILINE)
    ]
    found += [("deploy.md", shlex.split(line)) for line in re.findall(r"`dpf ([a-z]+ [^`]*--[^`]*)`", page)]
    return found


def missing(words: list[str]) -> list[str]:
    """What a command line names that `dpf` does not have."""
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    for word in words:
        deeper = getattr(command, "commands", {})
        if word not in deeper:
            break
        command, path = deeper[word], [*path, word]
    verb = " ".join(path)
    if not path:
        return [words[0]]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    return [f"{verb} {option}" for option in sorted(used - known)]


@pytest.mark.parametrize(
    ("where", "words"), commands(), ids=lambda given: given if isinstance(given, str) else ""
)
def test_every_option_that_is_used_is_one_of_dpf(where: str, words: list[str]) -> None:
    assert missing(words) == [], where


def test_an_option_that_dpf_does_not_have_is_noticed() -> None:
    assert missing(["serve", "run/back", "--port=1", "--no-such-thing"]) == ["serve --no-such-thing"]
    assert missing(["serves", "run/back"]) == ["serves"]
    assert missing(["ledger", "verify", "me.ledger", "--json"]) == []
    assert {where.partition(":")[0] for where, _ in commands()} >= {
        "compose",
        "deploy.md",
        "dpf-provider.service",
    }


# Images


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_pinned_unprivileged_and_holds_no_secret(dockerfile: Path) -> None:
    steps = instructions(dockerfile)
    stages = [rest for word, rest in steps if word == "FROM"]
    assert len(stages) == 2, "what builds does not run"
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+( AS build)?", stage) for stage in stages)
    last = dict(steps)
    assert last["USER"] == "10001:10001"
    assert last["HEALTHCHECK"] == "NONE" or "/healthz" in last["HEALTHCHECK"]
    assert (last["HEALTHCHECK"] == "NONE") == (dockerfile.suffix == ".client")
    assert not [word for word, _ in steps if word in ("ARG", "ADD")]
    spoken = " ".join(rest for word, rest in steps if word in ("ENV", "COPY", "LABEL"))
    assert not re.search(r"token|secret|passw|://", spoken, flags=re.IGNORECASE)
    (install,) = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert "--constraint constraints.txt" in install
    copied = {name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]} - {"--from=build"}
    assert all((ROOT / name).exists() for name in copied if not name.startswith("/"))


@pytest.mark.slow
def test_the_image_of_the_client_compiles_modules_that_exist_and_load_no_torch() -> None:
    steps = [rest for word, rest in instructions(DEPLOY / "Dockerfile.client") if word == "RUN"]
    assert "pip install --no-compile " in steps[1]
    (names,) = re.findall(r"python -c 'import ([\w., ]+)'$", steps[2])
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_extra_that_is_installed_exists() -> None:
    files = [*DOCKERFILES, *UNITS, ROOT / "docs/how-to/deploy.md"]
    used = {
        extra
        for path in files
        for group in re.findall(r"(?:\.|dp-forward)\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert used <= known["optional-dependencies"].keys()


# Services


def test_the_compose_file_names_only_what_it_declares_and_no_password() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for secret in service.get("secrets", ()):
            assert (secret if isinstance(secret, str) else secret["source"]) in COMPOSE["secrets"]
        networks = service.get("networks", ())
        assert set(networks) <= COMPOSE["networks"].keys()
        spoken = json.dumps([service.get("environment"), service.get("command")])
        assert not re.search(r"://\w+:[^@/]+@|PASSWORD\"", spoken)
    assert all(secret.keys() == {"file"} for secret in COMPOSE["secrets"].values())
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert list(services["database"]["networks"]) == ["inside"]


def test_what_dpf_serves_is_reached_through_its_proxy_alone() -> None:
    services = COMPOSE["services"]
    for name in ("provider", "shuffler"):
        words = services[name]["command"]
        assert {"--host=127.0.0.1", "--port=8765"} <= set(words)
        assert services[f"{name}-proxy"]["network_mode"] == f"service:{name}"
        assert [port.rpartition(":")[2] for port in services[name]["ports"]] == ["8443"]
        for service in (services[name], services[f"{name}-proxy"]):
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
    assert "--workers=2" in services["provider"]["command"]


def test_the_proxy_keeps_no_addresses_hides_metrics_and_bounds_what_is_slow() -> None:
    text = (DEPLOY / "proxy/nginx.conf").read_text(encoding="utf-8")
    settings = re.findall(r"^\s*(\w+) ([^;{]+);", text, flags=re.MULTILINE)
    found = dict(settings)
    assert (found["access_log"], found["error_log"]) == ("off", "stderr crit")
    assert found["ssl_protocols"] == "TLSv1.2 TLSv1.3"
    assert {
        "client_header_timeout",
        "client_body_timeout",
        "send_timeout",
        "limit_conn",
        "limit_req",
    } <= found.keys()
    assert ("client_max_body_size", "8m") in settings
    assert re.search(r"location = /metrics \{\s*return 404;", text)
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_hardened_and_gets_its_words_as_credentials(path: Path) -> None:
    configparser.RawConfigParser(strict=False, delimiters="=", comment_prefixes="#").read(
        path, encoding="utf-8"
    )
    service = unit(path)
    for name in (
        "NoNewPrivileges",
        "DynamicUser",
        "PrivateTmp",
        "PrivateDevices",
        "ProtectHome",
        "LockPersonality",
    ):
        assert service[name] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["Restart"] == ["on-failure"]
    assert service["RestartForceExitStatus"] == ["SIGHUP"], "systemd takes that end for one in order"
    assert service["CapabilityBoundingSet"] == [""]
    given = {line.partition(":")[0] for line in service["LoadCredential"]}
    assert set(re.findall(r"-file %d/([\w-]+)", service["ExecStart"][0])) == given
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_folder_of_secrets_is_never_committed_and_never_in_an_image() -> None:
    assert "secrets/" in (DEPLOY / ".gitignore").read_text(encoding="utf-8").splitlines()
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert kept[0] == "*"
    assert not any("deploy" in line for line in kept)
