"""Settings of a server: where it listens and what it allows; checked once, before anything is opened.

Guarantees:
    Settings that exist are safe to listen with: off loopback they have a token and TLS. No repr has a token.
"""

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.service.protocol.access import check_token, is_loopback
from dp_forward.service.protocol.frame import MOST_BEHIND_S

__all__ = ["ServerSettings"]

_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9-]+(\.[a-z0-9-]+)*)(:[0-9]{1,5})?")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where to listen, whom to answer, and how much at once.

    Edges:
        ``store`` is that of the users (`users`), who are answered besides whoever has ``token``; what an
        operator wants to know goes to ``audit_log``. ``port`` 0 takes a free one. ``max_wait_ms`` is how long
        the first of a batch of at most ``max_batch`` waits for others; at most ``queue`` requests wait.
        ``tls_cert`` and ``tls_key`` are PEM files. A body has ``body_seconds``, a stop ``shutdown_seconds``.
        ``oldest_s`` is how far a frame's time may lie behind the server's.
        ``also_epsilons`` are answered besides the back's own, all smaller [its half and its quarter].
        ``idle_seconds``, ``connections`` and ``connections_per_address`` are those of `connections`.
        ``metrics_token`` is the operator's. ``allow_origins`` are the pages that may read answers, by name.
        ``log`` "json" writes events as JSON to stderr, "text" warnings; None leaves logging as it is.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = field(default=None, repr=False)
    store: str | os.PathLike[str] | None = field(default=None, repr=False)
    audit_log: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = field(default=None, repr=False)
    also_epsilons: tuple[float, ...] | None = None
    max_batch: int = 32
    max_wait_ms: float = 2.0
    queue: int = 256
    body_seconds: float = 10.0
    oldest_s: int = MOST_BEHIND_S
    idle_seconds: float = 10.0
    connections: int = 1024
    connections_per_address: int = 64
    metrics_token: str | None = field(default=None, repr=False)
    allow_origins: tuple[str, ...] = ()
    log: str | None = None
    shutdown_seconds: int = 30

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "connections", "connections_per_address"):
            checks.count(name, getattr(self, name), remedy="Leave it out for the default.")
        for name in ("oldest_s", "shutdown_seconds"):
            checks.count(name, getattr(self, name), at_least=0, remedy="It is a number of seconds.")
        checks.nonnegative("max_wait_ms", self.max_wait_ms, remedy="A few milliseconds are enough.")
        for name in ("body_seconds", "idle_seconds"):
            checks.positive(name, getattr(self, name), remedy="It is a number of seconds.")
        port = checks.count("port", self.port, at_least=0, remedy="Use 0 for a free one.")
        refuse_if(port >= 1 << 16, "port", "be below 65536", port, "Use 0 for a free one.")
        self._check_access()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("tls", "have a certificate and a key", "one of them", "Give both files.")
        for name, path in (("tls_cert", self.tls_cert), ("tls_key", self.tls_key)):
            if path is not None and not Path(path).is_file():
                raise InvalidInput(name, "be a file", path, "Give the path of a PEM file.")
        if self.tls_cert is not None:
            self._check_certificate(self.tls_cert)
        named = self.store if self.token is None else self.token
        missing = [what for what, given in (("a token", named), ("TLS", self.tls_cert)) if given is None]
        if not is_loopback(self.host) and missing:  # off loopback the network is hostile
            found = f"{self.host} without {' and '.join(missing)}"
            remedy = "Give --token-file, --tls-cert and --tls-key, or listen on 127.0.0.1."
            raise InvalidInput("host", "be loopback without a token and TLS", found, remedy)

    def _check_certificate(self, cert: str | os.PathLike[str]) -> None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, self.tls_key)
        except OSError as error:  # an SSLError is one
            found = getattr(error, "reason", None) or error.strerror or "no PEM"
            remedy = "Give a certificate and its key in PEM."
            raise InvalidInput("tls", "be a certificate and its key", found, remedy) from None

    def _check_access(self) -> None:
        for token in (self.token, self.metrics_token):
            if token is not None:
                check_token(token)
        if self.token is not None and self.token == self.metrics_token:
            raise InvalidInput("metrics_token", "differ from the users' token", "the same", "Draw another.")
        for origin in self.allow_origins:
            if _ORIGIN.fullmatch(origin) is None:
                remedy = "Write it as a browser sends it, without a path: https://app.example"
                raise InvalidInput("allow_origin", "be one exact origin", repr(origin), remedy)
        if self.log not in (None, "json", "text"):
            raise InvalidInput("log", "be json or text", repr(self.log), "Use text.")
