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

from dp_forward.privacy.ledger.charge import Charge
from dp_forward.privacy.ledger.ledger import Ledger
from dp_forward.privacy.ledger.replay import LARGEST_CAP, Release, State
from dp_forward.privacy.ledger.summary import Summary

__all__ = ["LARGEST_CAP", "Charge", "Ledger", "Release", "State", "Summary"]
