"""The mutation suite: which broken variant is caught by what, and how often the honest system passes.

    python -m benchmarks.mutants [--rounds 20] [--json results/mutants.json]

Tries every mutant, then audits the honest system again and again: its releases under three kinds of noise,
its draws, and a tiny service over loopback; then prints a table of what caught what. The exit code is 1 if a
mutant was missed or an honest audit was refuted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.goals import Results, arguments, say
from benchmarks.report import ROOT

_LIBRARIES = ("numpy", "scipy", "torch", "transformers", "httpx", "uvicorn")


def main() -> int:
    """Run the suite."""
    parser = arguments(__doc__ or "", "mutants")
    parser.add_argument("--rounds", type=int, default=20, help="audits of the honest system")
    given = parser.parse_args()
    rounds = 2 if given.smoke else given.rounds
    sys.path.insert(0, str(ROOT / "tests"))  # the mutants live with the tests: no product holds them
    from audit import mutants

    command = f"python -m benchmarks.mutants --rounds {rounds}"
    results = Results(given.json, command=command, libraries=_LIBRARIES, smoke=given.smoke)
    with tempfile.TemporaryDirectory() as folder, mutants.world(Path(folder)) as world:
        caught, clean, rows = 0, 0, []
        for mutant in mutants.MUTANTS:
            say(f"trying: {mutant.name}")
            verdict, against = mutants.tried(mutant, world), mutants.honest_findings(mutant, world)
            caught += verdict.caught
            clean += not against
            rows.append(verdict)
            results.add("mutants", _row(asdict(verdict), against))
        passed, longest = _honest(mutants, world, rounds, results)
    _print_table(rows)
    total = len(mutants.MUTANTS)
    results.goal("mutants caught", caught, f"= {total}", caught == total)
    results.goal("checks that pass the honest system", clean, f"= {total}", clean == total)
    results.goal("honest audits that pass", passed, f"= {rounds}", passed == rounds)
    results.goal("longest audit of the service, seconds", longest, "< 30", longest < 30)
    return results.close(judge=not given.no_goals)


def _row(verdict: dict[str, Any], against: list[str]) -> dict[str, Any]:
    return {**verdict, "also": list(verdict["also"]), "honest_refuted_by": against}


def _print_table(verdicts: list[Any]) -> None:
    """Mutant, caught by, what was measured."""
    head = ("mutant", "caught by", "finding", "claimed", "measured", "z")
    rows = [
        (
            one.mutant,
            one.by if one.caught else "NOT CAUGHT",
            one.finding,
            f"{one.claimed:.4g}",
            f"{one.measured:.4g}",
            "" if one.z is None else f"{one.z:+.1f}",
        )
        for one in verdicts
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    print()
    for row in (head, tuple("-" * width for width in widths), *rows):
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())


def _honest(mutants: Any, world: Any, rounds: int, results: Results) -> tuple[int, float]:
    """How many rounds of all audits pass, and how long the service took at most."""
    from dp_forward.audit.draw_checks import audit_draws
    from dp_forward.audit.released_bytes import audit_released
    from dp_forward.audit.service_audit import audit_service

    kinds = (mutants.GAUSSIAN, mutants.PRIVUNIT, mutants.AT_ONE)
    passed, longest = 0, 0.0
    for number in range(rounds):
        say(f"honest round {number + 1} of {rounds}")
        broken = [what for kind in kinds for what in audit_released(kind.build(), draws=4000).refuted_by]
        broken += [one.what for kind in kinds for one in audit_draws(kind.build()) if one.refuted]
        started = time.perf_counter()
        audited, findings = audit_service(world.user, world.wire)
        seconds = time.perf_counter() - started
        longest = max(longest, seconds)
        broken += [one.what for one in findings if one.refuted]
        broken += () if audited is None else audited.refuted_by
        passed += not broken
        frames = 0 if audited is None else audited.draws
        results.add(
            "honest",
            {"round": number + 1, "refuted_by": broken, "service_seconds": seconds, "frames": frames},
        )
    return passed, longest


if __name__ == "__main__":
    sys.exit(main())
