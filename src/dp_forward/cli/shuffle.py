"""`dpf shuffle`: the trusted party between users who push records and the provider that collects them."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_text
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from dp_forward.cli import options, output, serve_users
from dp_forward.errors import InvalidInput, refuse_if

if TYPE_CHECKING:
    from dp_forward.service.server.settings import ServerSettings


def shuffle(
    collector: Annotated[str, Option(help="The address of the collector.")],
    collector_token_file: Annotated[Path, Option(help="A file with the token that the collector knows.")],
    store: Annotated[str, Option(help="Where records wait: a folder of your own, or postgresql://...")],
    least: Annotated[int, Option(help="Fewest records of a batch; more hide better.")],
    least_users: Annotated[int | None, Option(help="Fewest users of a batch with --users [--least].")] = None,
    records_per_user: Annotated[
        int | None, Option(help="Most records of one user in a batch, with --users [1].")
    ] = None,
    most: Annotated[int, Option(help="Most records kept while the collector is away.")] = 100_000,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8767,
    token_file: Annotated[Path | None, Option(help="A file with a token that all users share.")] = None,
    users: Annotated[str | None, Option(help="Accept the users of this store, see dpf serve users.")] = None,
    audit_log: serve_users.AuditFile = None,
    ca: options.Ca = None,
    proxy: options.Proxy = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    connections: options.Connections = 1024,
    connections_per_address: options.PerAddress = 64,
    metrics_token_file: options.MetricsToken = None,
    allow_origin: options.AllowOrigin = None,
    log: options.Log = "text",
    json: options.Json = False,
) -> None:
    """Mix the records of many users before a provider gets them.

    Records are passed on in batches, so that the collector cannot tell who sent which. Prints its address as
    one line of JSON when it listens; with --json a line of totals when it ends. Ctrl-C ends it in order, and
    what waits stays in the store. SIGHUP reads tokens and certificates anew, and loses no
    request.

    Example: dpf shuffle --collector http://127.0.0.1:8765 --collector-token-file word --store box --least 500
    """
    given = locals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it is handled: nothing is read yet
    from dp_forward.service.client.transport import Transport
    from dp_forward.service.protocol.access import read_token
    from dp_forward.service.server.audit_log import AuditLog
    from dp_forward.service.server.users import Users
    from dp_forward.service.server.uvicorn_runner import bind_socket, log_to_stderr, run_reloading, run_server
    from dp_forward.service.shuffler.shuffler_app import RETRY, Forwarder, fetch_spec, make_shuffler_app
    from dp_forward.service.shuffler.shuffler_store import ShufflerStore

    def read() -> tuple[ServerSettings, str]:
        settings, word = options.server_settings(given, store=users), read_token(collector_token_file)
        same, rule = word == settings.token, "differ from --collector-token-file"
        refuse_if(same, "token-file", rule, "the same word", "Users must not know that one.")
        return settings, word

    def connect(word: str) -> Transport:
        return Transport(collector, token=word, ca=ca, proxy=proxy, retry=RETRY, setting="collector")

    settings, word = read()
    log_to_stderr(json_lines=log == "json")
    if users is not None and settings.token is not None:
        raise InvalidInput("token-file", "be left out with --users", "both", "One word for all hides nobody.")
    alone = users is None and records_per_user is not None
    refuse_if(alone, "records_per_user", "go with --users", records_per_user, "Users must be known apart.")
    if users is not None:
        least_users = least if least_users is None else least_users
    with contextlib.closing(connect(word)) as client, output.working("asking the collector what it wants"):
        spec = fetch_spec(client)
    each, audit = None if least_users is None else records_per_user or 1, AuditLog(audit_log)
    waiting = ShufflerStore(store, spec, least=least, least_users=least_users, records_per_user=each)
    with contextlib.closing(waiting) as records, contextlib.ExitStack() as at_the_end:
        known = Users(users, audit)
        at_the_end.callback(lambda: asyncio.run(known.close()))
        totals = Counter(batches=0, records=0)

        def serve(state: tuple[ServerSettings, str], how: dict[str, Any]) -> bool:
            settings, word = state
            with contextlib.closing(connect(word)) as client:
                forwarder = Forwarder(records, client, at_once=spec.body_records)
                app = make_shuffler_app(records, forwarder, settings=settings, most=most, users=known)
                ended = run_server(app, settings, **how)
            totals.update(batches=forwarder.batches, records=forwarder.records)
            return ended

        run_reloading(bind_socket(settings.host, settings.port), read, serve, audit)
        if json:
            typer.echo(json_text.dumps({**totals, "waiting": records.waiting}))
