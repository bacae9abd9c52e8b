"""A thousand random interleavings of pure and Gaussian charges, forks and kills pass neither share.

In each, a parent and three forked children use one ledger at the same time, the children through the handle
that they inherited or one of their own. Children are killed with SIGKILL at a random statement. What was
acknowledged must be in the file afterwards, within both shares, in a chain that is sound. The same checker
must find fault with the rule that this one replaced.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from dp_forward.errors import BudgetExhausted
from dp_forward.ledger import Cap, Charge, Ledger, admission
from dp_forward.ledger.verification import VerifiedChain
from dp_forward.privacy import Budget
from ledger.test_ledger_crash import Bomb, acknowledge, audit, fork, is_sound, parse

EPSILON, DELTA = 2.0, 1e-5
CHARGES = (
    Charge.pure(0.3),
    Charge.pure(0.05),
    Charge.gaussian(0.2),
    Charge.gaussian(0.05),
    Charge.pure(0.1) + Charge.gaussian(0.1),
)
CAPS = [Cap.mixed(Budget(EPSILON, DELTA), pure=share) for share in (0.2, 1.0, 1.8)]


def old_rule(chain: VerifiedChain, charge: Charge, now: int) -> None:
    """Broken on purpose: one cap on the converted sum."""
    total = chain.total + charge
    if total.pure_epsilon + Charge(0, total.mu2_units).epsilon(DELTA) > EPSILON:
        raise BudgetExhausted("beyond the cap")


def charge_often(ledger: Ledger, pipe: int, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 4)):
        key, charge = draw.randbytes(16), draw.choice(CHARGES)
        try:
            release = ledger.reserve(key, charge)
        except BudgetExhausted:
            acknowledge(pipe, b"X", key, charge)
            continue
        acknowledge(pipe, b"A", key, charge)
        if draw.random() < 0.3:
            ledger.ready(release.id, b"drawn")
            ledger.delivered(release.id)


def interleave(path: Path, draw: random.Random) -> Counter[str]:
    """One interleaving, and what was wrong with it."""
    cap = draw.choice(CAPS)
    found: Counter[str] = Counter(interleavings=1)
    with Ledger.create(path, cap=cap) as ledger:

        def child(pipe: int, seed: int, doomed: bool) -> None:
            own = random.Random(seed)
            if doomed:
                Bomb(own.randint(1, 40)).arm()
            if own.random() < 0.5:
                charge_often(ledger, pipe, own)
            else:
                with Ledger.open(path) as other:
                    charge_often(other, pipe, own)

        children = []
        for _ in range(3):
            seed, doomed = draw.getrandbits(32), draw.random() < 0.6
            children.append(fork(lambda pipe, s=seed, d=doomed: child(pipe, s, d)))
        reading, writing = os.pipe()
        charge_often(ledger, writing, draw)
        os.close(writing)
        heard = []
        for process, pipe in [*children, (0, reading)]:
            while data := os.read(pipe, 1 << 16):
                heard.append(data)
            os.close(pipe)
            found["kills"] += process and os.waitpid(process, 0)[1] != 0
    acknowledged, refusals = parse([b"".join(heard)])
    result = audit(path, acknowledged)
    return found + Counter(
        acknowledged=len(acknowledged),
        refusals=refusals,
        lost=result.lost,
        beyond=not result.within_cap,
        unsound=not is_sound(path),
        both_kinds=bool(result.charged.epsilon_units and result.charged.mu2_units),
    )


def campaign(count: int, *, old: bool) -> dict[str, int]:
    """So many interleavings, in a process without torch: forking it costs next to nothing."""
    words = [sys.executable, "-m", "ledger.test_interleavings", str(count), str(int(old))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=environment).stdout
    found: dict[str, int] = Counter(json.loads(told))
    print(dict(found))
    return found


@pytest.mark.slow
def test_interleavings_of_kinds_forks_and_kills_pass_neither_share() -> None:
    found = campaign(80, old=False)  # `python -m ledger.test_interleavings 1000 0` in tests/ for more
    assert found["interleavings"] == 80
    assert (found["lost"], found["beyond"], found["unsound"]) == (0, 0, 0)
    assert found["kills"] > 40
    assert found["acknowledged"] > 240
    assert found["refusals"] > 40
    assert found["both_kinds"] > 40


@pytest.mark.slow
def test_the_checker_catches_the_rule_that_was_replaced() -> None:
    found = campaign(12, old=True)
    assert found["beyond"] > 0
    assert found["unsound"] == found["beyond"]


if __name__ == "__main__":  # the process that forks
    if int(sys.argv[2]):
        admission.refuse_beyond_budget = old_rule
    luck, result = random.Random(17), Counter[str]()
    for number in range(int(sys.argv[1])):
        with tempfile.TemporaryDirectory() as folder:
            result += interleave(Path(folder) / f"{number}.ledger", luck)
    print(json.dumps(result))
