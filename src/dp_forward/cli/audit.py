"""`dpf audit`: try to refute a promise, on the bytes that leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.privacy.rounding import shown_down, shown_up
from dp_forward.progress import counter

if TYPE_CHECKING:
    from dp_forward.audit.findings import Finding
    from dp_forward.audit.released_bytes import ReleasedAudit
    from dp_forward.privacy import Mechanism

_FRAMES: Final = 40
_MOST_ENTRIES: Final = 1 << 22  # integers released in this process: a few seconds on one core


def audit(
    run: Annotated[Path | None, Argument(help="The folder of a run, whose service is audited.")] = None,
    mechanism: options.AnyMechanism = None,
    epsilon: Annotated[float | None, Option("--epsilon", "-e", help="What the noise claims to meet.")] = None,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    draws: Annotated[int | None, Option(help=f"Releases of an input [by rule; {_FRAMES} of a run].")] = None,
    rows: Annotated[int, Option(help="n, the rows that cross.")] = 8,
    columns: Annotated[int, Option("--cols", help="d, the width that crosses.")] = 16,
    labels: options.LabelCount = None,
    bits: Annotated[int, Option(help="Bits per number: 16 or 8.")] = 16,
    text: Annotated[list[str] | None, Option(help="With a run: one of two texts to tell apart.")] = None,
    json: options.Json = False,
) -> None:
    """Try to refute a privacy promise, on the bytes that leave.

    Two inputs are released many times, and the releases are compared. With a run, its back is served on this
    machine, its front asks, and every byte between them is read. Exit code 1 if the promise is refuted. An
    honest system is refuted in at most one audit of 10,000.

    Example: dpf audit --mechanism matrix-gaussian --epsilon 8
    """
    started = time.perf_counter()
    if (run is None) == (mechanism is None):
        raise InvalidInput("run", "be given, or else --mechanism", "both or none", "Try -m privunit -e 8.")
    if run is not None:
        if epsilon is not None or delta is not None:
            raise InvalidInput("epsilon", "be left out with a run", epsilon, "A run claims its own.")
        result = _run(run, _FRAMES if draws is None else draws, text)
    else:
        if epsilon is None:
            raise InvalidInput("epsilon", "be given with a mechanism", "none", "Try --epsilon 8.")
        if mechanism is options.MechanismName.KARY_RESPONSE:
            if labels is None:
                raise InvalidInput("labels", f"be given for {mechanism}", None, "Try --labels 2.")
            rows, columns = 1, labels
        for name, size in {"rows": rows, "cols": columns}.items():
            count(name, size, remedy="Leave it out for the default.")
        shape: Any = {"rows": rows, "columns": columns}
        made = NoiseSpec(mechanism=str(mechanism), epsilon=epsilon, delta=delta, unit=unit, **shape).build()
        result = _mechanism(made, {"rows": rows, "width": columns, "bits": bits}, draws)
    result["seconds"] = time.perf_counter() - started
    if json:
        output.print_json(result)
    else:
        _print(result)
    if result["refuted"]:
        raise typer.Exit(1)


def _mechanism(made: Mechanism, crossing: dict[str, Any], draws: int | None) -> dict[str, Any]:
    """Audit noise alone, on two opposed inputs of the shape that crosses."""
    from dp_forward.audit.draw_checks import audit_draws
    from dp_forward.audit.released_bytes import audit_released, usual_draws

    many = usual_draws(made) if draws is None else draws
    findings = audit_draws(made, **crossing)
    with output.Bars() as bars:
        found = audit_released(made, draws=many, progress=counter(bars, "releasing", 2 * many), **crossing)
    return _result(made, {"opposed inputs": found}, findings)


def _run(run: Path, draws: int, text: list[str] | None) -> dict[str, Any]:
    """A run as it would be used: front, noise, frames, client and server."""
    from dp_forward.audit.draw_checks import audit_draws
    from dp_forward.audit.recording_proxy import record_client
    from dp_forward.audit.released_bytes import REPORTED, audit_released, usual_draws
    from dp_forward.audit.service_audit import audit_service, far_apart, hidden_matrix
    from dp_forward.cli.serve import serve_locally
    from dp_forward.split.artifacts import load_user_side

    for side in ("front", "back"):
        refuse_if(not (run / side).is_dir(), "run", f"hold a {side}", "none", "Make it with dpf finetune.")
    if text is not None and len(set(text)) != 2:
        raise InvalidInput("text", "be given twice, with two texts", len(text), "Leave it out for ours.")
    with output.working("loading the front"):
        user = load_user_side(run / "front")
        made = user.spec.mechanism()
        pair = far_apart(user) if text is None else (text[0], text[1])
        hidden = (hidden_matrix(user, pair[0]), hidden_matrix(user, pair[1]))
    rows, width = hidden[0].shape
    # Three audits: each floor takes a third of the error, so that all hold together.
    level = 1 - (1 - REPORTED) / 3
    inside = max(64, min(usual_draws(made), _MOST_ENTRIES // (4 * rows * width)))
    shape: dict[str, Any] = {"rows": rows, "width": width}
    findings = audit_draws(made, **shape)  # first: it forks, and a server has threads
    audits: dict[str, ReleasedAudit] = {}
    with output.Bars() as bars:
        for name, two in (("opposed inputs", None), ("two texts, released here", hidden)):
            how: Any = {"draws": inside, "level": level, "progress": counter(bars, name, 2 * inside)}
            audits[name] = audit_released(made, pair=two, **how, **shape)
        progress = counter(bars, "asking the server", 2 * draws)
        with serve_locally(run) as address, record_client(user, address) as wire:
            frames, found = audit_service(user, wire, texts=pair, draws=draws, level=level, progress=progress)
    if frames is not None:
        audits["two texts, over the wire"] = frames
    return {**_result(made, audits, [*findings, *found]), "run": str(run)}


def _result(made: Mechanism, audits: dict[str, ReleasedAudit], findings: Sequence[Finding]) -> dict[str, Any]:
    """On top the first audit, whose inputs are the hardest to hide; whatever refutes, refutes all."""
    from dp_forward.audit.released_bytes import false_alarm_rate

    refuting = [(f"{name}: {found.what}", found) for name, one in audits.items() for found in one.refuting]
    refuting += [(finding.what, finding) for finding in findings if finding.refuted]
    return {
        **next(iter(audits.values())).as_dict(),
        "promise": made.promise(),
        "epsilon_lower_bound": max(one.epsilon_lower_bound for one in audits.values()),
        "refuted": bool(refuting),
        "refuted_by": [name for name, _ in refuting],
        "refuting": [{**found.as_dict(), "what": name} for name, found in refuting],
        "false_alarm_rate": false_alarm_rate(audits.values(), findings),
        "audits": {name: one.as_dict() for name, one in audits.items()},
        "findings": [finding.as_dict() for finding in findings],
    }


def _print(result: dict[str, Any]) -> None:
    found = [{"audit": name, **row} for name, one in result["audits"].items() for row in one["findings"]]
    last = "service" if "run" in result else "releases"
    found += [{"audit": last, **row} for row in result["findings"]]
    print_findings(f"{result['mechanism']}: {result['promise']}", found, "audit")
    for name, one in result["audits"].items():
        typer.echo(
            f"{name}: epsilon is at least {shown_down(one['epsilon_lower_bound'], 4)} (95 %), claimed is "
            f"{shown_up(one['claimed_epsilon'], 4)}; {one['draws']} releases of each input can show at most "
            f"{shown_up(one['epsilon_most_shown'], 4)}."
        )
    by = (
        f"{one['what']} (claimed {output.number(one['claimed'])}, found {output.number(one['measured'])})"
        for one in result["refuting"]
    )
    verdict = f"REFUTED by {'; '.join(by)}" if result["refuted"] else "Not refuted"
    rate = f"An honest system is refuted in at most one of {int(1 / result['false_alarm_rate']):,} audits."
    typer.echo(f"{verdict}. {rate} ({result['seconds']:.1f} s)")


def print_findings(title: str, rows: Sequence[Mapping[str, Any]], first: str) -> None:
    """A table of `Finding.as_dict`, each with what it is about under the key ``first``."""
    columns: dict[str, Callable[[Any], str]] = {
        first: lambda row: row[first],
        "measured": lambda row: row["what"],
        "claimed": lambda row: output.number(row["claimed"], 4),
        "found": lambda row: output.number(row["measured"], 4),
        "z": lambda row: "" if row["z"] is None else f"{row['z']:.1f}",
        "verdict": lambda row: "REFUTED" if row["refuted"] else "not refuted",
    }
    output.print_rows(title, rows, columns)
