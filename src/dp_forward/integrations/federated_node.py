r"""Node of a federation: one user's records, released once and evaluated once per front, from an own ledger.

`answer` takes the request of a server and gives the reply, whatever carries them (`integrations.flower`).

What one held-out record spends. Its bit is b = 1 where the refined front decides for its label, and what
leaves is b with probability ``e^eps / (e^eps + 1)``, else 1 - b: K-ary response with K = 2. The release is
epsilon-LDP of the record, text and label together, whatever front is asked about. Proof: the front is fixed
before the coin is tossed, so b is a function of the record alone. For two records and either answer the
probabilities are ``e^eps / (e^eps + 1)`` or ``1 / (e^eps + 1)``: their ratio is at most e^eps. The front may
depend on all that was answered before (pure epsilons add up, adaptively), so a record that is both released
and held out is promised the sum, and that is what its ledger charges.

Guarantees:
    No byte that depends on a record leaves before its charge is on disk. Asked again, by whom or how often
    soever, and after a crash at any moment, a node sends the identical bytes and charges nothing.
    A server that wants other noise is refused before a text is used. No log, reply or error holds a text.
Edges:
    Numbers of records are public. A refusal says "mismatch" where it depends on the request alone; all others
    read "unavailable", since a register that knows a text may be the reason. The node's own log has the
    message, which holds no text either.
    A promise is per record: a node with many records of one person promises that person their sum.
Paper: not in it.
"""

import hmac
import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from safetensors.numpy import load

from dp_forward.corpus.writer import ledger_of, release_corpus
from dp_forward.data import EncodedTexts, read_texts
from dp_forward.data.own_data import task_of
from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.ledger import Cap, Ledger, State
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise import release_labels
from dp_forward.privacy import RECORD, KaryResponse, NoiseSpec, RandomizedResponse
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.upload import pack_release
from dp_forward.service.protocol.collection import CollectionSpec
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.split.artifacts import AskingSide, UserSide, save_user_side
from dp_forward.split.halves import ReadoutFront
from dp_forward.storage.files import make_secret, read_secret, write_file
from dp_forward.train.closed_form_training import read_rows

_log = logging.getLogger("dp_forward.flower")
_SERVER: Final = "flower"

Fields = dict[str, Any]
"""A request or a reply: strings, numbers and bytes, as Flower's ``ConfigRecord`` holds them."""


class Mismatch(DpForwardError):
    """A server that wants something else than this node allows; nothing of a text was used."""

    exit_code = 4


@dataclass(frozen=True, eq=False)
class Node:
    """One user's machine.

    Args:
        folder: where releases, their ledger and the refined front are kept, from one run to the next.
        user: the front that folds (``projection/front`` of `dpf split --fold`), from this node's own disk.
        records: what is released, with labels.
        held_out: other labelled records, on which the refined front is evaluated; None: it is not.
        evaluation_epsilon: the largest epsilon of one evaluation; by default that of the release.
        budget: what a record may spend in all, and the cap of the ledger; by default one release and one
            evaluation.
        register: of the owner's texts; by default the one of this machine's user.
    """

    folder: Path
    user: UserSide
    records: EncodedTexts
    held_out: EncodedTexts | None = None
    evaluation_epsilon: float | None = None
    budget: float | None = None
    register: Path | None = None

    @classmethod
    def read(
        cls, folder: Path, user: UserSide, *, records: Path, held_out: Path | None = None, **rest: Any
    ) -> Self:
        """A node whose records lie in files with the columns ``text`` and ``label``.

        Args:
            folder: as of a node, like ``user`` and the ``rest``.
            records: a file that `dpf release` would take.
            held_out: another one.
        """
        named = {"text_column": ["text"], "label_column": "label", "labels": user.spec.labels}

        def encode(path: Path) -> EncodedTexts:
            task = task_of({"task": "own", "data": {"own": str(path)}, "validation_share": 0.0, **named})
            return read_texts(task, "train", user.tokens)

        held = None if held_out is None else encode(held_out)
        return cls(folder, user, encode(records), held, **rest)

    @cached_property
    def collection(self) -> CollectionSpec:
        """What this node releases, by its own front; nothing of it is taken from a server."""
        return collection_of(self.user)

    @property
    def most_epsilon(self) -> float:
        """The largest epsilon of one evaluation."""
        return self.evaluation_epsilon or self.user.spec.required_noise().epsilon

    @property
    def cap(self) -> Cap:
        """What its ledger promises."""
        return Cap.pure(self.budget or self.user.spec.required_noise().epsilon + self.most_epsilon)

    @property
    def releases(self) -> Path:
        """The released corpus; its ledger lies beside it (`corpus.writer.ledger_of`)."""
        return self.folder / "releases"

    def keep_front(self) -> Path:
        """Write the refined front that this node got last, for `dpf ask`; returns its folder."""
        scores, side = self.folder / "scores.safetensors", self.user
        front, labels = _refine(side, scores.read_bytes()), side.spec.labels
        epsilon = side.spec.required_noise().epsilon
        noise = NoiseSpec(mechanism=KaryResponse.name, epsilon=epsilon, columns=len(labels))
        spec = ReleaseSpec.of(front, noise=noise, rows=side.spec.rows, labels=labels)
        save_user_side(front, spec, side.tokens.tokenizer, self.folder)
        return self.folder / "front"


