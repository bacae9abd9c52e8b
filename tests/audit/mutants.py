"""Deliberately broken variants of the system, and the audit or check that must catch each of them.

A mutant is patched in at run time and gone afterwards; nothing in the product can be switched into it. Every
check is first run on the honest system, where it must find nothing.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.stats import binom

import tiny_models
import tiny_user
from audit.response_audit import audit_response
from audit.training_audit import audit_sanitizer, audit_training
from benchmarks.lattice_attack import gaussian_lattice, guess, worst_pair
from dp_forward.audit.draw_checks import audit_draws
from dp_forward.audit.findings import Finding, z_of
from dp_forward.audit.recording_proxy import RecordedClient, record_client
from dp_forward.audit.released_bytes import ReleasedAudit, audit_released
from dp_forward.audit.service_audit import audit_fronts, audit_service
from dp_forward.cli.serve import serve_locally
from dp_forward.data import tokens
from dp_forward.ledger import State
from dp_forward.noise import Sanitizer
from dp_forward.noise.released import released_label, released_privunit
from dp_forward.noise.released import released_matrix as released
from dp_forward.noise.simulated import sanitizer
from dp_forward.privacy import NoiseSpec, NormBound, RandomizedResponse
from dp_forward.service.client.client import Client
from dp_forward.service.protocol.frame import frame_of
from dp_forward.split import Split, halves, split_model
from dp_forward.split.artifacts import UserSide, load_user_side
from dp_forward.split.check import check_split
from dp_forward.split.private_model import join

GAUSSIAN = NoiseSpec(mechanism="matrix-gaussian", epsilon=8.0)
PRIVUNIT = NoiseSpec(mechanism="privunit", epsilon=8.0)
QUIET = NoiseSpec(mechanism="matrix-gaussian", epsilon=0.5)


@dataclass(frozen=True)
class World:
    """A tiny run on disk, its user, and its service with a tap between client and server."""

    user: UserSide
    wire: RecordedClient


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Written, served and tapped."""
    tiny_user.write_user(folder, noise=GAUSSIAN)
    user = load_user_side(folder / "front")
    with serve_locally(folder) as address, record_client(user, address) as wire:
        yield World(user, wire)


Check = Callable[[World], list[Finding]]
Broken = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """A broken variant, and the check that must see it."""

    name: str
    broken: Broken
    check: Check
    by: str


# The checks


def _all(audit: ReleasedAudit) -> list[Finding]:
    floor = audit.epsilon_refuting_bound
    claimed = audit.claimed_epsilon
    return [*audit.findings, Finding("epsilon floor", claimed, max(claimed, floor))]


@functools.cache
def released_by(choice: NoiseSpec, draws: int = 3000) -> Check:
    """The two-point audit; the mechanism is calibrated inside, where a mutant may have been at work."""
    return lambda _: _all(audit_released(choice.build(), draws=draws))


@functools.cache
def drawn_by(choice: NoiseSpec) -> Check:
    return lambda _: audit_draws(choice.build())


def fronts(world: World) -> list[Finding]:
    return audit_fronts(world.user)


def service(world: World) -> list[Finding]:
    frames, findings = audit_service(world.user, world.wire, draws=16)
    return [*findings, *([] if frames is None else _all(frames))]


def labels(_: World) -> list[Finding]:
    def sampler(truth: Any, rng: Any) -> Any:
        return released_label.release_labels(truth, claim).values

    claim = RandomizedResponse(2.0, 3)
    return [audit_response(claim, sampler, draws=8000, rng=np.random.default_rng(0))]


def low_bits(_: World) -> list[Finding]:
    mechanism = QUIET.build()
    pair = worst_pair(mechanism.sensitivity.bound, rows=32, width=64)
    found = guess(
        pair,
        lambda x: released.release(x, mechanism),
        gaussian_lattice(mechanism.sigma),
        attack="low bits",
        ceiling=mechanism.guess_rate(),
        trials=60,
        seed=1,
    )
    z = z_of(float(binom.sf(found.right - 1, found.trials, found.ceiling)))
    return [Finding("right guesses by the low bits", found.ceiling, found.success, z)]


