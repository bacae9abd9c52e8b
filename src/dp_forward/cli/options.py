"""Options that several verbs share, with one wording.

An option without a name of its own takes that of the parameter: `server: options.Server` is `--server`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dp_forward.cli import output

if TYPE_CHECKING:
    from dp_forward.service.client.transport import Connection

__all__ = ["Json"]


class MechanismName(StrEnum):
    """The mechanisms by their names on the command line."""

    MATRIX_GAUSSIAN = "matrix-gaussian"
    GAUSSIAN = "gaussian"
    CLASSICAL_GAUSSIAN = "classical-gaussian"
    MVG = "mvg"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"
    KARY_RESPONSE = "k-ary-response"


MechanismOption = Annotated[MechanismName, Option("--mechanism", "-m", help="Which noise.")]
Epsilon = Annotated[float, Option("--epsilon", "-e", help="The budget; less is more private.")]
Delta = Annotated[
    float | None, Option("--delta", "-d", help="The budget's delta [1e-5 for Gaussian noise, 0 for pure].")
]
UnitText = Annotated[str, Option(help="What is protected: text, token, or phrase:c (c tokens).")]
Norm = Annotated[float, Option(help="C, the norm that matrices are bounded to.")]
Releases = Annotated[int, Option("--releases", "-k", help="How many fresh releases of the same text.")]
Rows = Annotated[int | None, Option(help="n, the fixed public length.")]
Columns = Annotated[int | None, Option("--cols", help="d, the hidden width.")]
LabelCount = Annotated[int | None, Option(help="K, the number of labels, for a response.")]
Shuffle = Annotated[int | None, Option(help="N users behind a trusted shuffler.")]
Paper = Annotated[bool, Option("--paper", help="Print S = C (the authors' experiments) beside S = 2C.")]

Device = Annotated[str | None, Option(help="cpu, cuda or cuda:K [the GPU where there is one].")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]

Host = Annotated[str, Option(help="Off loopback a token and TLS are required.")]
Port = Annotated[int, Option(help="0 takes a free one.")]
TlsCert = Annotated[Path | None, Option(help="The certificate, PEM.")]
Connections = Annotated[int, Option(help="Most open connections of a process.")]
PerAddress = Annotated[int, Option(help="Most of them from one address; loopback has no limit.")]
Log = Annotated[str, Option(help="Logs on stderr: text (warnings), or json (events, a line each).")]
MetricsToken = Annotated[
    Path | None, Option(help="Show /metrics to whoever knows this word [on loopback only].")
]
AllowOrigin = Annotated[
    list[str] | None, Option(help="A page of this origin may read answers; several times [none].")
]
TlsKey = Annotated[Path | None, Option(help="Its key, PEM.")]

UserFront = Annotated[Path, Argument(help="The user's folder of a run: RUN/front, or RUN.")]
Server = Annotated[str, Option(help="The provider's address.")]
LedgerFile = Annotated[Path, Option(help="What you have been charged; made if there is none.")]
Budget = Annotated[
    float | None,
    Option(help="The cap of a new ledger, for the front's kind of noise: epsilon over all texts."),
]
ProviderToken = Annotated[Path | None, Option(help="The provider's token.")]
Ca = Annotated[
    Path | None, Option(help="Certificates of a private authority, PEM: trusted in place of the public ones.")
]
Proxy = Annotated[
    str | None,
    Option(help="Reach the server through this HTTP proxy; that of the environment is never used."),
]


def declare(
    command: Callable[..., None], verb: Callable[..., Any], added: Mapping[str, tuple[Any, Any]]
) -> None:
    """Let ``command`` take the options of ``verb``, all but its first, then ``added``: kind and default."""
    own, keyword = inspect.signature(verb, eval_str=True).parameters.values(), inspect.Parameter.KEYWORD_ONLY
    more = (inspect.Parameter(n, keyword, default=d, annotation=kind) for n, (kind, d) in added.items())
    parameters = [*list(own)[1:], *more]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}


def optional_token(file: Path | None) -> str | None:
    """The token in a file, where there is one."""
    from dp_forward.service.protocol.access import read_token

    return None if file is None else read_token(file)


def connection(token_file: Path | None, ca: Path | None, proxy: str | None) -> Connection:
    """How a verb speaks to a server; long pauses are told on stderr."""
    return {"token": optional_token(token_file), "ca": ca, "proxy": proxy, "say": output.say}
