"""`dpf serve`: the provider answers noisy matrices."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from dp_forward.errors import InvalidInput

__all__ = ["serve"]


def serve(
    back: Annotated[Path, typer.Argument(help="The provider's folder of a run: RUN/back.")],
    host: Annotated[
        str, typer.Option("--host", help="Off loopback a token and TLS are required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8765,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the one word that clients must know.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="The certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")] = None,
    front_digest: Annotated[
        str | None,
        typer.Option("--front-digest", help="The front that this back belongs to [split.json beside it]."),
    ] = None,
    also_epsilon: Annotated[
        list[float] | None,
        typer.Option(
            "--also-epsilon", help="Answer this smaller epsilon too; several times [its half and quarter]."
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Most requests answered at once.")] = 32,
) -> None:
    """Serve the back: prints its address as one line of JSON when it listens; Ctrl-C ends it in order.

    Example: dpf serve run/back --port 8765
    """
    from dp_forward.handed import load_provider_side
    from dp_forward.serve.server import make_app, run_server
    from dp_forward.serve.settings import ServerSettings, read_token

    settings = ServerSettings(
        host=host,
        port=port,
        token=None if token_file is None else read_token(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        also_epsilons=None if also_epsilon is None else tuple(sorted(also_epsilon, reverse=True)),
        max_batch=max_batch,
    )
    provider = load_provider_side(back)
    app = make_app(provider, front_digest=front_digest or _digest_beside(back), settings=settings)
    run_server(app, settings)


def _digest_beside(back: Path) -> str:
    """The digest of the front that was cut together with this back."""
    place = back.resolve().parent / "split.json"
    try:
        return str(json_text.loads(place.read_text(encoding="utf-8"))["digest_front"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            "front-digest", "be known", f"no digest in {place.name} beside the back", "Give --front-digest."
        ) from None
