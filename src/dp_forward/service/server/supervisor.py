"""Worker processes of a server on one listening socket: started, restarted, reloaded and stopped in order.

The supervisor forks and loads no model; each worker loads everything by itself. SIGHUP reads everything anew:
workers of the new state are started, and once all of them listen, the old ones are stopped.

Guarantees:
    No connection is lost between two workers: the socket stays open, and what one has not accepted, another
    does. A worker that stops answers what it has, with ``Connection: close``, before it ends. Where new
    workers do not come up, the old ones stay, and it is logged why. Workers end with a killed supervisor.
Edges:
    A worker that dies takes its connections along; a client sends the same bytes again. It is started again
    after a pause that grows to 30 s, and reads its files anew. Where none listens and five in a row do not
    come up, the supervisor gives up. A connection that was silent for a second may be closed by a reload at
    the moment of its next request, as HTTP allows; our clients send it again.
"""

import asyncio
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import uvicorn

from dp_forward.errors import DpForwardError
from dp_forward.optional_packages import name_extra
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.uvicorn_runner import DRAIN_S, drain, handled_signals, print_line

__all__ = ["Supervisor"]

_log = logging.getLogger("dp_forward.service")

_PAUSE_S, _LONGEST_PAUSE_S, _TRIES = 0.5, 30.0, 5
_KILL_AFTER_S: Final = 10.0  # after the time that a server has to stop; then a worker is killed
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)

Work = Callable[[socket.socket, Callable[[str], object], Callable[[uvicorn.Server], None]], None]
"""What a worker does, with `run_server`: the socket, what is called with its line, and with its server."""


@dataclass
class _Worker:
    pid: int
    pipe: int
    generation: int
    said: dict[str, Any] = field(default_factory=dict)  # its line when it listens, or its error

    def read(self) -> None:
        if not self.said:
            self.said = json.loads(os.read(self.pipe, 1 << 16) or b"{}")


