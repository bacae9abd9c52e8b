"""`dpf demo --proof`: the proof at work, in a second and without a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import typer

from dp_forward.audit.findings import Finding
from dp_forward.audit.two_point import audit_gaussian, audit_privunit
from dp_forward.cli import output
from dp_forward.errors import BudgetExhausted
from dp_forward.ledger import Ledger
from dp_forward.privacy import Budget, Guarantee, MatrixGaussian, PaperReading, PrivUnit, calibrate, normalise
from dp_forward.privacy.guarantee import percent_up
from dp_forward.privacy.rounding import shown_up
from dp_forward.privacy.shuffling import shuffled_pure

_EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
_DELTA = 1e-5
_SHAPE = (16, 24)
_USERS = 67_349
_BOUND = normalise(1.0)


def show_proof(*, json: bool) -> None:
    """What a promise costs in noise, whether it is kept, and what is left of a budget."""
    with output.working("calibrating"):
        noise = [noise_for(epsilon) for epsilon in _EPSILONS]
    with output.working("drawing releases and measuring them"):
        audits = _audits(8.0)
    with output.working("spending a budget"):
        spending = _spend(cap=8.0, each=2.0)
    guarantee = Guarantee(calibrate(PrivUnit, Budget(4.0), bound=_BOUND))
    if json:
        found = {"noise": noise, "audits": audits, "ledger": spending}
        output.print_json({**found, "guarantee": guarantee.as_dict()})
        return
    _print_noise(noise)
    _print_audits(audits)
    typer.echo(
        f"3. A ledger with a cap of {spending['cap']:g}: {spending['releases']} releases at epsilon 2 "
        f"spent {shown_up(spending['spent'])}; the next one was refused:\n   {spending['refused']}\n\n"
        f"4. In words: {guarantee.statement}\n"
        "   (That is the ceiling of every pure mechanism at epsilon 4. Table 1 shows what the best attacker\n"
        "   reaches against this one: at the same epsilon PrivUnit keeps more usable, for guessing too.)"
    )


def noise_for(epsilon: float) -> dict[str, Any]:
    """The noise of both mechanisms for one budget, per text, C = 1."""
    gaussian = calibrate(MatrixGaussian, Budget(epsilon, _DELTA), bound=_BOUND)
    privunit = calibrate(PrivUnit, Budget(epsilon), bound=_BOUND)
    paper = PaperReading.for_budget(Budget(epsilon, _DELTA), bound=_BOUND)
    central = shuffled_pure(local_epsilon=epsilon, users=_USERS, delta=_DELTA)
    return {
        "epsilon": epsilon,
        "gaussian_sigma": gaussian.sigma,
        "privunit_sigma": privunit.sigma,
        "paper_really": paper.real.epsilon,
        "privunit_shuffled": central.upper.epsilon,
        "gaussian_guess_rate": gaussian.guess_rate(),
        "privunit_guess_rate": privunit.own_guess_rate(),
    }


def _audits(epsilon: float) -> list[dict[str, Any]]:
    """Honest samplers and two false ones, measured against the same claim."""
    rng = np.random.default_rng(20231126)
    first = np.zeros(_SHAPE)
    first[0, 0] = 1.0
    claim = calibrate(MatrixGaussian, Budget(epsilon, _DELTA), bound=_BOUND)
    paper = PaperReading.for_budget(Budget(epsilon, _DELTA), bound=_BOUND).sigma
    unit = calibrate(PrivUnit, Budget(epsilon), bound=_BOUND)

    def gaussian(sigma: float) -> Finding:
        return audit_gaussian(
            claim, lambda x, r: x + sigma * r.standard_normal(x.shape), first, -first, draws=4000, rng=rng
        )

    audits = {
        "matrix Gaussian, honest (S = 2C)": gaussian(claim.sigma),
        "matrix Gaussian as in the paper (S = C)": gaussian(paper),
        "matrix Gaussian with 0.9 sigma": gaussian(0.9 * claim.sigma),
        "PrivUnit, honest": audit_privunit(unit, unit.raw, first, draws=4000, rng=rng),
    }
    fields = ("claimed", "measured", "z", "refuted")
    return [
        {"sampler": name, "measures": audit.what} | {field: getattr(audit, field) for field in fields}
        for name, audit in audits.items()
    ]


def _spend(*, cap: float, each: float) -> dict[str, Any]:
    """Release until the ledger says no."""
    mechanism = calibrate(PrivUnit, Budget(each), bound=_BOUND)
    rng = np.random.default_rng(7)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(Path(folder) / "ledger.sqlite", cap_epsilon=cap, delta=_DELTA) as ledger,
    ):
        while True:
            key = ledger.releases.to_bytes(16, "big")
            try:
                release = ledger.reserve(key, mechanism.charge(), mechanism=mechanism.name)
            except BudgetExhausted as error:
                ledger.verify()
                spent = {"spent": ledger.spent(), "releases": ledger.releases}
                return {"cap": cap, **spent, "sound": True, "refused": str(error)}
            noisy = mechanism.sample(rng.standard_normal(_SHAPE), rng)
            ledger.ready(release.id, noisy.astype("<f4").tobytes())
            ledger.delivered(release.id)


def _print_noise(noise: list[dict[str, Any]]) -> None:
    columns = {
        "epsilon": lambda row: f"{row['epsilon']:g}",
        "Gaussian sigma": lambda row: shown_up(row["gaussian_sigma"], 5),
        "PrivUnit 1/m": lambda row: shown_up(row["privunit_sigma"], 5),
        "ratio": lambda row: f"{row['gaussian_sigma'] / row['privunit_sigma']:.2f}",
        "best guess, Gaussian": lambda row: percent_up(row["gaussian_guess_rate"]),
        "best guess, PrivUnit": lambda row: percent_up(row["privunit_guess_rate"]),
        f"PrivUnit, {_USERS:,} shuffled": lambda row: shown_up(row["privunit_shuffled"], 3),
        'the paper\'s "epsilon" is really': lambda row: shown_up(row["paper_really"], 3),
    }
    title = "1. Noise per entry for a private text (C = 1, delta 1e-5 for the Gaussian, 0 for PrivUnit)"
    output.print_rows(title, noise, columns)


def _print_audits(audits: list[dict[str, Any]]) -> None:
    columns = {
        "sampler": lambda row: row["sampler"],
        "measured": lambda row: row["measures"],
        "claimed": lambda row: f"{row['claimed']:.3f}",
        "found": lambda row: f"{row['measured']:.3f}",
        "z": lambda row: f"{row['z']:+.1f}",
        "verdict": lambda row: "REFUTED" if row["refuted"] else "not refuted",
    }
    title = "2. Is the promise kept? 4,000 releases of two opposed inputs at a claimed epsilon of 8"
    output.print_rows(title, audits, columns)
