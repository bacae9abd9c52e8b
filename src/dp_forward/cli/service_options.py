"""What the verbs of the service share: where to listen, and whom to ask out of which budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
