"""`dpf serve`: the provider answers noisy matrices; a temporary loopback server for other verbs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options
from dp_forward.cli.plan_options import numbers
from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.storage.json_files import read_json

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dp_forward.corpus.corpus_spec import Labels
    from dp_forward.service.server.settings import ServerSettings

_START_SECONDS = 60.0
_HowLabelled = tuple[str | None, float | None, str | None]
"""What --collect-labels, --label-epsilon and --label-prior say."""

_FrontDigest = Annotated[
    str | None, Option(help="The front that this back belongs to [split.json beside it].")
]
_AlsoEpsilon = Annotated[
    list[float] | None, Option(help="Answer this smaller epsilon too; several times [its half and quarter].")
]
_CollectLabels = Annotated[
    str | None, Option(help="Labels of the records: public, none, randomized [public].")
]
_ShufflerToken = Annotated[Path | None, Option(help="Take batches of a shuffler that knows this word.")]


def serve(
    back: Annotated[Path, Argument(help="The provider's folder of a run: RUN/back; or a projection.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 8765,
    token_file: Annotated[
        Path | None, Option(help="A file with the one word that clients must know.")
    ] = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    front_digest: _FrontDigest = None,
    also_epsilon: _AlsoEpsilon = None,
    max_batch: Annotated[int, Option(help="Most requests answered at once.")] = 32,
    device: options.Device = None,
    collect: Annotated[Path | None, Option(help="Take training records too, into this folder.")] = None,
    collect_labels: _CollectLabels = None,
    label_epsilon: Annotated[float | None, Option(help="The budget of randomized labels.")] = None,
    label_prior: Annotated[str | None, Option(help="Their public prior: 0.5,0.5 [none].")] = None,
    shuffler_token_file: _ShufflerToken = None,
) -> None:
    """Serve the back: prints its address as one line of JSON when it listens; Ctrl-C ends it in order.

    With --collect it takes noisy training records too; train on them with dpf finetune --from-releases.
    A projection (dpf split --fold) has no back yet: records are collected for it, and nothing is answered.

    Example: dpf serve run/back --port 8765
    """
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.train.lineage import is_projection

    settings = ServerSettings(
        host=host,
        port=port,
        token=options.optional_token(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        also_epsilons=None if also_epsilon is None else tuple(sorted(also_epsilon, reverse=True)),
        max_batch=max_batch,
    )
    how, word = (collect_labels, label_epsilon, label_prior), options.optional_token(shuffler_token_file)
    collects_only = is_projection(back)
    if collect is None and (collects_only or any(given is not None for given in (*how, word))):
        raise InvalidInput("collect", "be given to collect records", "nothing", "Name a folder for them.")
    if collects_only and collect is not None:
        if any(given is not None for given in (*how, front_digest, also_epsilon)):
            remedy = "Its records hold text and label in one release; nothing is answered."
            raise InvalidInput("collect", "be all that is asked of a projection", "more", remedy)
        app = _make_collector(back, collect, settings, word)
    else:
        app = _make_server(back, front_digest, device, settings, collect, how, word)
    run_server(app, settings)


def _make_server(
    back: Path,
    front_digest: str | None,
    device: str | None,
    settings: ServerSettings,
    collect: Path | None,
    how: _HowLabelled,
    shuffler_token: str | None,
) -> Starlette:
    """The server that answers, and with ``collect`` takes records for the same back too."""
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.service.protocol.collection import CollectionSpec
    from dp_forward.service.protocol.manifest import Manifest
    from dp_forward.service.server.app import make_app
    from dp_forward.split.artifacts import load_provider_side
    from dp_forward.split.device import pick_device

    place = pick_device(device)
    provider = load_provider_side(back)
    provider.back.to(place)
    digest, collection = front_digest or front_digest_beside(back), None
    if collect is not None:
        labels = _labels(*how, count=len(provider.spec.labels))
        spec = CollectionSpec.of(Manifest.of(provider, digest, epsilons=()), labels)
        collection = Collection.open_or_create(collect, spec)
    return make_app(
        provider, front_digest=digest, settings=settings, collection=collection, shuffler_token=shuffler_token
    )


def _make_collector(
    projection: Path, collect: Path, settings: ServerSettings, shuffler_token: str | None
) -> Starlette:
    """The server that collects folded records for a projection, and answers nothing."""
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.service.protocol.collection import CollectionSpec
    from dp_forward.service.protocol.manifest import Manifest
    from dp_forward.service.server.app import make_collector_app
    from dp_forward.split.artifacts import load_user_side

    user = load_user_side(projection / "front")
    spec = CollectionSpec.of(Manifest.of(user, user.digest, epsilons=()), "folded")
    collection = Collection.open_or_create(collect, spec)
    return make_collector_app(collection, settings=settings, shuffler_token=shuffler_token)


def _labels(how: str | None, epsilon: float | None, prior: str | None, *, count: int) -> Labels:
    """What is collected of the labels."""
    from dp_forward.train.regimes import label_mechanism_for

    mechanism = label_mechanism_for(epsilon, numbers("label-prior", prior), labels=count)
    if how not in (None, "public", "none", "randomized"):
        raise InvalidInput("collect-labels", "be public, none or randomized", repr(how), "Use public.")
    if (how == "randomized" and mechanism is None) or (how in ("public", "none") and mechanism is not None):
        rule = "go with --collect-labels randomized, and with that alone"
        raise InvalidInput("label-epsilon", rule, epsilon, "Users randomize with the same budget.")
    if mechanism is not None:
        return mechanism
    return "none" if how == "none" else "public"


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
    from dp_forward.service.server.app import make_app
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.split.artifacts import load_provider_side

    back, settings = run / "back", ServerSettings(port=0)
    app = make_app(load_provider_side(back), front_digest=front_digest_beside(back), settings=settings)
    listening, found = threading.Event(), dict[str, Any]()

    def ready(server: Any) -> None:
        found["server"] = server
        listening.set()

    told = {"say": lambda line: found.update(json.loads(line)), "ready": ready}
    thread = threading.Thread(target=run_server, args=(app, settings), kwargs=told, daemon=True)
    thread.start()
    if not listening.wait(_START_SECONDS):
        raise DpForwardError("The server did not start within a minute.")
    try:
        yield str(found["address"])
    finally:
        found["server"].should_exit = True
        thread.join(_START_SECONDS)
