"""What can go wrong, as types.

The tree::

    DpForwardError
    ├── InvalidInput      a value breaks a rule (also a ValueError)          exit code 2
    ├── MissingPackage    an extra is not installed (also an ImportError)    exit code 2
    ├── Unproved          a guarantee was asked for that no theorem gives    exit code 2
    ├── BudgetExhausted   a release would pass the cap of the ledger         exit code 3
    ├── LedgerCorrupt     a ledger file is not what this software wrote      exit code 1
    ├── LedgerUnavailable a ledger is sound but cannot be used right now     exit code 1
    ├── WireError         bytes that break the protocol (protocol.frame)     exit code 4
    ├── ProtocolMismatch  another release is wanted (protocol.policy)        exit code 4
    ├── ServerRefused     a server that says no (client.transport)           exit code 4
    └── ServerUnavailable a server that does not answer (client.transport)   exit code 1

Every message is one line: name, rule, value, remedy. No message ever holds a text, a token
or a hidden value.
"""

from __future__ import annotations

__all__ = [
    "BudgetExhausted",
    "DpForwardError",
    "InvalidInput",
    "LedgerCorrupt",
    "LedgerRestated",
    "LedgerUnavailable",
    "MissingPackage",
    "Unproved",
    "refuse_if",
]


class DpForwardError(Exception):
    """Anything that this package refuses to do."""

    exit_code = 1


class InvalidInput(DpForwardError, ValueError):
    """A value that breaks a rule: name, rule, value, remedy."""

    exit_code = 2

    def __init__(self, name: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"`{name}` must {rule}; got {value}. {remedy}")
        self.name, self.value, self.words = name, value, (name, rule, remedy)

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, ...]]:
        name, rule, remedy = self.words
        return type(self), (name, rule, str(self.value), remedy)  # from one process to another


class MissingPackage(DpForwardError, ImportError):
    """A package of an extra that is not installed."""

    exit_code = 2


def refuse_if(broken: object, name: str, rule: str, value: object, remedy: str) -> None:
    """Raise `InvalidInput` where ``broken`` is true."""
    if broken:
        raise InvalidInput(name, rule, value, remedy)


class Unproved(DpForwardError):
    """A promise that nobody has proved."""

    exit_code = 2


class BudgetExhausted(DpForwardError):
    """One more release would pass the cap."""

    exit_code = 3


class LedgerCorrupt(DpForwardError):
    """A ledger that cannot be trusted; it is refused, never reset."""


class LedgerUnavailable(DpForwardError):
    """A ledger that is locked, or on a disk that is full or fails; no earlier step is lost."""


class LedgerRestated(UserWarning):
    """A warning: a ledger of an older version was upgraded, and this is what it promises."""
