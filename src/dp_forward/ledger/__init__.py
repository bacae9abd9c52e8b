"""What a user has spent: charges that round up, in a file that only grows.

    with Ledger.open_or_create("budget.ledger", cap_epsilon=8.0, delta=1e-5) as ledger:
        release = ledger.reserve(key, Charge.gaussian(mechanism.mu), mechanism="matrix-gaussian", unit=TEXT)
        data = ledger.ready(release.id, draw())
        send(data)
        ledger.delivered(release.id)

Start with `ledger`; below it lie `charge` (what a release costs), `chain` (one hashed event),
`unit` (what the charges protect), `replay` (what a chain of events proves), `rows`, `schema` and `store` (the
SQLite file).
"""

from dp_forward.ledger.ledger import Ledger
from dp_forward.ledger.replay import LARGEST_CAP, Release, State
from dp_forward.ledger.summary import Summary
from dp_forward.privacy.charge import Charge

__all__ = ["LARGEST_CAP", "Charge", "Ledger", "Release", "State", "Summary"]
