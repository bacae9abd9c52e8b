"""Options that the verbs of the service share: where to listen, whom to ask, out of which budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dp_forward.errors import InvalidInput

__all__ = [
    "Budget",
    "Host",
    "LedgerFile",
    "Port",
    "ProviderToken",
    "Server",
    "TlsCert",
    "TlsKey",
    "UserFront",
    "front_digest_beside",
    "optional_token",
]

Host = Annotated[str, typer.Option("--host", help="Off loopback a token and TLS are required.")]
Port = Annotated[int, typer.Option("--port", help="0 takes a free one.")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="The certificate, PEM.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")]

UserFront = Annotated[Path, typer.Argument(help="The user's folder of a run: RUN/front.")]
Server = Annotated[str, typer.Option("--server", help="The provider's address.")]
LedgerFile = Annotated[Path, typer.Option("--ledger", help="What you have spent; made if there is none.")]
Budget = Annotated[
    float | None, typer.Option("--budget", help="The cap of a new ledger: epsilon over all texts.")
]
ProviderToken = Annotated[Path | None, typer.Option("--token-file", help="The provider's token.")]


def optional_token(file: Path | None) -> str | None:
    """The token in a file, where there is one."""
    from dp_forward.service.protocol.access import read_token

    return None if file is None else read_token(file)


def front_digest_beside(back: Path) -> str:
    """The digest of the front that was cut together with this back."""
    from dp_forward.storage.json_files import read_json

    place = back.resolve().parent / "split.json"
    try:
        return str(read_json(place, name="back", remedy="")["digest_front"])
    except (InvalidInput, KeyError):
        raise InvalidInput(
            "front-digest", "be known", f"no digest in {place.name} beside the back", "Give --front-digest."
        ) from None
