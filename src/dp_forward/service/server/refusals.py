"""Refusals of a server: a code for machines, one line for people, an HTTP status.

A refusal never holds a value of a payload, a token or a header that was not the server's own.
"""

from __future__ import annotations

from typing import Final

from dp_forward.errors import DpForwardError

__all__ = ["STATUS", "Refused"]

STATUS: Final[dict[str, int]] = {
    "token": 401,
    "shuffler": 403,
    "not_found": 404,
    "method": 405,
    "slow": 408,
    "batch": 409,
    "replayed": 409,
    "too_long": 413,
    "content_type": 415,
    "compressed": 415,
    "no_noise": 422,
    "too_much_noise": 422,
    "busy": 429,
    "back": 500,
    "internal": 500,
    "disk": 503,
    "stopping": 503,
    "full": 507,
}
"""Code -> status; whatever is not here is a malformed or mismatched frame: 400."""


class Refused(DpForwardError):
    """A request that gets no answer; ``retry_after`` (seconds) is set where the same bytes may succeed."""

    exit_code = 4

    def __init__(self, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS.get(self.code, 400)

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {"error": self.code, "message": self.message}
