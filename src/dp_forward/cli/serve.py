"""`dpf serve`: the provider answers noisy matrices; a temporary loopback server for other verbs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
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
    if collects_only and any(given is not None for given in (*how, front_digest, also_epsilon)):
        remedy = "Its records hold text and label in one release; nothing is answered."
        raise InvalidInput("collect", "be all that is asked of a projection", "more", remedy)
    belongs = {"front_digest": front_digest, "device": device}
    run_server(_make_app(back, settings, collect, how, shuffler_token=word, **belongs), settings)


def _make_app(
    back: Path,
    settings: ServerSettings,
    collect: Path | None = None,
    how: tuple[str | None, float | None, str | None] = (None, None, None),
    *,
    shuffler_token: str | None = None,
    front_digest: str | None = None,
    device: str | None = None,
) -> Starlette:
    """The server of a back; with ``collect`` it takes records too, and for a projection nothing else.

    ``how`` is what --collect-labels, --label-epsilon and --label-prior say.
    """
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.service.protocol.collection import CollectionSpec
    from dp_forward.service.protocol.manifest import Manifest
    from dp_forward.service.server.app import make_app, make_collector_app
    from dp_forward.split.artifacts import load_provider_side, load_user_side
    from dp_forward.split.device import pick_device
    from dp_forward.train.lineage import is_projection

    if is_projection(back):
        assert collect is not None
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
    return make_app(
        provider, front_digest=digest, settings=settings, collection=collection, shuffler_token=shuffler_token
    )


def _labels(how: str | None, epsilon: float | None, prior: str | None, names: Sequence[str]) -> Labels:
    """What is collected of the labels."""
    from dp_forward.train.regimes import label_mechanism_for

    mechanism = label_mechanism_for(epsilon, numbers("label-prior", prior), labels=len(names))
    if how not in (None, "public", "none", "randomized"):
        raise InvalidInput("collect-labels", "be public, none or randomized", repr(how), "Use public.")
    if how is not None and (how == "randomized") != (mechanism is not None):
        rule = "go with --collect-labels randomized, and with that alone"
        raise InvalidInput("label-epsilon", rule, epsilon, "Users randomize with the same budget.")
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
