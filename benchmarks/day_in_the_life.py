"""A day of the service as a transcript: every command is run, and must say what it is there to show.

python -m benchmarks.day_in_the_life [--store postgresql://...]

Users are created; a provider serves with two workers; a user asks; two users send training records through a
shuffler; the provider is reloaded while it is asked; a user is revoked; metrics and audit logs are read. All
on loopback, in a temporary folder. Users and collection lie in folders, or at --store. The exit code is 1
where a step does not say what it should; every process that was started is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import RetryPolicy
from dp_forward.split import split_model
from dp_forward.split.artifacts import save_sides
from dp_forward.split.pretrained import load_model, load_tokenizer

DPF = [sys.executable, "-m", "dp_forward.cli.main"]
SECONDS = 300.0  # for one step, on a busy machine
ASKED = "a quiet, generous film"
RECORDS = {
    "alice": ("the parcel never came", "it broke after a week"),
    "bob": ("just what i had hoped for", "sturdy, and a joy to use"),
}
"""The training records of two users: two each, so that a batch of four hides each among strangers'."""


class Unexpected(SystemExit):
    """A step that says something else than it should."""


def title(what: str) -> None:
    print(f"\n# {what}", flush=True)


def show(said: str, *wanted: str) -> str:
    """Print what a step says, and hold it against patterns."""
    print(said.rstrip(), flush=True)
    for pattern in wanted:
        if re.search(pattern, said) is None:
            raise Unexpected(f"the step above should say {pattern!r}")
    return said


