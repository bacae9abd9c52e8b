"""Tokens and loopback addresses: who is answered, and where TLS is needed; for clients and servers alike."""

import ipaddress
import os
from pathlib import Path
from typing import Final

from dp_forward.errors import InvalidInput

__all__ = ["read_token"]

_SHORTEST_TOKEN: Final = 16


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``; a name other than localhost is taken to be public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def network_of(host: str) -> str:
    """The address that one limit counts for: of IPv4 or loopback itself, of IPv6 its /64; a name as it is."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    found = getattr(found, "ipv4_mapped", None) or found
    one = found.version == 4 or found.is_loopback
    return str(found if one else ipaddress.ip_network((found, 64), strict=False))


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file: its only line."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise InvalidInput("token file", "be a readable line of ASCII", path, "Check the path.") from None
    check_token(token)
    return token


def check_token(token: str) -> None:
    """Refuse a token that is easy to guess or cannot be sent as a header; it is never repeated."""
    visible = token.isascii() and token.isprintable() and " " not in token
    if len(token) < _SHORTEST_TOKEN or not visible:
        rule = f"be one word of at least {_SHORTEST_TOKEN} ASCII characters"
        remedy = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise InvalidInput("token", rule, f"{len(token)} characters", remedy)
