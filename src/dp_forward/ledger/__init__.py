"""Privacy budget on disk: every release is charged before it leaves, in an append-only SQLite file.

`ledger` is what a user calls (`Ledger` shows how). Below it: `terms` (promise and shares), `admission` (which
charges are accepted), `verification` (what a chain of events proves), `ledger_file` (the hashed events and
their SQLite file).
"""

from dp_forward.ledger.ledger import Ledger, Summary
from dp_forward.ledger.verification import Release, State
from dp_forward.privacy.cap import Cap
from dp_forward.privacy.charge import Charge

__all__ = ["Cap", "Charge", "Ledger", "Release", "State", "Summary"]