def answer(node: Node, request: Mapping[str, Any]) -> Fields:
    """What a node replies to a server; see the module for what is promised.

    Args:
        node: whose records are asked about.
        request: ``ask`` is release, with a ``collection`` as JSON, or evaluate, with ``scores``, ``epsilon``.

    Returns:
        ``records`` (as they lie on the wire), ``right`` (a byte for each held-out record), or ``refused``.
    """
    try:
        if request.get("ask") == "release":
            return {"records": _release(node, request.get("collection"))}
        if request.get("ask") == "evaluate":
            return {"right": _evaluate(node, request.get("scores"), request.get("epsilon"))}
        raise Mismatch("The server asks for something else than a release or an evaluation.")
    except DpForwardError as error:
        _log.warning("a request was refused: %s", error)
        return {"refused": "mismatch" if isinstance(error, Mismatch) else "unavailable"}


def _release(node: Node, wanted: object) -> bytes:
    own, theirs = node.collection.as_dict(), None
    with suppress(ValueError, RecursionError):
        theirs = json.loads(wanted) if isinstance(wanted, str) else None
    if theirs != own:
        raise Mismatch("The server collects something else, such as other noise, than this node makes.")
    bits, budget = node.collection.manifest.release.bits, node.cap.epsilon
    how: dict[str, Any] = {"budget": budget, "register": node.register}
    release_corpus(node.user, node.records, node.releases, bits=bits, resume=True, **how)
    return pack_release(node.releases, node.collection, server=_SERVER, ledger=ledger_of(node.releases))


def _evaluate(node: Node, scores: object, epsilon: object) -> bytes:
    if not isinstance(epsilon, float) or not 0 < epsilon <= node.most_epsilon:
        raise Mismatch(f"The server wants less noise: this node allows epsilon {node.most_epsilon} at most.")
    if not isinstance(scores, bytes):
        raise Mismatch("The server sends no refined front.")
    front, held = _refine(node.user, scores), node.held_out
    if held is None or held.labels is None:
        raise InvalidInput("held_out", "be labelled records", "none", "Give this node some, to evaluate on.")
    response, ledger = RandomizedResponse(epsilon, 2), ledger_of(node.releases)
    ledger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = ledger.with_name("evaluation.secret")
    with suppress(FileExistsError):
        make_secret(path)
    secret = read_secret(path, remedy="Bring it back: it knows what was charged.")
    asked = f"{epsilon!r} {held.fingerprint()}\n".encode() + scores
    key = hmac.digest(secret, b"dp-forward/evaluation/1\0" + asked, "sha256")
    charge, name = response.charge(), "evaluation: k-ary-response per record"
    with TextRegister(node.register) as known, Ledger.open_or_create(ledger, cap=node.cap) as book:
        new, bounds = book.find(key) is None, {"ledger": str(ledger), "budget": node.cap.epsilon}
        known.charge(key, held.prints, charge, unit=str(RECORD), delta=0.0, **bounds)  # type: ignore[arg-type]
        try:
            entry = book.reserve(key, charge, mechanism=name, unit=RECORD)
        except DpForwardError:
            if new:
                known.withdraw(key)
            raise
        if entry.state is not State.RESERVED:
            return book.payload(entry.id)
        decided = KaryResponse(1.0, len(node.user.spec.labels)).decide(read_rows(front, held))
        right = release_labels((decided == held.labels).astype(np.int64), response)
        write_file(node.folder / "scores.safetensors", scores)
        return book.ready(entry.id, right.to_bytes())


def _refine(user: UserSide, scores: bytes) -> ReadoutFront:
    """The node's own front, ended in the scores [K, d'], [K] that a server learnt."""
    front, labels = user.front, len(user.spec.labels)
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(front, ReadoutFront) and len(scores) <= 4 * labels * (front.width + 1) + 4096:
        with suppress(Exception):  # the library raises anything
            found = load(scores)
            shapes = {name: value.shape for name, value in found.items() if value.dtype == np.float32}
        if shapes == {"weights": (labels, front.width), "biases": (labels,)}:
            parts = (torch.from_numpy(found[name]) for name in ("weights", "biases"))
            return front.with_scores(*parts).train(False)
    raise Mismatch("What the server sends as a refined front does not fit this node's own.")


def collection_of(side: AskingSide) -> CollectionSpec:
    """What is collected from everybody who has this front (``side``): its folded releases."""
    manifest = Manifest.of(side, side.digest, epsilons=())
    if not side.spec.folded or not math.isclose(manifest.delta, 0.0):
        rule = "fold text and label of a record into one pure release"
        raise InvalidInput("front", rule, "another", "Make it with dpf split --fold.")
    return CollectionSpec.of(manifest, "folded")
