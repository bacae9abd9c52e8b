"""`dpf shuffle`: the trusted party between users who push records and the provider that collects them."""

from __future__ import annotations

import contextlib
import json as json_text
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput


def shuffle(
    collector: Annotated[str, Option(help="The address of the collector.")],
    collector_token_file: Annotated[Path, Option(help="The one word that the collector knows you by.")],
    store: Annotated[Path, Option(help="A folder of your own for records that wait.")],
    least: Annotated[int, Option(help="Fewest records of a batch: more hide better.")],
    most: Annotated[int, Option(help="Most records kept while the collector is away.")] = 100_000,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8767,
    token_file: Annotated[Path | None, Option(help="A file with the one word that users must know.")] = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    json: options.Json = False,
) -> None:
    """Take records of users, mix them, and pass them on in batches: the collector cannot tell who sent which.

    Prints its address as one line of JSON when it listens; with --json a line of totals when it ends. Ctrl-C
    ends it in order, and what waits stays in the store.

    Example: dpf shuffle --collector http://127.0.0.1:8765 --collector-token-file word --store box --least 500
    """
    from dp_forward.service.client.transport import Transport
    from dp_forward.service.protocol.access import read_token
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.service.shuffler.shuffler_app import RETRY, Forwarder, fetch_spec, make_shuffler_app
    from dp_forward.service.shuffler.shuffler_store import ShufflerStore

    token = options.optional_token(token_file)
    settings = ServerSettings(host=host, port=port, token=token, tls_cert=tls_cert, tls_key=tls_key)
    word = read_token(collector_token_file)
    if word == token:
        rule = "differ from --collector-token-file"
        raise InvalidInput("token-file", rule, "the same word", "Users must not know that one.")
    with contextlib.closing(Transport(collector, token=word, retry=RETRY)) as client:
        with output.working("asking the collector what it wants"):
            spec = fetch_spec(client)
        with contextlib.closing(ShufflerStore(store, spec, least=least)) as records:
            forwarder = Forwarder(records, client, at_once=spec.body_records)
            app = make_shuffler_app(records, forwarder, spec, settings=settings, most=most)
            run_server(app, settings)
            if json:
                totals = {"batches": forwarder.batches, "records": forwarder.records}
                typer.echo(json_text.dumps({**totals, "waiting": records.waiting}))
