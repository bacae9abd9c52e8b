"""Privacy budget on disk: every release is charged before it leaves, in an append-only SQLite file.

    with Ledger.open_or_create("budget.ledger", cap_epsilon=8.0, delta=1e-5) as ledger:
        release = ledger.reserve(key, Charge.gaussian(mechanism.mu), mechanism="matrix-gaussian", unit=TEXT)
        data = ledger.ready(release.id, draw())
        send(data)
        ledger.delivered(release.id)

`ledger` is what a user calls. Below it: `admission` (which charges are accepted), `verification` (what a
chain of events proves), `events` (one hashed event and its table), `ledger_file` (the SQLite file).
"""

from dp_forward.ledger.ledger import Ledger, Summary
from dp_forward.ledger.verification import LARGEST_CAP, Release, State
from dp_forward.privacy.charge import Charge

__all__ = ["LARGEST_CAP", "Charge", "Ledger", "Release", "State", "Summary"]
