"""`dpf doctor`: versions, GPU, randomness, disk and ledger of an installation, in one screen."""

import operator
import os
import platform
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from scipy.special import chdtrc, ndtr
from typer import Option

import dp_forward
from dp_forward.cli import options, output
from dp_forward.errors import DpForwardError
from dp_forward.ledger import Cap, Charge, Ledger
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise.released import entropy
from dp_forward.noise.released.exact_normal import Entropy, rounded_normal

_EXTRAS: Final = ("client", "train", "serve", "postgres", "baseline", "demo", "llm")
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,]*\])?\s*([^;\s]*)(?:.*extra == ['\"](\w+))?")
_DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, under Windows
_DRAWS, _FALSE_ALARM = 4096, 1e-6  # of the noise, and how rarely a sound one is called wrong

Check = dict[str, str]
"""``check``, ``status`` (ok, warn, fail), ``found``, and a ``remedy`` that is empty where none is needed."""


def doctor(
    ledger: Annotated[Path | None, Option(help="Check this ledger [budget.ledger, if it is here].")] = None,
    json: options.Json = False,
) -> None:
    """Check this installation, its randomness, disk and ledger.

    Each line says ok, warn or fail, and what to do; the exit code is 1 if a check fails. The ledger is
    checked as by dpf ledger verify, and your register of texts too. Nothing is sent, and no text is shown.

    Example: dpf doctor
    """
    usual = Path("budget.ledger")
    asked = ledger or (usual if usual.exists() else None)
    checks = [*_versions(), _gpu(), *_randomness(), *_machine(), *_files(asked)]
    failed = sum(one["status"] == "fail" for one in checks)
    if json:
        output.print_json({"sound": not failed, "checks": checks})
    else:
        for one in checks:
            typer.echo("{status:<4}  {check:<14}  {found}. {remedy}".format_map(one).rstrip())
        typer.echo(f"{failed} of {len(checks)} checks failed." if failed else "No check failed.")
    if failed:
        raise typer.Exit(1)


def _line(check: str, good: object, found: str, remedy: str = "", *, otherwise: str = "fail") -> Check:
    status = "ok" if good else otherwise
    return {"check": check, "status": status, "found": found.rstrip("."), "remedy": "" if good else remedy}


def _versions() -> Iterator[Check]:
    """This package, what it needs, its extras, and the libraries that change most."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield _line("dp-forward", True, f"{dp_forward.__version__}, {system}")
    wanted: dict[str, dict[str, str]] = {extra: {} for extra in ("", *_EXTRAS)}
    try:
        for line in metadata.requires("dp-forward") or ():
            name, rule, extra = _REQUIREMENT.match(line).groups()  # type: ignore[union-attr]
            wanted.setdefault(extra or "", {})[name] = rule
    except metadata.PackageNotFoundError:
        found, remedy = "dp-forward is not installed as a package", "Install it with pip."
        yield _line("packages", False, found, remedy, otherwise="warn")
        return
    for extra in ("", *_EXTRAS):
        command = f"pip install -U 'dp-forward{f'[{extra}]' if extra else ''}'"
        versions = {name: _version(name) for name in wanted[extra]}
        missing = [name for name, version in versions.items() if version is None]
        rules = wanted[extra]
        wrong = [f"{n} {v} is not {rules[n]}" for n, v in versions.items() if not _fits(v, rules[n])]
        found = ", ".join(wrong) or "installed"
        if missing:
            found = f"not installed ({', '.join(missing[:3])}); to get it: {command}"
            wrong = [] if extra else missing  # nobody needs all extras
        otherwise = "warn" if extra else "fail"
        yield _line(f"extra {extra}" if extra else "packages", not wrong, found, command, otherwise=otherwise)
    for name, extra in {"torch": "train", "transformers": "train", "onnxruntime": "client"}.items():
        version, rule = _version(name), wanted[extra].get(name, "")
        fits = _fits(version, rule)
        found = f"{version}, {'within' if fits else 'outside'} the supported {rule}"
        if version is not None:
            yield _line(name, fits, found, f"pip install '{name}{rule}'", otherwise="warn")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str | None, rule: str) -> bool:
    """Whether a version, if any, meets a rule such as ``<6,>=5.10``; only numbers are compared."""

    def numbers(text: str) -> list[int]:
        return [*map(int, re.findall(r"\d+", text.partition("+")[0])), 0, 0][:3]

    compare = {">=": operator.ge, "==": operator.eq, "<": operator.lt}
    parts = re.findall(r"(>=|==|<)([\d.]+)", rule)
    return version is None or all(compare[how](numbers(version), numbers(other)) for how, other in parts)


def _gpu() -> Check:
    """Whether torch finds a GPU; it is imported only where there may be one."""
    version = _version("torch")
    if version is None:
        return _line("GPU", True, "not needed without torch")
    if "+cpu" in version or (sys.platform == "linux" and not any(map(os.path.exists, _DEVICES))):
        return _line("GPU", True, "none; torch uses the CPU")
    try:
        import torch
    except (ImportError, OSError):
        return _line("GPU", False, "torch is installed and cannot be imported", "Install torch anew.")
    if torch.cuda.is_available():
        return _line("GPU", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    remedy = "For a GPU, install its driver and a torch that is built for it."
    return _line("GPU", False, "torch cannot use one", remedy, otherwise="warn")


def _randomness() -> Iterator[Check]:
    """What every release rests on: entropy of the system, the cipher, and noise of the right shape."""
    remedy = "Release nothing on this machine."
    try:
        ready = not hasattr(os, "getrandom") or len(os.getrandom(32, os.GRND_NONBLOCK)) == 32
    except OSError:
        ready = False
    found = f"the system's random numbers are {'' if ready else 'not '}ready"
    yield _line("entropy", ready, found, "Wait a little after the start of the machine.")
    right = entropy.cipher_is_right()
    yield _line("keystream", right, f"AES-256 is {'as' if right else 'not as'} in NIST's test vector", remedy)
    p = noise_p_value(entropy.keystream())
    found = f"{_DRAWS} exact draws, chi-square p = {p:.2g}; below {_FALSE_ALARM} is wrong"
    yield _line("noise", p >= _FALSE_ALARM, found, remedy)


def noise_p_value(source: Entropy) -> float:
    """How likely rounded Gaussians from ``source`` are to fit N(0, 1) this badly, by a chi-square test."""
    edges = np.array([-np.inf, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf])
    expected = _DRAWS * np.diff(ndtr(edges))
    seen = np.histogram(rounded_normal(_DRAWS, scale=1.0, entropy=source), edges)[0]
    return float(chdtrc(len(expected) - 1, ((seen - expected) ** 2 / expected).sum()))


def _machine() -> Iterator[Check]:
    """Threads, the clock, and the disk of the register: a ledger is made, charged, synced and read back."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS", "unset")
    yield _line("threads", True, f"{cores} cores, OMP_NUM_THREADS {limit}")
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    yield _line("clock", "2025" <= now < "2100", now, "Set it: servers refuse releases with a wrong time.")
    folder = TextRegister.usual_path().parent
    place, begun = next(at for at in (folder, *folder.parents) if at.exists()), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".dpf-doctor-") as draft:
            with Ledger.create(Path(draft) / "ledger", cap=Cap.pure(1.0)) as book:
                book.reserve(bytes(16), Charge.pure(0.5))
            with Ledger.open(Path(draft) / "ledger") as book:
                book.verify()
        milliseconds = 1000 * (time.perf_counter() - begun)
        took = f"{milliseconds:.0f} ms with SQLite {sqlite3.sqlite_version}"
        yield _line("disk", True, f"{place}: a ledger was written, synced and read in {took}")
        free = shutil.disk_usage(place).free
        yield _line("free space", free >= 1 << 30, f"{free >> 30} GiB", "Make room.", otherwise="warn")
    except (OSError, DpForwardError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        found = f"{place} cannot hold a ledger: {reason}"
        yield _line("disk", False, found, "Set DPF_HOME to another folder.")


def _files(ledger: Path | None) -> Iterator[Check]:
    """The owner's register of texts and a ledger, as far as they are there."""
    found = "none yet; a release makes it"
    try:
        if TextRegister.usual_path().exists():
            with TextRegister() as known:
                known.verify()
            found = "sound"
        yield _line("register", True, found)
    except DpForwardError as error:
        yield _line("register", False, str(error))
    if ledger is None:
        yield _line("ledger", True, "none here; name one with --ledger")
        return
    try:
        with Ledger.open(ledger) as book:
            book.verify()
            yield _line("ledger", True, f"{ledger} is sound, with {book.releases} releases")
    except DpForwardError as error:
        yield _line("ledger", False, f"{ledger}: {error}", "Bring back a copy, or name another.")