def training(_: World) -> list[Finding]:
    pair = split_model(tiny_models.tiny("bert", blocks=2), "encoder.1")
    inputs = tiny_models.tiny_inputs("bert", batch=8, rows=9)
    module = join(pair, Sanitizer(GAUSSIAN.build()))
    return audit_training(module, {**inputs, "labels": torch.zeros(8, dtype=torch.long)})


def simulated(_: World) -> list[Finding]:
    return audit_sanitizer(Sanitizer(GAUSSIAN.build()))


def leaks(_: World) -> list[Finding]:
    model = tiny_models.tiny("bert", blocks=2)
    problems = check_split(_pair_at_attention(model), model).problems
    return [Finding("problems that the leak check found", 0.0, float(len(problems)))]


# What is broken


def _patch(owner: Any, name: str, new: Any) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(owner, name, new)


def sensitivity_c() -> contextlib.AbstractContextManager[Any]:
    """Two bounded matrices are said to lie C apart, not 2C: as in the authors' experiments."""
    honest = NormBound.reach
    return _patch(NormBound, "reach", lambda self, unit: honest(self, unit) / 2)


def less_noise(factor: float) -> Broken:
    honest = released.rounded_normal

    def quieter(shape: Any, *, scale: float, entropy: Any) -> Any:
        return honest(shape, scale=factor * scale, entropy=entropy)

    return lambda: _patch(released, "rounded_normal", quieter)


def reused() -> contextlib.AbstractContextManager[Any]:
    """Every release begins the same stream anew."""
    return _patch(released, "keystream", lambda: np.random.default_rng(7).bytes)


def seeded() -> contextlib.AbstractContextManager[Any]:
    """One stream for the process, from a seed: a fork carries a copy of it."""
    stream = np.random.default_rng(11).bytes
    return _patch(released, "keystream", lambda: stream)


def padding_kept() -> contextlib.AbstractContextManager[Any]:
    return _patch(torch.Tensor, "masked_fill", lambda rows, mask, value: rows)


@contextlib.contextmanager
def mask_in_header() -> Iterator[None]:
    """The number of tokens travels in the id of the request."""
    honest, lengths = Client._draw, []

    def drawn(self: Client, tokens: Any, terms: Any) -> Any:
        lengths.append(int(tokens["attention_mask"].sum()))
        return honest(self, tokens, terms)

    def frame(self: Client, given: Any) -> bytes:
        request = bytes([lengths[-1]]) + secrets.token_bytes(15)
        policy = self.policy
        return frame_of(
            given, cut=policy.release.cut, front=policy.release.front, request=request, time=int(time.time())
        )

    with _patch(Client, "_draw", drawn), _patch(Client, "_frame", frame):
        yield


def no_padding() -> contextlib.AbstractContextManager[Any]:
    """As long as the text is."""

    def encode(self: Any, texts: list[str], seconds: Any = None) -> Any:
        found = self.tokenizer(
            texts, seconds, truncation="longest_first", max_length=self.length, padding=True
        )
        return {name: np.asarray(values) for name, values in found.items()}, 0

    return _patch(tokens.FixedLength, "encode_arrays", encode)


def clipped_together() -> contextlib.AbstractContextManager[Any]:
    """The bound is held by the batch, not by each text."""
    honest = released.quantise

    def together(vectors: Any, *, bound: NormBound, step: float) -> Any:
        whole = honest(vectors.reshape(1, -1), bound=bound, step=step)
        return whole.reshape(vectors.shape)

    return _patch(released, "quantise", together)


def clipped_together_in_training() -> contextlib.AbstractContextManager[Any]:
    honest = sanitizer.apply_bound

    def together(hidden: Any, bound: NormBound) -> Any:
        return honest(hidden.reshape(1, -1, hidden.shape[-1]), bound).reshape(hidden.shape)

    return _patch(sanitizer, "apply_bound", together)


