"""`dpf serve`: the provider answers noisy matrices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dp_forward.cli import options
from dp_forward.cli.plan_options import numbers
from dp_forward.cli.service_options import Host, Port, TlsCert, TlsKey, front_digest_beside, optional_token
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.corpus.corpus_spec import Labels
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.split.artifacts import ProviderSide

__all__ = ["serve"]

_Back = Annotated[Path, typer.Argument(help="The provider's folder of a run: RUN/back.")]
_Token = Annotated[
    Path | None, typer.Option("--token-file", help="A file with the one word that clients must know.")
]
_FrontDigest = Annotated[
    str | None,
    typer.Option("--front-digest", help="The front that this back belongs to [split.json beside it]."),
]
_AlsoEpsilon = Annotated[
    list[float] | None,
    typer.Option(
        "--also-epsilon", help="Answer this smaller epsilon too; several times [its half and quarter]."
    ),
]
_MaxBatch = Annotated[int, typer.Option("--max-batch", help="Most requests answered at once.")]
_Collect = Annotated[
    Path | None, typer.Option("--collect", help="Take training records too, into this folder.")
]
_CollectLabels = Annotated[
    str | None,
    typer.Option("--collect-labels", help="Labels of the records: public, none, randomized [public]."),
]
_LabelEpsilon = Annotated[
    float | None, typer.Option("--label-epsilon", help="The budget of randomized labels.")
]
_LabelPrior = Annotated[str | None, typer.Option("--label-prior", help="Their public prior: 0.5,0.5 [none].")]
_ShufflerToken = Annotated[
    Path | None,
    typer.Option("--shuffler-token-file", help="Take batches of a shuffler that knows this word."),
]


def serve(
    back: _Back,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    token_file: _Token = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    front_digest: _FrontDigest = None,
    also_epsilon: _AlsoEpsilon = None,
    max_batch: _MaxBatch = 32,
    device: options.Device = None,
    collect: _Collect = None,
    collect_labels: _CollectLabels = None,
    label_epsilon: _LabelEpsilon = None,
    label_prior: _LabelPrior = None,
    shuffler_token_file: _ShufflerToken = None,
) -> None:
    """Serve the back: prints its address as one line of JSON when it listens; Ctrl-C ends it in order.

    With --collect it takes noisy training records too; train on them with dpf finetune --from-releases.

    Example: dpf serve run/back --port 8765
    """
    from dp_forward.service.server.app import make_app
    from dp_forward.service.server.settings import ServerSettings
    from dp_forward.service.server.uvicorn_runner import run_server
    from dp_forward.split.artifacts import load_provider_side
    from dp_forward.split.device import pick_device

    place = pick_device(device)
    settings = ServerSettings(
        host=host,
        port=port,
        token=optional_token(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        also_epsilons=None if also_epsilon is None else tuple(sorted(also_epsilon, reverse=True)),
        max_batch=max_batch,
    )
    provider = load_provider_side(back)
    provider.back.to(place)
    digest = front_digest or front_digest_beside(back)
    collection = None
    if collect is not None:
        labels = _labels(collect_labels, label_epsilon, label_prior, count=len(provider.spec.labels))
        collection = _collection(collect, provider, digest, labels)
    elif any(x is not None for x in (collect_labels, label_epsilon, label_prior, shuffler_token_file)):
        raise InvalidInput("collect", "be given to collect records", "nothing", "Name a folder for them.")
    shuffler_token = optional_token(shuffler_token_file)
    app = make_app(
        provider, front_digest=digest, settings=settings, collection=collection, shuffler_token=shuffler_token
    )
    run_server(app, settings)


def _collection(folder: Path, provider: ProviderSide, digest: str, labels: Labels) -> Collection:
    """The collection in a folder, made if there is none."""
    from dp_forward.service.collector.collection_store import Collection
    from dp_forward.service.protocol.collection import CollectionSpec
    from dp_forward.service.protocol.manifest import Manifest

    manifest = Manifest.of(provider, digest, epsilons=())
    return Collection.open_or_create(folder, CollectionSpec.of(manifest, labels))


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
