"""A private Postgres server for tests: a cluster in a temporary folder, on a unix socket, for this process.

Its data need not survive a power cut (fsync is off): kills are tested, and those it survives.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_OTHERS: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
}


def find_program(name: str) -> str | None:
    """A program of Postgres: in PATH, or where Debian puts it."""
    return shutil.which(name) or next((str(at / name) for at in _OTHERS if (at / name).exists()), None)


def missing() -> str | None:
    """Why there is no server here, or None."""
    if find_program("initdb") is None or find_program("postgres") is None:
        return "no Postgres server is installed (Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (pip install 'psycopg[binary]')"
    return None


class PostgresServer:
    """A running server; `database` makes a new, empty database and gives its URL."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dpf-pg-"))
        self._numbers = itertools.count()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # Postgres refuses to run as root
            name = "postgres" if _exists("postgres") else "nobody"
            self._user = {"user": name, "extra_groups": []}
            shutil.chown(self.folder, name)
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "dpf", "--no-sync")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _run(self, program: str, *words: str) -> None:
        found = find_program(program)
        assert found is not None
        done = subprocess.run([found, *words], capture_output=True, text=True, check=False, **self._own())
        assert done.returncode == 0, done.stderr

    def _own(self) -> Mapping[str, Any]:
        return {"cwd": self.folder, "env": {**os.environ, "LC_ALL": "C"}, **self._user}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        program = find_program("postgres")
        assert program is not None
        words = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        words += ["-D", str(self.folder / "data"), "-k", str(self.folder)]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen([program, *words], stdout=log, stderr=log, **self._own())
        until = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def url(self, database: str, *, user: str = "dpf") -> str:
        """The URL of a database of this server."""
        return f"postgresql:///{database}?host={self.folder}&user={user}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"d{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """End it, and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _exists(user: str) -> bool:
    import pwd

    return any(entry.pw_name == user for entry in pwd.getpwall())
