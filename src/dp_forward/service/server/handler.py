"""Handler of one frame: from its bytes to its answer.

In this order: length, format, manifest, time, replay, noise, queue, quota, back. What is cheap to refuse is
refused first, and an id is remembered only for a frame that passed every check.

Guarantees:
    The same id with the same bytes gives the same answer again, or waits for the one that is being computed;
    the same id with other bytes is refused. At most 65,536 ids and 64 MiB of answers are kept; the oldest go
    first. With a `ReplayStore` it holds across processes.
Edges:
    An id that has been forgotten is as good as new. The same bytes then give the same answer, computed anew;
    other bytes are taken. A request that failed is forgotten at once, so that it can be tried again.
"""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import Gauge, Histogram

from dp_forward.errors import refuse_if
from dp_forward.service.protocol.frame import MOST_AHEAD_S, WireError, parse_frame
from dp_forward.service.protocol.manifest import Manifest, Offer
from dp_forward.service.server.batching import Batcher
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.noise_check import noise_check, warn_if_blind
from dp_forward.service.server.replay_store import ReplayStore
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Users
from dp_forward.split.artifacts import ProviderSide
from dp_forward.split.halves import AnswerBack

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_MOST_IDS, _MOST_ANSWER_BYTES = 1 << 16, 64 << 20  # remembered

Noisy = tuple[NDArray[Any], float]
"""The integers of one frame, and what one step of them is."""


class BackRunner:
    """The back as a function from integers to probabilities; runs in the batcher's thread."""

    def __init__(self, provider: ProviderSide, manifest: Manifest) -> None:
        self._back, labels = provider.back.eval(), manifest.release.labels
        weight = next(self._back.parameters(), None)
        self._device = torch.device("cpu") if weight is None else weight.device
        # A back that cannot answer is refused at the start, not at the first request.
        blank = np.zeros((manifest.release.matrix_rows, manifest.release.width), dtype=np.int8)
        found = getattr(self._output([(blank, manifest.step)]), "logits", None)
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else ()
        rule, gives = f"answer with one number for each of the {len(labels)} labels", shape[1:] or "none"
        refuse_if(shape != (1, len(labels)), "back", rule, gives, "Serve the back of a classifier.")

    def __call__(self, batch: Sequence[Noisy]) -> list[NDArray[np.float64]]:
        """Probabilities of each request, in the order of the labels."""
        return list(torch.softmax(self._output(batch).logits.double(), dim=-1).cpu().numpy())

    def _output(self, batch: Sequence[Noisy]) -> Any:
        noisy = np.empty((len(batch), *batch[0][0].shape), dtype=np.float32)
        for place, (values, step) in zip(noisy, batch, strict=True):
            np.multiply(values, np.float32(step), out=place)
        with torch.inference_mode():
            return self._back(torch.from_numpy(noisy).to(self._device))


class ReplayCache:
    """The last ids with the digest of their bytes and their answer, which may be to come; see the module."""

    def __init__(self, most: int) -> None:
        # Of a dict the first key is found by walking over all that were deleted before it.
        self._most, self._known = most, OrderedDict[bytes, tuple[bytes, asyncio.Future[bytes]]]()

    def find(self, request: bytes, *, digest: bytes) -> asyncio.Future[bytes] | None:
        """The answer to these bytes; None for a new id; `Refused` for other bytes."""
        known, answer = self._known.get(request, (digest, None))
        if known != digest:
            raise Refused("replayed", "This request id came with other bytes. Draw a new id.")
        # A loop that was closed left its future behind; then the answer is computed anew.
        lost = answer is not None and not answer.done() and answer.get_loop().is_closed()
        return None if lost else answer

    def begin(self, request: bytes, *, digest: bytes, pending: asyncio.Future[bytes]) -> None:
        """Remember that these bytes are being answered; the answer is kept unless it fails."""
        self._known.pop(request, None)
        self._known[request] = (digest, pending)

        def forget_failure(done: asyncio.Future[bytes]) -> None:
            failed = done.cancelled() or done.exception() is not None
            if failed and self._known.get(request, (b"", None))[1] is done:
                del self._known[request]

        pending.add_done_callback(forget_failure)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


