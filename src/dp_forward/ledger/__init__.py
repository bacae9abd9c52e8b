"""Privacy budget on disk: every release is charged before it leaves, in an append-only SQLite file.

`ledger` is what a user calls (`Ledger` shows how). Below it: `admission` (which charges are accepted),
`verification` (what a chain of events proves), `ledger_file` (the hashed events and their SQLite file).
"""

from dp_forward.ledger.ledger import Ledger, Summary
from dp_forward.ledger.verification import LARGEST_CAP, Release, State
from dp_forward.privacy.charge import Charge

__all__ = ["LARGEST_CAP", "Charge", "Ledger", "Release", "State", "Summary"]