def nan_raised() -> contextlib.AbstractContextManager[Any]:
    honest = NormBound.apply

    def picky(self: NormBound, hidden: Any) -> Any:
        if np.isnan(hidden).any():
            raise ValueError("NaN")
        return honest(self, hidden)

    return _patch(NormBound, "apply", picky)


def skipped_when_recomputed() -> contextlib.AbstractContextManager[Any]:
    """No noise while a backward pass is under way."""
    honest = Sanitizer._noisy

    def noisy(self: Sanitizer, inside: Any) -> Any:
        return inside if torch._C._current_graph_task_id() != -1 else honest(self, inside)

    return _patch(Sanitizer, "_noisy", noisy)


def residual_beside_noise() -> contextlib.AbstractContextManager[Any]:
    """The hidden matrix is added once more, after the bound and the noise."""
    honest = released._draw_gaussian

    def draw(sigma: float, bound: Any, grid: Any, vectors: Any, entropy: Any) -> Any:
        return honest(sigma, bound, grid, vectors, entropy) + np.rint(vectors / grid.step).astype(np.int64)

    return _patch(released, "_draw_gaussian", draw)


def bound_left_out() -> contextlib.AbstractContextManager[Any]:
    """A hidden matrix of norm 3 goes in, and is released as it is."""
    honest = released.quantise

    def unbounded(vectors: Any, *, bound: NormBound, step: float) -> Any:
        return 3 * honest(vectors, bound=bound, step=step)

    return _patch(released, "quantise", unbounded)


_residual: list[torch.Tensor] = []


def _pair_at_attention(model: Any) -> Split:
    """The cut at which the residual is dropped."""
    front, back = split_model(model, "encoder.1.attention")
    return Split(front, back)


@contextlib.contextmanager
def residual_seen_by_the_back() -> Iterator[None]:
    """The front leaves its rows where the back adds them in: the residual, around the noise."""
    front, back = halves.Front.forward, halves.Back.forward

    def leaving(self: Any, *args: Any, **inputs: Any) -> Any:
        rows = front(self, *args, **inputs)
        _residual[:] = [rows.detach()]
        return rows

    def adding(self: Any, hidden: Any, labels: Any = None) -> Any:
        return back(self, hidden + _residual[0] if _residual else hidden, labels)

    with _patch(halves.Front, "forward", leaving), _patch(halves.Back, "forward", adding):
        yield
    _residual.clear()


@contextlib.contextmanager
def mask_seen_by_the_back() -> Iterator[None]:
    """The front leaves its mask where the back reads it: the length of the text, around the noise."""
    front, back = halves.Front.forward, halves.Back.forward
    masks: list[torch.Tensor] = []

    def leaving(self: Any, *args: Any, **inputs: Any) -> Any:
        masks[:] = [] if inputs.get("attention_mask") is None else [inputs["attention_mask"]]
        return front(self, *args, **inputs)

    def masking(self: Any, hidden: Any, labels: Any = None) -> Any:
        return back(self, hidden * masks[0].unsqueeze(-1) if masks else hidden, labels)

    with _patch(halves.Front, "forward", leaving), _patch(halves.Back, "forward", masking):
        yield


def wrong_p() -> contextlib.AbstractContextManager[Any]:
    honest = released_privunit.Law
    return _patch(released_privunit, "Law", lambda t, odds: honest(t, odds + 0.5))


def threshold_not_applied() -> contextlib.AbstractContextManager[Any]:
    """Outside the cap, s is drawn from the whole line: it lands in the cap more often than p."""
    honest = released_privunit._tail

    def tail(t: float) -> float:
        return 1.0 if t < 0 else honest(t)

    return _patch(released_privunit, "_tail", tail)


def kept_too_often() -> contextlib.AbstractContextManager[Any]:
    honest = released_label.coins

    def coins(size: int, *, log_odds: float, **more: Any) -> Any:
        return honest(size, log_odds=log_odds + 0.5, **more)

    return _patch(released_label, "coins", coins)


