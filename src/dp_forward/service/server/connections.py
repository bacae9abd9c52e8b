"""Connection limits of a server: who waits silently is closed, and who was refused is not read for a while.

A connection is *silent* while its client owes something (a whole request head, the rest of a body that was
refused, the reading of what was sent to it), and while its refusal is made to wait. Else it is answered.

Guarantees:
    A connection is silent for at most ``idle_seconds`` at a time, however it drips; the TLS handshake counts.
    At most ``connections`` are open, and a few more on which only health is answered; where one comes too
    many, the one that has been silent for the longest is closed. At most ``connections_per_address`` come
    from one address (IPv4, or a /64 of IPv6). Who was refused for load (`LoadShedding`) is not read for 1 s.
Edges:
    Each process counts for itself. Loopback has no limit per address: a proxy there speaks for everybody.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dp_forward.service.protocol.access import is_loopback, network_of

_FOR_HEALTH: Final = 32  # connections beyond the limit, on which only health is answered
_PAUSE_SECONDS: Final = 1.0


class Connections:
    """The open connections of a process; the silent ones in the order in which they fell silent."""

    def __init__(
        self, most: int, *, per_address: int, idle_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        self._most, self._per_address = most, per_address
        self.idle_seconds, self.tls = idle_seconds, tls
        self._open, self._of = dict[LimitedConnection, str | None](), Counter[str | None]()
        self._silent = dict[LimitedConnection, None]()

    @property
    def crowded(self) -> bool:
        """Whether only health is answered."""
        return len(self._open) > self._most

    def add(self, connection: LimitedConnection, address: str | None) -> bool:
        """Take a connection in, by closing a silent one where there is no room; False if none is silent."""
        if address is not None and self._of[address] >= self._per_address and not self._close_oldest(address):
            return False
        while len(self._open) >= self._most and self._close_oldest(None):
            pass
        if len(self._open) >= self._most + _FOR_HEALTH:
            return False
        self._open[connection] = address
        self._of[address] += 1
        return True

    def remove(self, connection: LimitedConnection) -> None:
        """Forget a connection; twice is harmless."""
        self._silent.pop(connection, None)
        if connection in self._open:
            address = self._open.pop(connection)
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]

    def mark(self, connection: LimitedConnection, *, silent: bool) -> None:
        """Note that a connection fell silent just now, or that it no longer is."""
        self._silent.pop(connection, None)
        if silent and connection in self._open:
            self._silent[connection] = None

    def _close_oldest(self, address: str | None) -> bool:
        oldest = next((one for one in self._silent if address in (None, self._open[one])), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.transport.abort()
        return True


class LimitedConnection(H11Protocol):
    """One HTTP connection under the limits of its `Connections`; TLS begins once it was counted."""

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._all = connections
        self.app_state = {**self.app_state, "connections": connections, "connection": self}
        self._owed: str | None = None
        self._timers = dict[str, asyncio.TimerHandle]()
        self._early, self._refused = b"", False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self._all.add(self, _address(transport)):
            transport.abort()
            return
        if self._all.tls is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._begin_tls(transport, self._all.tls))
        self._update()

    async def _begin_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        seconds = self._all.idle_seconds
        try:
            wrapped = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError:  # of the client's making; the transport is closed
            transport.abort()
            return
        if wrapped is not None:
            super().connection_made(wrapped)
            if self._early:
                self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Handle what came; a client may send its head together with the end of the handshake."""
        if self.flow is None:
            self._early += data
            return
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        """A client that does not read what was sent to it is silent, too."""
        super().pause_writing()
        self._start("writing")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Count as silent from now on: the answer to this request is a refusal that is made to wait."""
        self._all.mark(self, silent=True)

    def pause(self) -> None:
        """Be not read for a second after this answer: it is a refusal for load."""
        self._refused = True

    def _update(self) -> None:
        """Start the clock where the client owes something else than before."""
        if self.transport.is_closing():
            owed: str | None = "reading"
        elif self.conn.their_state is h11.IDLE:
            owed = "head"
        else:
            owed = "body" if self.conn.our_state is h11.DONE else None
        if owed == self._owed:
            return
        self._owed = owed
        self._all.mark(self, silent=owed is not None)
        self._stop("owed")
        if owed is not None:
            self._start("owed")
        if owed == "head" and self._refused:
            self._refused = False
            self.transport.pause_reading()
            self._timers["pause"] = self.loop.call_later(_PAUSE_SECONDS, self.transport.resume_reading)

    def _start(self, name: str) -> None:
        self._timers[name] = self.loop.call_later(self._all.idle_seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()


def _address(transport: asyncio.Transport) -> str | None:
    """The address that a limit counts for; None where there is no limit."""
    peer = transport.get_extra_info("peername")
    found = network_of(peer[0]) if isinstance(peer, tuple) else "localhost"  # a Unix socket
    return None if is_loopback(found) else found