def dpf(command: str, *wanted: str, code: int = 0) -> str:
    """Run a command as a user types it."""
    print(f"$ dpf {command}", flush=True)
    done = subprocess.run(
        [*DPF, *shlex.split(command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = show(done.stdout, *wanted)
    if done.returncode != code:
        raise Unexpected(f"the command above ended with {done.returncode} instead of {code}")
    return said


class Running:
    """A server that runs beside the other steps; ``address`` is where it listens."""

    def __init__(self, command: str) -> None:
        print(f"$ dpf {command} &", flush=True)
        words, pipe = [*DPF, *shlex.split(command), "--port", "0"], subprocess.PIPE
        self._process = subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        for line in self._lines:  # warnings come first
            show(line)
            if line.startswith('{"address"'):
                self.address = str(json.loads(line)["address"])
                return
        self.close()
        raise Unexpected("the server above did not start")

    def reload(self) -> None:
        print("$ kill -HUP %1", flush=True)
        self._process.send_signal(signal.SIGHUP)

    def end(self, *wanted: str) -> None:
        """End it in order."""
        print("$ kill -TERM %1", flush=True)
        self._process.send_signal(signal.SIGTERM)
        show(self._lines.read(), *wanted)
        if (code := self._process.wait(SECONDS)) != 0:
            raise Unexpected(f"the server ended with {code} instead of 0")

    def close(self) -> None:
        """End it, whatever happened; its workers end with it."""
        self._process.kill()
        self._process.wait()


def make_run(folder: Path) -> None:
    """Both halves of a small model whose head is not trained: only the way is shown."""
    torch.manual_seed(0)
    pair = split_model(load_model("minilm", labels=2), "output", width=32)
    noise = NoiseSpec(mechanism="privunit", epsilon=8.0)
    spec = ReleaseSpec.of(pair.front, noise=noise, rows=32, labels=("complaint", "praise"))
    save_sides(pair, spec, load_tokenizer("minilm"), folder)


def write_files() -> None:
    """The words that servers know each other by, and the records of the users; for their owner only."""
    os.umask(0o077)
    for name in ("shuffler.word", "operator.word"):
        Path(name).write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
    for user, texts in RECORDS.items():
        label = "complaint" if user == "alice" else "praise"
        lines = ["text,label", *(f'"{text}",{label}' for text in texts)]
        Path(f"{user}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_metrics(address: str, begin: tuple[str, ...], *wanted: str) -> None:
    """The counters of a server as its operator reads them."""
    print(f"> GET {address}/metrics with the operator's word, of it {', '.join(begin)}", flush=True)
    headers = {"authorization": f"Bearer {Path('operator.word').read_text('ascii').strip()}"}
    page = httpx.get(f"{address}/metrics", headers=headers, trust_env=False, timeout=SECONDS).text
    lines = [line for line in page.splitlines() if line.startswith(begin)]
    show("\n".join(lines), *wanted)
    if any(user in page for user in RECORDS):
        raise Unexpected("metrics name a user")


def wait_for(file: str, event: str) -> None:
    until = time.monotonic() + SECONDS
    while f'"event": "{event}"' not in Path(file).read_text(encoding="utf-8"):
        if time.monotonic() > until:
            raise Unexpected(f"{file} never told of {event}")
        time.sleep(0.1)


@contextlib.contextmanager
def asking(address: str) -> Iterator[Counter[str]]:
    """Ask for the block, one request after the other, without a retry; what came of them."""
    found, stopping = Counter[str](), threading.Event()
    once, token = RetryPolicy(attempts=1), Path("alice.token").read_text(encoding="ascii").strip()

    def ask() -> None:
        how: Any = {"server": address, "ledger": "alice.ledger", "token": token, "retry": once}
        with Client("run/front", **how) as client:
            while not stopping.is_set():
                try:
                    client.ask(ASKED, resend=True)  # free: it was paid for
                    found["answered"] += 1
                except Exception as error:
                    found[type(error).__name__] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        stopping.set()
        thread.join()


class Day:
    """The steps, in the order in which they are taken; all in the folder where this is made."""

    def __init__(self, store: str | None, servers: contextlib.ExitStack) -> None:
        self.users, self.collected, self._servers = store or "users", store or "collected", servers
        self.provider = self.shuffler = ""

    def start(self, command: str) -> Running:
        return self._servers.enter_context(contextlib.closing(Running(command)))

    def create_users(self) -> None:
        title("The operators create users: a token each, shown to nobody, and quotas")
        for name, quota in (("alice", "--per-day 1000 --class pilot"), ("bob", "--per-day 1 --class trial")):
            to = f"--store {self.users} --token-out {name}.token --audit-log provider.jsonl"
            dpf(f"serve users add {name} {quota} {to}", name)
            dpf(f"serve users add {name} --store shuffler-users --token-out {name}.shuffler-token", name)

    def serve(self) -> Running:
        title("The provider serves with two workers, and collects what its shuffler brings")
        words = "--shuffler-token-file shuffler.word --metrics-token-file operator.word"
        line = f"serve run/back --workers 2 --store {self.users} --collect {self.collected} {words}"
        server = self.start(f"{line} --log json --audit-log provider.jsonl")
        self.provider = server.address
        return server

    def ask(self, name: str, text: str, *wanted: str, code: int = 0) -> None:
        how = f"--server {self.provider} --ledger {name}.ledger --token-file {name}.token --budget 32"
        dpf(f'ask run/front "{text}" {how}', *wanted, code=code)

    def ask_within_quotas(self) -> None:
        title("Users ask: the same text again is free, and a quota is exact")
        self.ask("alice", ASKED, "charge 8, spent 8, remaining 24")
        self.ask("alice", ASKED, "stored answer, nothing was sent.*charge 0, spent 8")
        self.ask("bob", ASKED, "charge 8")
        self.ask("bob", "loud and lazy", "quota for today is used up.*resent free", code=4)
        dpf(f"serve users list --store {self.users} --json", '"used": 1,')

    def shuffle(self) -> Running:
        title("The shuffler takes two records of each user, and mixes them")
        words = f"--collector {self.provider} --collector-token-file shuffler.word --store box --least 4"
        words += " --least-users 2 --records-per-user 2 --users shuffler-users --audit-log shuffler.jsonl"
        server = self.start(f"shuffle {words} --metrics-token-file operator.word --json")
        for name in RECORDS:
            to = f"--server {server.address} --token-file {name}.shuffler-token"
            data = f"{name}.csv --text-column text --label-column label"
            dpf(f"release run/front {data} --out {name}-released --ledger {name}.releases {to}")
        time.sleep(1)
        wanted = (r"batches_total 1\.0", r"records_total 4\.0")
        read_metrics(server.address, ("dpf_shuffle_batches_total", "dpf_shuffle_records_total"), *wanted)
        return server

    def reload(self, server: Running) -> None:
        title("The provider is reloaded while alice asks: new workers come up, and no request is lost")
        with asking(self.provider) as found:
            server.reload()
            wait_for("provider.jsonl", "reload")
            time.sleep(2)
        show(json.dumps(found), r'^\{"answered": \d+\}$')

    def revoke(self) -> None:
        title("Bob is revoked: within a second every worker refuses him")
        dpf(f"serve users revoke bob --store {self.users} --audit-log provider.jsonl")
        time.sleep(1.1)
        self.ask("bob", "loud and lazy", "does not take the token", code=4)
        self.ask("alice", "loud and lazy", "charge 8, spent 16, remaining 16")

    def read_books(self) -> None:
        title("The operator reads metrics: by outcome and class, summed over old and new workers")
        counters = ("dpf_requests_total", "dpf_records_total", "dpf_classes_total")
        wanted = (r'quota"\} 1\.0', r'stored"\} 4\.0', r'class="trial"\} 1\.0')
        read_metrics(self.provider, counters, *wanted)

    def read_audit_log(self) -> None:
        title("The audit log of the provider holds no text, token or address")
        print("$ cat provider.jsonl")
        said = show(Path("provider.jsonl").read_text("utf-8"), '"reload"', "quota_refused", "user_revoked")
        words = [file.read_text("ascii").strip() for file in Path().glob("*token")]
        if any(word in said for word in [*words, "127.0.0.1", ASKED]):
            raise Unexpected("the audit log holds a token, a text or an address")


def live(store: str | None) -> None:
    """Take all steps, in the folder where this is called."""
    make_run(Path("run"))
    write_files()
    with contextlib.ExitStack() as servers:
        day = Day(store, servers)
        day.create_users()
        provider = day.serve()
        day.ask_within_quotas()
        shuffler = day.shuffle()
        day.reload(provider)
        day.revoke()
        day.read_books()
        title("Both servers end in order")
        shuffler.end('"batches": 1, "records": 4, "waiting": 0')
        provider.end("the server stopped")
        day.read_audit_log()


def main(arguments: list[str] | None = None) -> int:
    """Live through the day."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--store", metavar="URL", help="Postgres for users and records [folders]")
    given, before = parser.parse_args(arguments), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="dpf-day-") as folder:
        os.chdir(folder)
        try:
            os.environ["DPF_HOME"] = folder  # nobody's own register is touched
            live(given.store)
        finally:
            os.chdir(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
