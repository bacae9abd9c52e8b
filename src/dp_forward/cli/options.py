"""Options that several verbs share, with one wording; help in panels, the usual options first.

An option without a name of its own takes that of the parameter: `server: options.Server` is `--server`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option, Typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType
from typer.utils import get_params_from_function

from dp_forward.cli import output
from dp_forward.errors import DpForwardError, InvalidInput

if TYPE_CHECKING:
    from dp_forward.service.client.transport import Connection
    from dp_forward.service.server.settings import ServerSettings

__all__ = ["Json"]

_PANELS: Final = {
    "Data": "task data text_column label_column header split limit public public_limit labelled "
    "attribute.text column",
    "Folded releases": "fold split.epsilon records describe split.public pooling split.prompt "
    "split.blocks split.rows",
    "Labels": "release.label_epsilon release.label_prior no_labels",
    "Budget": "release.ledger release.budget finetune.ledger finetune.budget",
    "As the provider": "from_releases other_labels",
    "Behind a shuffler": "shuffle sampler central_epsilon",
    "On a Ray cluster": "engine ray_address ray_workers ray_store",
    "Connection": "release.server ask.token_file ui.token_file release.token_file ca proxy again tls_cert "
    "tls_key allow_origin",
    "Limits": "workers connections connections_per_address max_batch least_users records_per_user most",
    "Logs and metrics": "audit_log metrics_token_file log",
    "Collecting": "collect collect_labels serve.label_epsilon serve.label_prior shuffler_token_file",
    "Advanced": "norm bound rows columns bits prior threshold threshold_share cap_probability paper seed "
    "device noiseless drop_words with_prior attribute.epochs front_digest also_epsilon vocabulary width "
    "allow_vocabulary_head ask.epsilon budget_per_day resend audit.text more",
}
"""The panels of help, in order, with the parameters, or VERB.parameters, in each; the others are usual."""
_PANEL_OF: Final = {name: panel for panel, names in _PANELS.items() for name in names.split()}
_SETTING: Final = re.compile(r"\b([a-z][a-z0-9_]*)(=(True\b|False\b)?)?")


class _Panels:
    """Plain help in panels: a section for each, the required options first, and the example at the end."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        said, _, example = (getattr(self, "help", None) or "").partition("Example:")
        self.help, self.example = said.rstrip(), " ".join(example.split())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the usual options, every other panel, Advanced; then the verbs of a group."""
        sections: dict[str, list[Any]] = {title: [] for title in ("Arguments", "Options", *_PANELS)}
        for one in sorted(self.get_params(ctx), key=_place):  # type: ignore[attr-defined]
            if record := one.get_help_record(ctx):
                flags, text = record[0], record[1].replace("\\[", "[")  # typer 0.20 escapes it for Rich
                if one.param_type_name == "argument" and not one.help:  # with click 8.5 it loses the help
                    known = get_params_from_function(self.callback)  # type: ignore[attr-defined]
                    text = f"{known[one.name].default.help}  {text}".rstrip()
                sections[self.panel_of(one)].append((flags, text))
        for name, verb in (self.commands if isinstance(self, TyperGroup) else {}).items():
            panel = getattr(verb, "rich_help_panel", None) or "Commands"
            sections.setdefault(panel, []).append((name, verb.get_short_help_str(formatter.width - 14)))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def panel_of(self, parameter: Any) -> str:
        """The panel that shows an argument or option."""
        if parameter.param_type_name == "argument":
            return "Arguments"
        usual = _PANEL_OF.get(parameter.name, "Options")
        own = f"{self.name}.{parameter.name}"  # type: ignore[attr-defined]
        # With typer 0.20 the option --help is a bare one of click.
        return getattr(parameter, "rich_help_panel", None) or _PANEL_OF.get(own, usual)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example, in one line that can be copied."""
        if self.example:
            formatter.write(f"\nExample: {self.example}\n")


def _place(parameter: Any) -> tuple[bool, bool, bool]:
    """First what is required, then what has a short form, last --json and --help."""
    return not parameter.required, len(parameter.opts) < 2, parameter.name in ("json", "help")