class Handler:
    """Answers frames for one back; see the module."""

    def __init__(
        self,
        provider: ProviderSide,
        *,
        front_digest: str,
        settings: ServerSettings,
        users: Users,
        replays: ReplayStore | None = None,
    ) -> None:
        self.shared_replays = replays
        self._manifest = Manifest.of(provider, front_digest, epsilons=settings.also_epsilons)
        self.metrics = Metrics()
        page = self.metrics.registry
        what = "Time from a whole frame to its answer."
        self._seconds = Histogram("dpf_request_seconds", what, buckets=_SECONDS, registry=page)
        what = "Requests that were computed together."
        batch_sizes = Histogram("dpf_batch_size", what, buckets=_SIZES, registry=page)
        self._oldest_s, self._users = settings.oldest_s, users
        self._answers, self._replies_to = isinstance(provider.back, AnswerBack), provider.replies
        spec = self.manifest.release
        self._noise_checks = {
            offer.epsilon: noise_check(offer.mechanism, shape=spec.shape, step=offer.step, bits=spec.bits)
            for offer in self.manifest.offers
        }
        warn_if_blind(self._noise_checks.values())
        # No answer is longer: a probability has at most 24 letters.
        longest = len(json.dumps(spec.labels)) + 32 * (2 + len(spec.labels)) + max(map(len, spec.labels)) * 6
        longest += 6 * max(map(len, self._replies_to.values()), default=0)
        self._replays = ReplayCache(min(_MOST_IDS, 1 + _MOST_ANSWER_BYTES // longest))
        self.batcher = Batcher[Noisy, NDArray[np.float64]](
            BackRunner(provider, self.manifest),
            max_batch=settings.max_batch,
            max_wait_ms=settings.max_wait_ms,
            queue=settings.queue,
            on_batch=batch_sizes.observe,
        )
        self._queue = Gauge("dpf_queue", "Requests that wait.", registry=page, multiprocess_mode="livesum")

    @property
    def manifest(self) -> Manifest:
        """What this server asks for; it does not change."""
        return self._manifest

    async def answer(self, data: bytes, user: str | None = None, sender: str = "") -> bytes:
        """The answer as JSON, which is counted, or `Refused`, which the app counts (`error_handlers`).

        The quota is that of ``user``; noise is checked by ``sender`` (`sender_of`).
        """
        began = time.perf_counter()
        try:
            outcome, answer = await self._answer(data, user, sender)
        except WireError as error:
            raise Refused(error.code, error.message) from None
        finally:
            self._queue.set(self.batcher.waiting())
        self.metrics.outcomes[outcome] += 1
        self._seconds.observe(time.perf_counter() - began)
        return answer

    async def _answer(self, data: bytes, user: str | None, sender: str) -> tuple[str, bytes]:
        size = self.manifest.frame_bytes
        if len(data) != size:
            raise WireError("length", f"A frame for this server has {size} bytes, not {len(data)}")
        frame = parse_frame(data)
        offer = self.manifest.offer_for(frame.header, refusal="This is not what the manifest asks for")
        age = time.time() - frame.header.time
        if not -MOST_AHEAD_S <= age <= self._oldest_s:
            when = "ahead of" if age < 0 else "behind"
            raise WireError("time", f"The time of the frame lies too far {when} the server's")
        digest = hashlib.sha256(data).digest()
        known = self._replays.find(frame.header.request, digest=digest)
        if known is None and self.shared_replays is not None:
            answer = await asyncio.to_thread(self.shared_replays.read, frame.header.request, digest)
            if answer is not None:
                return "resent", answer
            known = self._replays.find(frame.header.request, digest=digest)  # begun here meanwhile
        if known is not None:
            return "resent", await asyncio.shield(known)
        self._noise_checks[offer.epsilon](frame.values, frame.header.request, sender)
        computed = self.batcher.submit((frame.values, offer.step))
        self._queue.set(self.batcher.waiting())
        pending = asyncio.create_task(self._write(frame.header.request, computed, user, digest, offer))
        # As in `Batcher.submit`.
        pending.add_done_callback(lambda end: end.cancelled() or end.exception())
        self._replays.begin(frame.header.request, digest=digest, pending=pending)
        # Shielded: whoever hangs up must not take the answer from the one who retries.
        return "ok", await asyncio.shield(pending)

    async def _write(
        self,
        request: bytes,
        computed: asyncio.Future[NDArray[np.float64]],
        user: str | None,
        digest: bytes,
        offer: Offer,
    ) -> bytes:
        try:  # the quota is charged while the back computes, and nothing is answered before it is
            async with self._users.counted(user, [digest]):
                found = await computed
                if not np.all(np.isfinite(found)):
                    raise Refused("back", "The back failed on this request.")
        finally:
            computed.cancel()
        if self._answers:  # its scores are epsilon apart: so they are at the epsilon that was asked for
            found = found ** (offer.epsilon / self.manifest.offers[0].epsilon)
            found /= found.sum()
        labels = self.manifest.release.labels
        label, probabilities = labels[int(found.argmax())], dict(zip(labels, found.tolist(), strict=True))
        answer = {"label": label, "probabilities": probabilities, "request": request.hex()}
        if label in self._replies_to:
            answer["reply"] = self._replies_to[label]
        data = json.dumps(answer, allow_nan=False).encode()
        if self.shared_replays is None:
            return data
        return await asyncio.to_thread(self.shared_replays.write, request, digest, data)