class Supervisor:
    """Runs ``work`` in ``workers`` processes on ``listening``; after a signal ``stop_seconds`` at most."""

    def __init__(
        self, work: Work, listening: socket.socket, *, workers: int, stop_seconds: float, audit: AuditLog
    ) -> None:
        self._work, self._listening, self._count, self._audit = work, listening, workers, audit
        self._stop_seconds = stop_seconds + DRAIN_S + _KILL_AFTER_S
        self._workers: dict[int, _Worker] = {}
        self._serving, self._coming, self._newest = 0, 1, 1
        self._due: list[float] = []
        self._metrics = ""  # the folder of the workers' counters
        self._failures, self._signals = 0, set[int]()
        self._wake, self._alive = os.pipe(), os.pipe()

    def run(self, say: Callable[[str], object] = print_line) -> None:
        """Serve; ``say`` gets a worker's line once all listen. The error of a first that fails is raised."""
        with self._handled_signals(), TemporaryDirectory(prefix="dpf-metrics-") as self._metrics:
            try:
                self._start_worker(self._coming)
                while not {signal.SIGINT, signal.SIGTERM} & self._signals:
                    self._step(say)
            finally:
                self._stop()
                self._audit.write("stop")

    def _step(self, say: Callable[[str], object]) -> None:
        now = time.monotonic()
        for moment in [moment for moment in self._due if moment <= now]:
            self._due.remove(moment)
            self._start_worker(self._serving)
        pipes = {worker.pipe: worker for worker in self._workers.values() if not worker.said}
        wait = max(0.0, min(self._due, default=now + 60) - now)
        for ready in select.select([self._wake[0], *pipes], [], [], wait)[0]:
            pipes[ready].read() if ready in pipes else os.read(ready, 1 << 16)
        for worker in self._ended():
            self._replace(worker)
        coming = self._of(self._coming)
        if coming and all("address" in worker.said for worker in coming):
            for _ in range(self._count - len(coming)):  # the first one is well, so the others will be
                self._start_worker(self._coming)
            if len(coming) == self._count:
                self._promote(coming[0], say)
        if signal.SIGHUP in self._signals and not self._coming:
            self._signals.remove(signal.SIGHUP)
            self._newest = self._coming = self._newest + 1
            self._start_worker(self._coming)

    def _promote(self, first: _Worker, say: Callable[[str], object]) -> None:
        """The new workers serve; the old ones are told to stop."""
        old, self._serving, self._coming, self._due, self._failures = self._serving, self._coming, 0, [], 0
        self._audit.write("reload" if old else "start", workers=self._count)
        if old:
            self._signal([one for one in self._workers.values() if one.generation != self._serving])
        else:
            say(json.dumps(first.said))

    def _replace(self, worker: _Worker) -> None:
        error = DpForwardError(worker.said.get("error", "A worker ended before it listened."))
        error.exit_code = worker.said.get("code", 1)
        if worker.generation == self._coming:
            if not self._serving:
                raise error
            self._signal(self._of(self._coming))
            self._coming = 0
            self._audit.write("reload_failed")
            _log.error("the old workers stay, for a new one did not come up: %s", error)
        elif worker.generation == self._serving:
            self._failures = 0 if "address" in worker.said else self._failures + 1
            listen = any("address" in one.said for one in self._of(self._serving))
            if self._failures >= _TRIES and not listen:
                raise error
            pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(self._failures, 9))
            _log.error("a worker ended; another one starts in %g s", pause)
            self._due.append(time.monotonic() + pause)

    def _of(self, generation: int) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.generation == generation]

    def _ended(self) -> Iterator[_Worker]:
        for worker in list(self._workers.values()):
            if os.waitpid(worker.pid, os.WNOHANG)[0]:
                worker.read()
                os.close(worker.pipe)
                for file in Path(self._metrics).glob(f"gauge_live*_{worker.pid}.db"):
                    file.unlink()  # as prometheus_client's mark_process_dead does
                del self._workers[worker.pid]
                yield worker

    def _signal(self, workers: list[_Worker], number: int = signal.SIGTERM) -> None:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def _stop(self) -> None:
        self._listening.close()  # who comes now is refused at once, and does not wait for nobody
        self._signal([*self._workers.values()])
        until = time.monotonic() + self._stop_seconds
        while self._workers:
            list(self._ended())
            if time.monotonic() > until:
                self._signal([*self._workers.values()], signal.SIGKILL)
            time.sleep(0.02)

    def _start_worker(self, generation: int) -> None:
        told, tell = os.pipe()
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none comes before the child knows what to do
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(tell)
            self._workers[pid] = _Worker(pid, told, generation)
            return
        code = 1
        try:
            code = self._work_as_child(tell)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _work_as_child(self, tell: int) -> int:
        """Work until told to stop; the exit code."""
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:  # SIGINT and SIGHUP are the supervisor's, also from a terminal
            ours = number in (signal.SIGTERM, signal.SIGCHLD)
            signal.signal(number, signal.SIG_DFL if ours else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for descriptor in (*self._wake, self._alive[1], *(worker.pipe for worker in self._workers.values())):
            os.close(descriptor)
        if self._count > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = self._metrics  # it was not imported yet
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._count)))
        try:
            with name_extra(extra="serve"):
                self._work(self._listening, lambda line: os.write(tell, line.encode()), self._follow)
        except DpForwardError as error:
            os.write(tell, json.dumps({"error": str(error), "code": error.exit_code}).encode())
            return error.exit_code
        return 0

    def _follow(self, server: uvicorn.Server) -> None:
        """Let a worker's server stop in order by SIGTERM, or when the supervisor is gone."""
        loop, stopping = asyncio.get_running_loop(), list[asyncio.Task[None]]()

        def stop() -> None:
            loop.remove_reader(self._alive[0])
            if not stopping:
                stopping.append(loop.create_task(drain(server)))

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_reader(self._alive[0], stop)

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        os.set_blocking(self._wake[1], False)
        woken = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        try:
            with handled_signals(_SIGNALS, lambda number, _: self._signals.add(number)):
                yield
        finally:
            signal.set_wakeup_fd(woken)
            for descriptor in (*self._wake, *self._alive):
                os.close(descriptor)
            self._listening.close()
