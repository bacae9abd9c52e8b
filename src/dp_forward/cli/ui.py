"""`dpf ui`: a web page on the user's own machine."""

from __future__ import annotations

import json as json_text
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
from typer import Option

from dp_forward.cli import options
from dp_forward.cli.explain import RunAccuracy
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.attacks.inversion.nearest_token import NearestTokens
    from dp_forward.service.client.question import Preview

_INNER_VOCABULARY: Final = 8000
"""Where every candidate goes through blocks of the front: some ten seconds on two cores for a small model."""
_EXACT: Final = (
    "For every row the nearest of {many}, put through the front at that place. Each row is made from its own "
    "token here, so without noise nothing is lost. The reader is told which rows hold text."
)
_APPROXIMATE: Final = (
    "For every row the nearest of {many}, each put through the front alone. In a text the neighbours move a "
    "row, so this is an approximation, and a trained attack reads more. The reader is told which rows hold "
    "text."
)


def ui(
    front: options.UserFront,
    server: options.Server = "http://127.0.0.1:8765",
    ledger: options.LedgerFile = Path("budget.ledger"),
    budget: options.Budget = None,
    token_file: options.ProviderToken = None,
    ca: options.Ca = None,
    proxy: options.Proxy = None,
    port: Annotated[int, Option(help="The port of the page, on this machine; 0 takes a free one.")] = 8766,
    pair: Annotated[bool, Option("--pair", help="Ask about pairs of texts [as the run's records].")] = False,
    vocabulary: Annotated[int | None, Option(help="Tokens to choose from [all, 8000 in a model].")] = None,
    json: options.Json = False,
) -> None:
    """Ask in your browser, and see what it costs and what it tells.

    Prints its address as one line of JSON when it listens; the address holds a key, and is for you alone.
    Only this machine can reach it. Ctrl-C ends it in order. Where a row crosses for each token, it shows what
    one simple attack reads; that needs torch, and answers do not.

    Example: dpf ui run/front --server http://127.0.0.1:8765 --ledger my.ledger --budget 50
    """
    from dp_forward.service.client.client import Client
    from dp_forward.service.client.transport import RetryPolicy
    from dp_forward.service.webui.ui_app import run_ui
    from dp_forward.service.webui.ui_service import UiService
    from dp_forward.split.artifacts import front_of, load_asking_side

    def say(line: str) -> None:
        typer.echo(line)
        sys.stdout.flush()
        if not json:
            typer.echo(f"Open {json_text.loads(line)['address']} in your browser. Ctrl-C ends it.", err=True)

    how, run = options.connection(token_file, ca, proxy), None
    with suppress(InvalidInput):  # a front alone has no report
        run = RunAccuracy.read(front)
    shown: dict[str, Any] = {"server": server, "pair": pair or (run is not None and run.pair)}
    if run is not None:
        shown["accuracy"] = run.at
    user = load_asking_side(front_of(front))
    how["retry"] = RetryPolicy(attempts=4, longest=2.0)  # Somebody waits at the page.
    with Client(user, server=server, ledger=ledger, budget=budget, **how) as client:
        reader = None
        if client.policy.release.cut != "output":  # else one row crosses, and there are no tokens to name
            reader = _reconstructor(front, vocabulary, by_row=client.policy.noise.bound.over == "row")
        with reader or nullcontext():
            run_ui(UiService(client, reader, **shown), port=port, say=say)


def _reconstructor(front: Path, vocabulary: int | None, *, by_row: bool) -> TokenReconstructor | None:
    """What reads releases as a provider could; None without torch."""
    try:
        from dp_forward.attacks.inversion.nearest_token import NearestTokens
        from dp_forward.split.artifacts import front_of, load_user_side

        user = load_user_side(front_of(front))
    except ModuleNotFoundError:
        return None
    if vocabulary is None and not user.front.row_local:
        vocabulary = _INNER_VOCABULARY
    return TokenReconstructor(NearestTokens(user, vocabulary=vocabulary), by_row=by_row)


class TokenReconstructor:
    """`NearestTokens` as the page wants it; as a context manager it prepares itself in a thread."""

    def __init__(self, nearest: NearestTokens, *, by_row: bool) -> None:
        self._nearest, self._by_row = nearest, by_row
        self._failed, self._stopping = False, threading.Event()
        self._thread = threading.Thread(target=self.prepare, daemon=True)

    @property
    def how(self) -> str:
        """What is done, and where it falls short."""
        many = f"{self._nearest.size:,} tokens".replace(",", " ")
        return (_EXACT if self._nearest.exact else _APPROXIMATE).format(many=many)

    @property
    def prepared(self) -> float | None:
        """How far it is; None if it failed."""
        return None if self._failed else self._nearest.prepared

    def __call__(self, preview: Preview) -> list[dict[str, Any]]:
        """What is read without noise and, if there is a release, from it; for JSON."""
        from torch import as_tensor

        seen: list[Any] = [(as_tensor(preview.hidden), "known")]
        if preview.noisy is not None:
            seen.append((as_tensor(preview.noisy), "row" if self._by_row else "matrix"))
        tokens = {name: as_tensor(values) for name, values in preview.tokens.items()}
        return [reading.as_dict() for reading in self._nearest.read(seen, tokens)]

    def prepare(self) -> None:
        """Put every candidate through the front, until the end of the context."""
        try:
            self._nearest.prepare(self._continue)
        except Exception:  # shown on the page, if it is still there; answers do not need it
            self._failed = True

    def _continue(self, done: int) -> None:
        if self._stopping.is_set():
            raise InterruptedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()