class PanelCommand(_Panels, TyperCommand):
    """A verb; a refusal names its settings as the flags of this verb."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DpForwardError as error:
            _name_flags(error, self.params)
            raise


class PanelGroup(_Panels, TyperGroup):
    """Verbs under one name."""


class App(Typer):
    """The verbs of one name, whose help is plain and in panels."""

    def __init__(self, *, cls: type[PanelGroup] = PanelGroup, **settings: Any) -> None:
        settings |= {"add_completion": False, "pretty_exceptions_enable": False}
        super().__init__(cls=cls, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, *args: Any, **more: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(*args, **{"cls": PanelCommand, **more})


def _name_flags(error: DpForwardError, parameters: list[Any]) -> None:
    """Where a refusal names a setting as Python does, ``label_epsilon=2``, say the flag: --label-epsilon 2.

    Edges:
        What a verb has no flag for stays as it is; and so does the value that is refused.
    """
    options = {one.name: one for one in parameters if one.param_type_name == "option"}

    def spell(found: re.Match[str]) -> str:
        name, equals, switch = found.groups()
        alike = (name, f"{name}_file", name.removesuffix("s"))  # as Python calls it
        option = next((options[other] for other in alike if other in options), None)
        if option is None or not (equals or "_" in name):
            return found[0]
        flag = (option.secondary_opts if switch == "False" and option.secondary_opts else option.opts)[0]
        return f"{flag} " if equals and switch is None else flag

    message = _SETTING.sub(spell, str(error))
    if isinstance(error, InvalidInput):
        name, rule, remedy = (_SETTING.sub(spell, part) for part in error.words)
        message = str(InvalidInput(name, rule, error.value, remedy))
    if not message.startswith("`plan`"):  # whose keys are spelt as in a file
        error.args = (re.sub("^`--", "`", message),)


class MechanismName(StrEnum):
    """The mechanisms by their names on the command line."""

    MATRIX_GAUSSIAN = "matrix-gaussian"
    GAUSSIAN = "gaussian"
    CLASSICAL_GAUSSIAN = "classical-gaussian"
    MVG = "mvg"
    PRIVUNIT = "privunit"
    RANDOMIZED_RESPONSE = "randomized-response"
    KARY_RESPONSE = "k-ary-response"


_NAMES = f"Which noise: {', '.join(MechanismName)}."
MechanismOption = Annotated[MechanismName, Option("--mechanism", "-m", metavar="NAME", help=_NAMES)]
AnyMechanism = Annotated[
    MechanismName | None, Option("--mechanism", "-m", metavar="NAME", help=f"Without a run. {_NAMES}")
]
Epsilon = Annotated[float | None, Option("--epsilon", "-e", help="The budget; smaller is more private.")]
Delta = Annotated[float | None, Option("--delta", "-d", help="Delta [1e-5 for Gaussian noise, else 0].")]
UnitText = Annotated[str, Option(help="What is protected: text, token, or phrase:c (c tokens).")]
Norm = Annotated[float, Option(help="C, the norm that matrices are bounded to.")]
Releases = Annotated[int, Option("--releases", "-k", help="How often the same text is released afresh.")]
Rows = Annotated[int | None, Option(help="n, the fixed number of tokens.")]
Columns = Annotated[int | None, Option("--cols", help="d, the hidden width.")]
LabelCount = Annotated[int | None, Option(help="K, the number of labels, for the two responses.")]
Shuffle = Annotated[int | None, Option(help="How many users send through a trusted shuffler.")]
Paper = Annotated[bool, Option("--paper", help="Print S = C (the authors' experiments) beside S = 2C.")]

Device = Annotated[str | None, Option(help="cpu, cuda or cuda:K [a GPU if there is one].")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]

Host = Annotated[str, Option(help="Where to listen; off loopback a token and TLS are required.")]
Port = Annotated[int, Option(help="0 takes a free one.")]
TlsCert = Annotated[Path | None, Option(help="The server's certificate, PEM.")]
TlsKey = Annotated[Path | None, Option(help="Its private key, PEM.")]
AllowOrigin = Annotated[list[str] | None, Option(help="Let pages of this origin read answers; repeatable.")]
Connections = Annotated[int, Option(help="Most open connections of a process.")]
PerAddress = Annotated[int, Option(help="Most of them from one address; loopback has no limit.")]
Log = Annotated[str, Option(help="Log to stderr: text (warnings only), or json (one event a line).")]
MetricsToken = Annotated[Path | None, Option(help="A file with the token of /metrics [none on loopback].")]

UserFront = Annotated[Path, Argument(help="The front of a run: RUN/front, or RUN.")]
Server = Annotated[str, Option(help="The provider's address.")]
LedgerFile = Annotated[Path, Option(help="Your budget ledger; created if missing.")]
Budget = Annotated[float | None, Option(help="Cap of a new ledger: the epsilon of all texts together.")]
ProviderToken = Annotated[Path | None, Option(help="A file with the server's token.")]
Ca = Annotated[Path | None, Option(help="Trust these certificates (PEM) in place of the public ones.")]
Proxy = Annotated[str | None, Option(help="Connect through this HTTP proxy; the environment's is ignored.")]


def declare(command: Callable[..., None], verb: Callable[..., Any], added: Mapping[str, Any]) -> None:
    """Let ``command`` take ``added`` (kind and default), then the options of ``verb``, all but its first."""
    own, keyword = inspect.signature(verb, eval_str=True).parameters.values(), inspect.Parameter.KEYWORD_ONLY
    more = (inspect.Parameter(n, keyword, default=d, annotation=kind) for n, (kind, d) in added.items())
    parameters = [*more, *list(own)[1:]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}


_LISTENING: Final = ("host", "port", "tls_cert", "tls_key", "connections", "connections_per_address", "log")


def server_settings(given: Mapping[str, Any], **more: Any) -> ServerSettings:
    """The settings of a server from the options above, as a verb was ``given`` them; it reads the tokens."""
    from dp_forward.service.server.settings import ServerSettings

    tokens: dict[str, Any] = {n: optional_token(given[f"{n}_file"]) for n in ("token", "metrics_token")}
    plain = {name: given[name] for name in _LISTENING}
    return ServerSettings(**plain, **tokens, allow_origins=tuple(given["allow_origin"] or ()), **more)


def optional_token(file: Path | None) -> str | None:
    """The token in a file, where there is one."""
    from dp_forward.service.protocol.access import read_token

    return None if file is None else read_token(file)


def connection(token_file: Path | None, ca: Path | None, proxy: str | None) -> Connection:
    """How a verb speaks to a server; long pauses are told on stderr."""
    return {"token": optional_token(token_file), "ca": ca, "proxy": proxy, "say": output.say}
