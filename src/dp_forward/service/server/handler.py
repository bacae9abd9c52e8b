"""Handler of one frame: from its bytes to its answer.

In this order: length, format, manifest, time, replay, noise, queue, back. What is cheap to refuse is refused
first, and an id is remembered only for a frame that passed every check.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput
from dp_forward.service.protocol.frame import WireError, parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.batching import Batcher
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.noise_check import noise_check
from dp_forward.service.server.replay_cache import ReplayCache
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import ProviderSide

_log = logging.getLogger("dp_forward.service")


Noisy = tuple[NDArray[Any], float]
"""The integers of one frame, and what one step of them is."""


class BackRunner:
    """The back as a function from integers to probabilities; runs in the batcher's thread."""

    def __init__(self, provider: ProviderSide, manifest: Manifest) -> None:
        self._back = provider.back.eval()
        self._labels = manifest.release.labels
        weight = next(self._back.parameters(), None)
        self._device = torch.device("cpu") if weight is None else weight.device
        # A back that cannot answer is refused at the start, not at the first request.
        blank = np.zeros((manifest.release.matrix_rows, manifest.release.width), dtype=np.int8)
        found = self._logits([(blank, manifest.step)])
        if found is None or tuple(found.shape) != (1, len(self._labels)):
            shape = "none" if found is None else tuple(found.shape[1:])
            rule = f"answer with one number for each of the {len(self._labels)} labels"
            raise InvalidInput("back", rule, shape, "Serve the back of a classifier.")

    def __call__(self, batch: Sequence[Noisy]) -> list[NDArray[np.float64]]:
        """Probabilities of each request, in the order of the labels."""
        logits = self._logits(batch)
        if logits is None:
            raise RuntimeError("no logits")
        return list(torch.softmax(logits.double(), dim=-1).cpu().numpy())

    def _logits(self, batch: Sequence[Noisy]) -> torch.Tensor | None:
        noisy = np.empty((len(batch), *batch[0][0].shape), dtype=np.float32)
        for place, (values, step) in zip(noisy, batch, strict=True):
            np.multiply(values, np.float32(step), out=place)
        with torch.inference_mode():
            output = self._back(torch.from_numpy(noisy).to(self._device))
        found = getattr(output, "logits", None)
        return found if isinstance(found, torch.Tensor) else None


class Handler:
    """Answers frames for one back; see the module."""

    def __init__(self, provider: ProviderSide, *, front_digest: str, settings: ServerSettings) -> None:
        self._manifest = Manifest.of(provider, front_digest, epsilons=settings.also_epsilons)
        self.metrics = Metrics()
        self._seconds = self.metrics.add_histogram(
            "dpf_request_seconds",
            "Time from a whole frame to its answer.",
            (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
        )
        batch_sizes = self.metrics.add_histogram(
            "dpf_batch_size", "Requests that were computed together.", (1, 2, 4, 8, 16, 32, 64, 128)
        )
        self._settings = settings
        spec = self.manifest.release
        self._noise_checks = {
            offer.epsilon: noise_check(offer.mechanism, shape=spec.shape, step=offer.step, bits=spec.bits)
            for offer in self.manifest.offers
        }
        if not all(check.tells for check in self._noise_checks.values()):
            _log.warning("so few numbers cross that a client without noise may not be noticed")
        self._replays = ReplayCache(settings.remembered, most_bytes=settings.remembered_mib << 20)
        self.batcher: Batcher[Noisy, NDArray[np.float64]] = Batcher(
            BackRunner(provider, self.manifest),
            max_batch=settings.max_batch,
            max_wait_ms=settings.max_wait_ms,
            queue=settings.queue,
            on_batch=batch_sizes.observe,
        )
        self.metrics.add_gauge("dpf_queue", "Requests that wait.", lambda: self.batcher.waiting)

    @property
    def manifest(self) -> Manifest:
        """What this server asks for; it does not change."""
        return self._manifest

    async def answer(self, data: bytes) -> bytes:
        """The answer as JSON, which is counted, or `Refused`, which the app counts (`error_handlers`)."""
        began = time.perf_counter()
        try:
            outcome, answer = await self._answer(data)
        except WireError as error:
            raise Refused(error.code, error.message) from None
        self.metrics.outcomes[outcome] += 1
        self._seconds.observe(time.perf_counter() - began)
        return answer

    async def _answer(self, data: bytes) -> tuple[str, bytes]:
        if len(data) != self.manifest.frame_bytes:
            rule = f"A frame for this server has {self.manifest.frame_bytes} bytes, not {len(data)}"
            raise WireError("length", rule)
        frame = parse_frame(data)
        offer = self.manifest.offer_for(frame.header, refusal="This is not what the manifest asks for")
        age = time.time() - frame.header.time
        if not -self._settings.newest_s <= age <= self._settings.oldest_s:
            when = "ahead of" if age < 0 else "behind"
            raise WireError("time", f"The time of the frame lies too far {when} the server's")
        digest = hashlib.sha256(data).digest()
        known = self._replays.find(frame.header.request, digest=digest)
        if known is not None:
            return "resent", known if isinstance(known, bytes) else await asyncio.shield(known)
        self._noise_checks[offer.epsilon](frame.values)
        computed = self.batcher.submit((frame.values, offer.step))
        pending = asyncio.create_task(self._write(frame.header.request, computed))
        # A failure that nobody fetches (the client has gone) is not worth a warning.
        pending.add_done_callback(lambda end: end.cancelled() or end.exception())
        self._replays.begin(frame.header.request, digest=digest, pending=pending)
        # Shielded: whoever hangs up must not take the answer from the one who retries.
        return "ok", await asyncio.shield(pending)

    async def _write(self, request: bytes, computed: asyncio.Future[NDArray[np.float64]]) -> bytes:
        found = await computed
        if not np.all(np.isfinite(found)):
            raise Refused("back", "The back failed on this request.")
        labels = self.manifest.release.labels
        answer = {
            "label": labels[int(found.argmax())],
            "probabilities": dict(zip(labels, found.tolist(), strict=True)),
            "request": request.hex(),
        }
        return json.dumps(answer, allow_nan=False).encode()
