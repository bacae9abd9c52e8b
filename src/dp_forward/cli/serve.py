"""`dpf serve`: the provider answers noisy matrices; a temporary loopback server for other verbs."""

from __future__ import annotations

import json
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dp_forward.cli import options, serve_users
from dp_forward.cli.plan_options import numbers
from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.privacy.checks import count
from dp_forward.storage.json_files import read_json

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dp_forward.corpus.corpus_spec import Labels
    from dp_forward.service.server.settings import ServerSettings

_START_SECONDS = 60.0

_FrontDigest = Annotated[str | None, Option(help="Digest of the front of this back [as split.json says].")]
_Also = Annotated[list[float] | None, Option(help="Answer smaller epsilons too; repeatable [half, quarter].")]
_CollectLabels = Annotated[str | None, Option(help="Labels of records: public, none, randomized [public].")]
_ShufflerToken = Annotated[Path | None, Option(help="Accept batches of a shuffler with this file's token.")]
_How = tuple[str | None, float | None, str | None]  # what --collect-labels and --label-epsilon, -prior say
_Workers = Annotated[int, Option(help="Server processes; more than one needs --store.")]


class ServeCommand(options.PanelCommand):
    """`dpf serve BACK`, and the verbs of `dpf serve users` beside it; a folder of that name is ./users."""

    commands = {"users": typer.main.get_command(serve_users.app)}  # noqa: RUF012

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the verb that is meant."""
        if args and args[0] in self.commands:
            return self.commands[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def serve(
    back: Annotated[Path, Argument(help="The back of a run: RUN/back; or a projection of dpf split --fold.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 8765,
    token_file: Annotated[Path | None, Option(help="A file with a token that all clients share.")] = None,
    store: Annotated[str | None, Option(help="Answer the users of this store, see dpf serve users.")] = None,
    workers: _Workers = 1,
    audit_log: serve_users.AuditFile = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    connections: options.Connections = 1024,
    connections_per_address: options.PerAddress = 64,
    metrics_token_file: options.MetricsToken = None,
    allow_origin: options.AllowOrigin = None,
    log: options.Log = "text",
    front_digest: _FrontDigest = None,
    also_epsilon: _Also = None,
    max_batch: Annotated[int, Option(help="Most requests answered at once.")] = 32,
    device: options.Device = None,
    collect: Annotated[
        str | None, Option(help="Accept training records too, into this folder or postgresql://...")
    ] = None,
    collect_labels: _CollectLabels = None,
    label_epsilon: Annotated[float | None, Option(help="The budget of randomized labels.")] = None,
    label_prior: Annotated[str | None, Option(help="Their public prior: 0.5,0.5 [none].")] = None,
    shuffler_token_file: _ShufflerToken = None,
) -> None:
    """Serve a trained model to users who send noisy numbers.

    It prints its address as one line of JSON when it listens, and Ctrl-C ends it in order. SIGHUP reads the
    back, the tokens and the certificates anew, and loses no request.

    dpf serve users --help: users with tokens and quotas of their own.

    With --collect it takes noisy training records too; train on them with dpf finetune --from-releases.
    A projection (dpf split --fold) has no back yet: records are collected for it, and nothing is answered.

    Example: dpf serve run/back --port 8765
    """
    given = locals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it is handled: nothing is read yet
    from dp_forward.service.server.audit_log import AuditLog
    from dp_forward.service.server.supervisor import Supervisor
    from dp_forward.service.server.uvicorn_runner import bind_socket, log_to_stderr, run_server

    epsilons = None if also_epsilon is None else tuple(sorted(also_epsilon, reverse=True))
    own = {"store": store, "audit_log": audit_log, "also_epsilons": epsilons, "max_batch": max_batch}

    def work(listening: socket.socket, say: Callable[[str], object], ready: Callable[[Any], None]) -> None:
        settings = options.server_settings(given, **own)  # a reload reads the tokens anew
        word = options.optional_token(shuffler_token_file)
        belongs = {"shuffler_token": word, "front_digest": front_digest, "device": device}
        app = _make_app(back, settings, collect, (collect_labels, label_epsilon, label_prior), **belongs)
        run_server(app, settings, say=say, ready=ready, listening=listening)

    settings = options.server_settings(given, **own)
    if count("workers", workers, remedy="Use 1, or up to the number of cores.") > 1 and store is None:
        rule = "be 1 without --store"
        raise InvalidInput("workers", rule, workers, "Processes share quotas and answers in a store.")
    log_to_stderr(json_lines=log == "json")
    listening, audit = bind_socket(settings.host, settings.port), AuditLog(audit_log)
    stop = settings.shutdown_seconds
    Supervisor(work, listening, workers=workers, stop_seconds=stop, audit=audit).run()


def _make_app(
    back: Path,
    settings: ServerSettings,
    collect: str | None = None,
    how: _How = (None, None, None),
    *,
    shuffler_token: str | None = None,
    front_digest: str | None = None,
    device: str | None = None,
) -> Starlette:
    """The server of a back; with ``collect`` it takes records too, and for a projection nothing else.

    Refuses options of collecting without ``collect``, and what a projection has no use for.
    """
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.service.protocol.collection import CollectionSpec
    from dp_forward.service.protocol.manifest import Manifest
    from dp_forward.service.server.app import make_app, make_collector_app
    from dp_forward.split.artifacts import load_provider_side, load_user_side
    from dp_forward.split.device import pick_device
    from dp_forward.train.lineage import is_projection

    collects_only = is_projection(back)
    idle = collect is None and (collects_only or any(given is not None for given in (*how, shuffler_token)))
    refuse_if(idle, "collect", "be given to collect records", "nothing", "Name a folder for them.")
    if collects_only:
        assert collect is not None
        more = any(given is not None for given in (*how, front_digest, settings.also_epsilons))
        remedy = "Its records hold text and label in one release; nothing is answered."
        refuse_if(more, "collect", "be all that is asked of a projection", "more", remedy)
        user = load_user_side(back / "front")
        spec = CollectionSpec.of(Manifest.of(user, user.digest, epsilons=()), "folded")
        records = Collection.open_or_create(collect, spec)
        return make_collector_app(records, settings=settings, shuffler_token=shuffler_token)
    place = pick_device(device)
    provider, collection = load_provider_side(back), None
    provider.back.to(place)
    digest = front_digest or front_digest_beside(back)
    if collect is not None:
        asked, labels = Manifest.of(provider, digest, epsilons=()), _labels(*how, provider.spec.labels)
        collection = Collection.open_or_create(collect, CollectionSpec.of(asked, labels))
    collecting: Any = {"collection": collection, "shuffler_token": shuffler_token}
    return make_app(provider, front_digest=digest, settings=settings, **collecting)


def _labels(how: str | None, epsilon: float | None, prior: str | None, names: Sequence[str]) -> Labels:
    """What is collected of the labels."""
    from dp_forward.train.regimes import label_mechanism_for

    mechanism = label_mechanism_for(epsilon, numbers("label-prior", prior), labels=len(names))
    unknown = how not in (None, "public", "none", "randomized")
    refuse_if(unknown, "collect-labels", "be public, none or randomized", repr(how), "Use public.")
    apart = how is not None and (how == "randomized") != (mechanism is not None)
    rule = "go with --collect-labels randomized, and with that alone"
    refuse_if(apart, "label-epsilon", rule, epsilon, "Users randomize with the same budget.")
    return mechanism or ("none" if how == "none" else "public")


def front_digest_beside(back: Path) -> str:
    """The digest of the front that was cut together with this back."""
    place = back.resolve().parent / "split.json"
    try:
        return str(read_json(place, name="back", remedy="")["digest_front"])
    except (InvalidInput, KeyError):
        found = f"no digest in {place.name} beside the back"
        raise InvalidInput("front-digest", "be known", found, "Give --front-digest.") from None


@contextmanager
def serve_locally(run: Path) -> Iterator[str]:
    """The address of a provider that runs in a thread of this process, on a free port."""
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server

    settings = ServerSettings(port=0)
    app = _make_app(run / "back", settings, device="cpu")
    told = queue.Queue[Any]()  # the line with its address, and the server
    how = {"say": told.put, "ready": told.put}
    thread = threading.Thread(target=run_server, args=(app, settings), kwargs=how, daemon=True)
    thread.start()
    try:
        line, server = told.get(timeout=_START_SECONDS), told.get(timeout=_START_SECONDS)
    except queue.Empty:
        raise DpForwardError("The server did not start within a minute.") from None
    try:
        yield str(json.loads(line)["address"])
    finally:
        server.should_exit = True
        thread.join(_START_SECONDS)
