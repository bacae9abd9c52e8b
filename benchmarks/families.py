"""The leak check at every legal cut of a tiny random model of every family.

    python -m benchmarks.families [FAMILY ...]

It prints one line for each family and fails if a cut leaks, or differs from the whole model. The tests run
the same check at one cut of each kind. A few minutes on one core.
"""

from __future__ import annotations

import sys

from benchmarks.report import ROOT
from dp_forward.split import FAMILIES, legal_cuts, split_model
from dp_forward.split.check import check_split

sys.path.append(str(ROOT / "tests"))

from tiny_models import tiny


def check_family(family: str) -> bool:
    """Check every cut; print how many are exact, up to rounding, or without their residual."""
    model, worst, problems = tiny(family), 0.0, list[str]()
    cuts = legal_cuts(model)
    for info in cuts:
        found = check_split(split_model(model, info.cut), model)
        worst = max(worst, found.max_abs_difference or 0.0)
        problems += [f"{info.cut}: {problem}" for problem in found.problems]
    dropped = sum(info.cut.drops_residual for info in cuts)
    verdict = "; ".join(problems) or "passed"
    counted = f"{len(cuts)} cuts, {dropped} without their residual"
    print(f"{family:<12} {counted}, at most {worst:.1e} apart: {verdict}", flush=True)
    return not problems


def main() -> int:
    families = sys.argv[1:] or list(FAMILIES)
    leaky = [family for family in families if not check_family(family)]
    return 1 if leaky else 0


if __name__ == "__main__":
    raise SystemExit(main())
