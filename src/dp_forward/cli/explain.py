"""`dpf explain`: a guarantee in words, with a small table."""

import dataclasses
from typing import Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.mechanism_options import MechanismRequest, delta_of, name_assumptions
from dp_forward.errors import Unproved
from dp_forward.privacy import Budget, Deployment
from dp_forward.privacy.rounding import percent_up, shown_up


def explain(
    mechanism: options.MechanismOption,
    epsilon: options.Epsilon,
    delta: options.Delta = None,
    unit: options.UnitText = "text",
    norm: options.Norm = 1.0,
    rows: options.Rows = None,
    columns: options.Columns = None,
    labels: options.LabelCount = None,
    json: options.Json = False,
) -> None:
    """What a budget promises, in words, and what is left of it when one text is sent again.

    Example: dpf explain --mechanism privunit --epsilon 4
    """
    delta = delta_of(delta, mechanism)
    request = MechanismRequest(mechanism, unit, norm, rows=rows, columns=columns, labels=labels)
    made = request.for_budget(Budget(epsilon, delta))
    if not made.guaranteed:
        raise Unproved(
            f"`mechanism` must carry a guarantee to be explained; {made.name} at epsilon "
            f"{epsilon} has none. Use gaussian."
        )
    guarantee = Deployment(made).guarantee(delta=0.0 if made.shown_delta == 0 else delta)
    table: list[dict[str, Any]] = []
    for count in (1, 2, 3, 10, 30, 100):
        many: Any = dataclasses.replace(made, releases=count)  # type: ignore[type-var]
        epsilons = {"epsilon": many.epsilon(guarantee.delta), "guess_rate": many.guess_rate()}
        table.append({"releases": count, **epsilons})
    if json:
        output.print_json(guarantee.as_dict() | {"mechanism": made.name, "repeated": table})
        return
    typer.echo(
        f"{guarantee.statement}\n\nAgainst: {guarantee.against}.\n{name_assumptions(guarantee.assumptions)}\n"
        "It does not say: that the text cannot be guessed from elsewhere, or that the answer\n"
        "is right. What the noisy matrix is used for later costs nothing more.\n"
    )
    output.print_table(
        "The same text released k times with fresh noise (a stored release resent costs nothing)",
        ("k", "epsilon", "best guess of any attacker"),
        [(str(r["releases"]), shown_up(r["epsilon"], 4), percent_up(r["guess_rate"])) for r in table],
    )