def floats() -> contextlib.AbstractContextManager[Any]:
    def release(hidden: Any, mechanism: Any, **_: Any) -> Any:
        x = torch.from_numpy(hidden)
        return (x + torch.normal(0.0, mechanism.sigma, x.shape)).numpy()

    return _patch(released, "release", release)


def drawn_again_for_nothing() -> contextlib.AbstractContextManager[Any]:
    """A text that is asked again gets a fresh draw under its old charge."""
    honest = Client._pay

    def pay(self: Client, tokens: Any, key: bytes, terms: Any) -> Any:
        frame, entry, charge = honest(self, tokens, key, terms)
        if entry.state is not State.RESERVED:
            frame = self._frame(self._draw(tokens, terms))
        return frame, entry, charge

    return _patch(Client, "_pay", pay)


AT_ONE = replace(PRIVUNIT, epsilon=1.0)

MUTANTS = (
    Mutant("sensitivity C instead of 2C", sensitivity_c, released_by(GAUSSIAN), "audit_released"),
    Mutant("half of sigma", less_noise(0.5), released_by(GAUSSIAN), "audit_released"),
    Mutant("0.9 sigma", less_noise(0.9), released_by(GAUSSIAN), "audit_released"),
    Mutant("noise reused", reused, released_by(GAUSSIAN, 400), "audit_released"),
    Mutant("seeded noise", seeded, drawn_by(PRIVUNIT), "audit_draws"),
    Mutant("rows of padding kept", padding_kept, fronts, "audit_fronts"),
    Mutant("mask sent in the header", mask_in_header, service, "audit_service"),
    Mutant("mask seen by the back", mask_seen_by_the_back, training, "audit_training"),
    Mutant("length leaked by shape", no_padding, fronts, "audit_fronts"),
    Mutant("clip across the batch", clipped_together, drawn_by(GAUSSIAN), "audit_draws"),
    Mutant("clip across the batch in training", clipped_together_in_training, simulated, "audit_sanitizer"),
    Mutant("NaN raised", nan_raised, drawn_by(PRIVUNIT), "audit_draws"),
    Mutant("noise skipped under checkpointing", skipped_when_recomputed, training, "audit_training"),
    Mutant("residual kept beside the noise", residual_beside_noise, released_by(GAUSSIAN), "audit_released"),
    Mutant("residual seen by the back", residual_seen_by_the_back, leaks, "check_split"),
    Mutant("bound left out", bound_left_out, released_by(GAUSSIAN), "audit_released"),
    Mutant("PrivUnit with the wrong p", wrong_p, released_by(PRIVUNIT), "audit_released"),
    Mutant("PrivUnit threshold not applied", threshold_not_applied, released_by(AT_ONE), "audit_released"),
    Mutant("labels kept too often", kept_too_often, labels, "audit_response"),
    Mutant("float release", floats, low_bits, "lattice"),
    Mutant("fresh draw on retry, not charged", drawn_again_for_nothing, service, "audit_service"),
)


@dataclass(frozen=True)
class Verdict:
    """What a check says of a mutant: which finding, and what it measured."""

    mutant: str
    by: str
    caught: bool
    finding: str
    also: tuple[str, ...]
    claimed: float
    measured: float
    z: float | None


def tried(mutant: Mutant, world: World) -> Verdict:
    """Run the mutant's check on the mutant."""
    with mutant.broken():
        found = mutant.check(world)
    worst = max(found, key=lambda one: (one.refuted, 99.0 if one.z is None else one.z))
    return Verdict(
        mutant=mutant.name,
        by=mutant.by,
        caught=worst.refuted,
        finding=worst.what,
        also=tuple(one.what for one in found if one.refuted and one is not worst),
        claimed=worst.claimed,
        measured=worst.measured,
        z=worst.z,
    )


def honest_findings(mutant: Mutant, world: World) -> list[str]:
    """What the same check holds against the honest system: nothing."""
    return [one.what for one in mutant.check(world) if one.refuted]
