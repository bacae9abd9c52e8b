r"""The default at `output`: one folded release per record, and a classifier in closed form.

    public text ─► statistics ─┐
    label words ─► front ──────┴► projection ─► one release per record ─► mean ─► discriminant ─► RUN/front
                                  (RUN/projection, RUN/releases)

A record is released once, text and label under one pure epsilon (`noise.folded_record`). The discriminant
(`closed_form`) may be published, as a function of the releases: it ends the *refined front*, whose decision
is answered by K-ary response at the same epsilon when somebody asks.

Guarantees:
    The projection depends on public text, on the names and descriptions of the labels and on the number of
    records, never on a record. So what is promised per record rests on the release alone.
    Deterministic given the releases. A killed run draws and charges nothing again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.data import EncodedTexts, FixedLength
from dp_forward.data.own_data import task_from_labels
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import KaryResponse, NoiseSpec
from dp_forward.privacy.checks import count
from dp_forward.privacy.rounding import shown_up
from dp_forward.progress import Progress, counter
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split
from dp_forward.split.artifacts import UserSide, load_user_side, save_user_side
from dp_forward.split.device import pick_device
from dp_forward.split.front_statistics import NO_TEXT, fixed_statistics, rows_of, statistics_of_rows
from dp_forward.split.halves import AnswerBack, AnyFront, Front, ReadoutFront
from dp_forward.storage.files import draft_of
from dp_forward.train import closed_form
from dp_forward.train.closed_form import Floats, Labels
from dp_forward.train.defaults import effective_plan
from dp_forward.train.evaluation import length_batches
from dp_forward.train.inputs import cut_model, public_texts, read_splits
from dp_forward.train.lineage import NUMBERS, refuse_other_releases
from dp_forward.train.plan import Plan

__all__ = ["PROJECTION", "compare_noise", "outlook", "prepare_projection", "read_rows"]

PROJECTION: Final = "projection"
"""RUN/projection: the front that releases records, and what is known in its space beforehand."""
_BATCH: Final = 64
_READ_AT_ONCE: Final = 4096
_STEP: Final = 0.1  # of an answer word from the public mean, whose norm is near 1
_TENSORS: Final = ("origin", "matrix", "covariance", "hint", "trust")


def label_phrases(labels: Sequence[str], given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """What is said of each label: the given phrases, else its own words; empty where one has no words."""
    for label in given:
        rule, found = f"name one of {', '.join(labels[:20])}", repr(label[:40])
        refuse_if(label not in labels, "describe", rule, found, 'For example --describe refund="money back".')
    words = {label: label.replace("_", " ").replace("-", " ").strip() for label in labels}
    own = {label: (said,) if any(map(str.isalpha, said)) else () for label, said in words.items()}
    phrases = {label: tuple(given.get(label) or own[label]) for label in labels}
    return phrases if all(phrases.values()) else {}


def project_records(
    plan: Plan,
    front: AnyFront,
    tokens: FixedLength,
    *,
    records: int,
    public: EncodedTexts | None,
    progress: Progress | None = None,
) -> Projected:
    """The front that releases ``records`` records of a plan, and what is known in its space.

    From public text (labelled or not), of which the name is kept, or without (`fixed_statistics`).
    """
    labels, noise, hints = plan.find_task().labels, plan.release_noise, None
    assert isinstance(front, Front)
    assert noise is not None
    if public is None:
        statistics = fixed_statistics(front)
    else:
        rows = read_rows(front, public, counter(progress, "public text", len(public)))
        source = PurePath(plan.public or plan.public_task or "").name
        pieces = np.split(rows[:, None], range(_READ_AT_ONCE, len(rows), _READ_AT_ONCE))
        statistics = statistics_of_rows(map(torch.from_numpy, pieces), front, source=source)
        if public.labels is not None:
            hints = closed_form.Hints(rows.astype(np.float64), public.labels, labelled=True)
    if hints is None:
        phrases = label_phrases(labels, plan.describe)
        words = answer_words(front, tokens.tokenizer, phrases, statistics.mean)
        hints = words or _read_descriptions(front, tokens, phrases)
    most = len(statistics.variances)
    width = plan.width or closed_form.choose_width(records, noise_of(noise), labels=len(labels), most=most)
    projection = closed_form.make_projection(statistics, min(width, most), len(labels), hints)
    projecting = ReadoutFront(front, projection.width)
    with torch.no_grad():
        matrix = torch.from_numpy(projection.matrix.T.copy())
        projecting.project.weight.copy_(matrix)
        projecting.project.bias.copy_(-matrix @ torch.from_numpy(projection.origin))
    spec = ReleaseSpec.of(projecting, noise=noise, rows=tokens.length, labels=labels)
    return Projected(projecting.train(False), tokens, spec, projection)


def prepare_projection(
    model: str,
    labels: Sequence[str],
    *,
    records: int,
    public: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Projected:
    """The projection in which users will release about ``records`` records, made before there is any.

    Args:
        records: a guess. A wrong one costs accuracy (`closed_form.choose_width`), and no privacy.
        public: public text, as `data.public_text` names it; with these labels it teaches them.
        settings: others of the `Plan` that releases them: ``epsilon``, ``describe``, ``prompt``, ``rows``.
    """
    distinct, rule = len(set(labels)) == len(labels) > 1, "name two labels or more, each once"
    refuse_if(not distinct, "fold", rule, len(labels), "Try good,bad.")
    count("records", records, remedy="About how many records will be released in all.")
    task = task_from_labels(labels, fewest=1)
    plan = effective_plan(Plan.for_labels(task, public=public, model=model, **settings))
    pair, tokens, _ = cut_model(plan)
    texts = public_texts(plan, tokens, progress=progress)
    if texts is not None:
        texts.check_known(tokens.tokenizer)
        with TextRegister() as known:
            known.declare("public", texts.all_prints)
    return project_records(plan, pair.front, tokens, records=records, public=texts, progress=progress)


def _read_descriptions(
    front: Front, tokens: FixedLength, phrases: dict[str, tuple[str, ...]]
) -> closed_form.Hints | None:
    """The rows of what is said of the labels; None where nothing is."""
    if not phrases:
        return None
    texts = [phrase for said in phrases.values() for phrase in said]
    numbers = np.repeat(np.arange(len(phrases)), [len(said) for said in phrases.values()])
    encoded = (tokens.encode(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH))
    rows = [row[:, 0].double().cpu().numpy() for row in rows_of(front, encoded, pick_device())]
    return closed_form.Hints(np.concatenate(rows), numbers)


def answer_words(
    front: Front, tokenizer: Any, phrases: Mapping[str, Sequence[str]], mean: Floats
) -> closed_form.Hints | None:
    """Where a decoder's last row moves as each of these words becomes likelier to follow its prompt.

    The score of a word is the product of the row and the word's own vector, so it rises fastest along that
    vector (less the mean one): a small step from the public ``mean`` stands for the word.

    Edges:
        None without a prompt, where a phrase is not one token, and where the front does not hold the words'
        vectors (it does where they are those of the input). Descriptions are then read as texts.
    """
    tied = front.settings.get("tie_word_embeddings") and front.pooling == "last"
    if front.prompt is None or not tied or not phrases:
        return None
    blank = "" if front.prompt.endswith((" ", "{text}")) else " "
    words = [(number, blank + word) for number, said in enumerate(phrases.values()) for word in said]
    ids = tokenizer([word for _, word in words], add_special_tokens=False)["input_ids"]
    if any(len(one) != 1 for one in ids):
        return None
    table: torch.Tensor = front.model.get_input_embeddings().weight  # type: ignore[operator]
    vectors = table[[one[0] for one in ids]].detach().double().cpu().numpy()
    steps = closed_form.unit_rows(vectors - vectors.mean(axis=0))
    return closed_form.Hints(mean + _STEP * steps, np.array([number for number, _ in words]))


@dataclass(frozen=True, eq=False)
class Projected:
    """A front that releases directions, and what is known of the labels in their space."""

    front: ReadoutFront
    tokens: FixedLength
    spec: ReleaseSpec
    projection: closed_form.Projection

    @property
    def code(self) -> FoldedCode:
        """How text and label become one vector."""
        return FoldedCode(len(self.spec.labels), self.projection.width)

    @property
    def user(self) -> UserSide:
        """All that is needed to release a record; of a projection that was saved."""
        return UserSide(self.front, self.tokens, self.spec)

    def save(self, folder: Path) -> Projected:
        """Write the front and the numbers; returns the same with the digest of the front."""
        projection = self.projection
        known = ((name, getattr(projection, name)) for name in _TENSORS)
        tensors = {name: np.ascontiguousarray(value) for name, value in known if value is not None}
        folder.mkdir(parents=True, exist_ok=True)
        with draft_of(folder / NUMBERS) as draft:
            save_file(tensors, draft, metadata={"source": projection.source})
        digest = save_user_side(self.front, self.spec, self.tokens.tokenizer, folder)
        return replace(self, spec=replace(self.spec, front=digest))

    @classmethod
    def load(cls, folder: Path) -> Projected:
        user = load_user_side(folder / "front")
        try:
            with safe_open(folder / NUMBERS, framework="numpy") as file:
                numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                source = (file.metadata() or {}).get("source", "")
            mean, spread = numbers.pop("trust").tolist()
            found = closed_form.Projection(**numbers, trust=(mean, spread), source=source)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            rule, remedy = f"hold {NUMBERS}", "Name the folder of the projection."
            raise InvalidInput("model", rule, type(error).__name__, remedy) from None
        labels = len(user.spec.labels)
        if not isinstance(user.front, ReadoutFront) or user.spec.width != labels * (found.width + 1):
            raise InvalidInput("model", "be one projection", "parts of two", "Get it again.")
        return cls(user.front, user.tokens, user.spec, found)

    def expected_signal(self, records: int) -> float:
        """How far apart labels usually lie, over the noise of what the records will say of it."""
        variance = noise_of(self.spec.required_noise()) ** 2 / records
        return closed_form.expected_signal(variance, self.code, described=self.projection.hint is not None)

    def refine(
        self, corpus: ReleasedCorpus, *, query: NoiseSpec, other: tuple[Sequence[str], Labels] | None = None
    ) -> Refined:
        """Learn the decision from the releases, and end the front in it; ``query`` is how it is answered.

        ``other`` are other labels of the same records, which are public: names, and one for each record.
        """
        self.refuse_others(corpus)
        variance = noise_of(self.spec.required_noise()) ** 2
        if other is None:
            mean, labels = np.asarray(corpus.mean()[0]), self.spec.labels
            learnt = closed_form.fit(mean, variance / len(corpus), self.code, self.projection)
        else:
            labels, numbers = tuple(other[0]), other[1]
            means, counts = _mean_releases(corpus, numbers, len(labels))
            centres = np.stack([self.code.unfold(mean)[1] for mean in means])
            noise = self.code.variances(variance)[1]
            learnt = closed_form.fit_public_labels(centres, counts, noise, self.projection)
        answer = query.build()
        assert isinstance(answer, KaryResponse)
        front = self.front.with_scores(torch.from_numpy(learnt.weights), torch.from_numpy(learnt.biases))
        back = AnswerBack.of(torch.from_numpy(answer.transition()))
        spec = ReleaseSpec.of(front, noise=query, rows=self.spec.rows, labels=labels)
        return Refined(Split(front.train(False), back.train(False)), spec, learnt)

    def refuse_others(self, corpus: ReleasedCorpus) -> None:
        refuse_other_releases(corpus, [str(self.spec.front)], self.spec, "noise", "rows", "labels", "width")

    def prior(self) -> closed_form.Discriminant:
        """What is known before any record is."""
        return closed_form.fit(np.zeros(self.code.columns), math.inf, self.code, self.projection)


@dataclass(frozen=True, eq=False)
class Refined:
    """The halves that are asked: the front ends in a decision, the back reads a noisy answer."""

    pair: Split
    spec: ReleaseSpec
    learnt: closed_form.Discriminant

    def facts(self, projected: Projected) -> dict[str, Any]:
        return {
            "width": projected.projection.width,
            "public_text": projected.projection.source,
            "signal": self.learnt.signal,
            "shares": dict(zip(self.spec.labels, self.learnt.shares.tolist(), strict=True)),
        }


def noise_of(noise: NoiseSpec) -> float:
    """The noise per coordinate of one unbiased release."""
    sigma: float = noise.build().sigma  # type: ignore[attr-defined]
    return sigma


def _mean_releases(corpus: ReleasedCorpus, groups: Labels, kinds: int) -> tuple[Floats, Labels]:
    """The mean of the releases of each group of records, [kinds, columns], and its size; one pass."""
    total, counts = np.zeros((kinds, corpus.release.width)), np.bincount(groups, minlength=kinds)
    for start in range(0, len(corpus), _READ_AT_ONCE):
        span = range(start, min(start + _READ_AT_ONCE, len(corpus)))
        some = corpus.__getitems__(span)["hidden"][:, 0].double().numpy()
        np.add.at(total, groups[start : span.stop], some)
    return np.asarray(total / counts[:, None]), counts


@torch.inference_mode()
def read_rows(front: Front | ReadoutFront, texts: EncodedTexts, progress: Any = None) -> NDArray[np.float32]:
    """The row of each text, [texts, d]; texts of like length go together, which is quicker."""
    device = pick_device()
    front.to(device).train(False)
    found = np.empty((len(texts), front.width), dtype=np.float32)
    for chosen, batch in length_batches(texts, _BATCH, device, trim=True, progress=progress):
        batch.pop("labels", None)
        found[chosen] = front(**batch)[:, 0].float().cpu().numpy()
    return found


def outlook(projected: Projected, records: int) -> tuple[dict[str, Any], list[str]]:
    """What a release of so many records will cost and say; known before any of them is read."""
    noise, projection = projected.spec.required_noise(), projected.projection
    signal, epsilon = projected.expected_signal(records), noise.build().epsilon(noise.delta or 0.0)
    found = {
        "records": records,
        "labels": len(projected.spec.labels),
        "width": projection.width,
        "epsilon": epsilon,
        "expected_signal": signal,
        "public_text": projection.source,
    }
    enough = "That is likely enough: the records will say clearly what they have to say."
    if signal < 1.5:
        enough = (
            "That is not enough to say much: the descriptions of the labels will decide. More records, fewer "
            "labels or a larger epsilon help."
        )
    elif signal < 4:
        enough = "That is little: the records will improve on the descriptions where those are weak."
    sentences = [
        f"{records} records of {len(projected.spec.labels)} labels: epsilon {shown_up(epsilon)} for each, "
        "charged once, for text and label together.",
        f"Together they show a usual difference between labels {signal:.1f} times as large as the noise. "
        f"{enough}",
    ]
    if projection.hint is None:
        sentences += ["No label has words: --describe LABEL=PHRASE says what one means, and costs nothing."]
    if projection.source == NO_TEXT:
        sentences += [
            "There is no public text for this model: the directions are random, which costs several points. "
            "Name any public text with --public FILE."
        ]
    return found, sentences


def compare_noise(
    plan: Plan, folder: Path, *, gaussian_delta: float, progress: Progress | None = None, draws: int = 20
) -> dict[str, Any]:
    """Accuracy of the projection in ``folder`` without noise, and with Gaussian noise, on the plan's records.

    An experiment on the user's side, in which nothing is released: only the mean of the releases matters, and
    that of Gaussian ones is the mean of the records with noise of variance sigma^2 / N.
    """
    projected, answer = Projected.load(folder), None if plan.noise is None else plan.noise.build()
    train, evaluation = read_splits(plan, projected.tokens, progress=progress)
    assert isinstance(answer, KaryResponse)
    assert evaluation is not None
    truth, labels, code, step = evaluation.labels, train.labels, projected.code, 1024
    assert truth is not None
    assert labels is not None
    total = np.zeros(code.columns)
    rows = read_rows(projected.front, train, counter(progress, "comparing", len(train)))
    for start in range(0, len(train), step):
        total += code.fold(rows[start : start + step], labels[start : start + step]).sum(axis=0)
    mean, held = total / len(train), read_rows(projected.front, evaluation).astype(np.float64)
    gaussian = replace(projected.spec.required_noise(), mechanism="matrix-gaussian", delta=gaussian_delta)
    variance, rng = noise_of(gaussian) ** 2 / len(train), np.random.default_rng(plan.seed)

    def decide(noise: float) -> Labels:
        near = mean + math.sqrt(noise) * rng.standard_normal(code.columns) if noise else mean
        return closed_form.fit(near, noise, code, projected.projection).decide(held)

    noisy = [float(answer.transition()[decide(variance), truth].mean()) for _ in range(draws)]
    return {"without_noise": float((decide(0.0) == truth).mean()), "gaussian": float(np.mean(noisy))}
