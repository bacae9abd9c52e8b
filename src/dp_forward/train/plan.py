"""The plans of a training run: everything that decides its result, in one frozen object.

`Plan` is the run of somebody who has texts (`dpf finetune`); `ReleasesPlan` that of a provider who has only
releases (`dpf finetune --from-releases`). What is left out is chosen by `defaults` before anything runs; that
*effective* plan is printed first, stored in the run, and its digest is what `--resume` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import NoiseSpec, checks
from dp_forward.privacy.noise_spec import DEFAULT_DELTA
from dp_forward.train.plan_base import (
    COUNT,
    COUNT_OR_ZERO,
    NONNEGATIVE,
    POSITIVE,
    PlanBase,
    TaskSettings,
    check_share,
    choice_of,
    setting,
)
from dp_forward.train.regimes import Regime

if TYPE_CHECKING:  # loads torch, which `--help` does without
    from dp_forward.data import Task

__all__ = ["Plan", "ReleasesPlan"]

Precision = Literal["auto", "fp32", "bf16"]

_PRECISION = choice_of(*get_args(Precision), remedy="Use auto.")
Schedule = Literal["linear", "constant"]
_SCHEDULE = choice_of(*get_args(Schedule), remedy="Use linear.")
_LABELS = choice_of("folded", "public", remedy="Or randomize them: --label-epsilon.")
_BACK = choice_of("closed-form", "gradient", remedy="Leave it out for the rule.")
_HEAD_RATE_HELP = "Learning rate of what starts from random weights: head, maps, auxiliary head."
_RETIRED: Mapping[str, object] = {"average": 0.0, "lora_rank": 0}
_WITHOUT_NOISE = ("epsilon", "delta", "threshold_share", "training_epsilon", "training_threshold_share")
FRONT_SETTINGS: Mapping[str, object] = {
    "draws": 1,
    "warm_up_epochs": 0,
    "auxiliary_weight": 0,
    "auxiliary_alone": False,
    **dict.fromkeys(("training_epsilon", "training_threshold_share")),
}
"""What belongs to a front that trains, each with the value that means nothing is done."""


@dataclass(frozen=True, kw_only=True)
class Plan(TaskSettings):
    """What to train, on what, through which noise. None means: by the rule of `defaults`.

    The task's own training: ``epochs``, ``batch``, ``learning_rate``. In `end-to-end` that is the training
    through the noise; in the other regimes, the training of the back from the stored releases. The public
    step of `public-front` has its own: ``public_task``, ``public_epochs``, ``public_learning_rate``.
    ``draws``, ``warm_up_epochs`` and ``auxiliary_weight`` belong to whatever step trains the front.
    """

    retired: ClassVar[Mapping[str, Any]] = {**_RETIRED, "early_stopping": 0}
    model: str = setting("minilm", "A folder or name, a GGUF file, minilm, smollm2, or a run.", "usual")
    cut: str | None = setting(None, "Where to cut: see dpf cuts MODEL [output].", "usual")
    regime: Regime = setting(Regime.RELEASE_ONCE, "release-once, public-front or end-to-end.", "usual")
    mechanism: str = setting("privunit", "Which noise, as matrix-gaussian; or none.", "usual", short="-m")
    epsilon: float | None = setting(None, "The budget of a text; there is no default.", "usual", short="-e")
    delta: float | None = setting(None, "Delta [1e-5 for Gaussian noise, else 0].", "usual", short="-d")
    unit: str = setting("text", "What is protected: text, token or phrase:c.", "advanced")
    norm: float | None = setting(None, "C, the norm bound [1, or 8 at embeddings].", "advanced", POSITIVE)
    threshold_share: float | None = setting(None, "PrivUnit's t as a share of t* [by rule].", "advanced")
    training_epsilon: float | None = setting(None, "While the front trains, if not that of the release.")
    training_threshold_share: float | None = setting(None, "As threshold_share, while the front trains.")
    rows: int | None = setting(None, "n, the tokens read of every text [64 at output].", "advanced", COUNT)
    width: int | None = setting(None, "d', columns that cross; 0: all [by rule].", "advanced", COUNT_OR_ZERO)
    label_privacy: str | None = setting(
        None,
        "folded (under one epsilon) or public [folded if it can be].",
        "usual",
        _LABELS,
        switch="--labels",
    )
    describe: Mapping[str, Any] = setting(dict, "What a label means; repeatable [its name].", "usual")
    back: str | None = setting(
        None, "How it is trained: closed-form or gradient [closed-form for folded labels].", "advanced", _BACK
    )
    pooling: str | None = setting(
        None, "At `output`: mean, mean2 (of two blocks), cls, pooler or last [by the model].", "advanced"
    )
    prompt: str | None = setting(None, "For a decoder: a public template with {text} in it.", "usual")
    blocks: int | None = setting(None, "Use so many blocks of the model only [all].", "advanced", COUNT)
    label_epsilon: float | None = setting(None, "Randomize labels with this own budget.", "usual", POSITIVE)
    label_prior: tuple[float, ...] | None = setting(None, "Their public prior: 0.5,0.5.", "advanced")
    epochs: float | None = setting(None, "Epochs on the task [by rule].", "usual", POSITIVE)
    batch: int | None = setting(None, "Texts per step [by rule].", "advanced", COUNT)
    learning_rate: float | None = setting(None, "Learning rate on the task [by rule].", "advanced", POSITIVE)
    head_learning_rate: float | None = setting(None, _HEAD_RATE_HELP, check=POSITIVE)
    weight_decay: float = setting(0.01, "AdamW's weight decay.", check=NONNEGATIVE)
    schedule: Schedule = setting("linear", "Learning rates: linear (to 0) or constant.", check=_SCHEDULE)
    draws: int | None = setting(None, "Noisy matrices per text, where the front trains.", "advanced", COUNT)
    warm_up_epochs: float | None = setting(
        None, "Epochs without noise, bound or maps first, where the front trains.", "advanced", NONNEGATIVE
    )
    auxiliary_weight: float | None = setting(
        None, "Weight of a label loss at the cut, where the front trains.", "advanced", NONNEGATIVE
    )
    auxiliary_alone: bool | None = setting(None, "Whether the front learns from the auxiliary loss only.")
    public: str | None = setting(None, "Public text (public-front: labelled): file, folder, hf:NAME.", "data")
    public_task: str | None = setting(None, "A built-in task as public text, such as imdb.", "data")
    public_epochs: float | None = setting(None, "Epochs on the public data [by rule].", "advanced", POSITIVE)
    public_batch: int | None = setting(None, "Public texts per step.", check=COUNT)
    public_learning_rate: float | None = setting(None, "Of the public step.", check=POSITIVE)
    public_head_learning_rate: float | None = setting(None, _HEAD_RATE_HELP, check=POSITIVE)
    public_limit: int | None = setting(None, "Use a sample of so many public texts.", "advanced", COUNT)
    public_relabel: bool | None = setting(
        None, "Train first on the public labels without noise, then through it on what that model says."
    )
    public_words: int | None = setting(
        None, "Cut public texts into pieces of so many words; 0: keep them whole.", "advanced", COUNT_OR_ZERO
    )
    train_limit: int | None = setting(None, "Train on a sample of so many texts.", "data", COUNT)
    evaluation_limit: int | None = setting(None, "Measure on a sample of so many texts.", "advanced", COUNT)
    evaluation_draws: int = setting(10, "Draws of the noise per text.", "advanced", COUNT)
    precision: Precision = setting("auto", "Numbers in training: auto, fp32 or bf16.", "advanced", _PRECISION)

    def __post_init__(self) -> None:
        # Not above: both packages load torch, which `--help` does without.
        from dp_forward.data import find_task
        from dp_forward.data.sources import absolute_source
        from dp_forward.data.tokens import check_prompt
        from dp_forward.split.cut import parse_cut

        rule, remedy = f"be one of {', '.join(Regime)}", "release-once is the default."
        refuse_if(self.regime not in list(Regime), "regime", rule, repr(self.regime), remedy)
        object.__setattr__(self, "regime", Regime(self.regime))
        if self.public_task is not None:
            object.__setattr__(self, "public_task", find_task(self.public_task, setting="public_task").name)
        if self.public is not None:
            object.__setattr__(self, "public", absolute_source(self.public))
        if self.label_prior is not None:
            object.__setattr__(self, "label_prior", tuple(self.label_prior))
        said = {k: [v] if isinstance(v, str) else list(map(str, v)) for k, v in self.describe.items()}
        object.__setattr__(self, "describe", said)
        if self.cut is not None:
            parse_cut(self.cut)
        if self.prompt is not None:
            check_prompt(self.prompt)
        remedy = "There is no default for a promise; try --epsilon 8."
        refuse_if(self.mechanism != "none" and self.epsilon is None, "epsilon", "be given", None, remedy)
        for name in _WITHOUT_NOISE if self.mechanism == "none" else ():
            given = getattr(self, name)
            refuse_if(given is not None, name, "be left out without noise", given, "Drop it.")
        super().__post_init__()
        _ = self.training_noise  # makes the choice, which refuses what means nothing
        alone = self.label_epsilon is None and self.label_prior is not None
        refuse_if(alone, "label_prior", "go with label_epsilon", "alone", "Give label_epsilon=2.")
        for name, broken, rule, remedy in self._rules():
            refuse_if(broken, name, rule, getattr(self, name), remedy)

    @classmethod
    def for_labels(cls, task: Task, **settings: Any) -> Self:
        """The plan of folded records that lie in no file, with nothing to measure on."""
        from dp_forward.data.sources import IN_MEMORY

        settings |= {"text_column": task.text_fields, "label_column": task.label_field, "labels": task.labels}
        settings |= {"validation_share": 0.0, "evaluation_split": "", "back": "closed-form"}
        return cls(task=task.name, data={task.name: f"{IN_MEMORY}{task.name}"}, **settings)

    @property
    def noise(self) -> NoiseSpec | None:
        """The choice of noise; None for the undefended model."""
        if self.mechanism == "none":
            return None
        assert self.epsilon is not None
        if self.back == "closed-form":
            kinds = self.labels or self.find_task().labels
            return NoiseSpec(mechanism="k-ary-response", epsilon=self.epsilon, columns=len(kinds))
        same: Any = {name: getattr(self, name) for name in ("delta", "unit", "threshold_share", "rows")}
        norm, columns = self.norm or 1.0, self.width or None
        return NoiseSpec(mechanism=self.mechanism, epsilon=self.epsilon, norm=norm, columns=columns, **same)

    @property
    def release_noise(self) -> NoiseSpec | None:
        """The noise on a training record: that of a query, but where text and label are folded."""
        if self.back != "closed-form" or self.epsilon is None:
            return self.noise
        return NoiseSpec(mechanism=self.mechanism, epsilon=self.epsilon, delta=self.delta, unit="record")

    @property
    def training_noise(self) -> NoiseSpec | None:
        """The noise while the front trains: the released one, but for what the plan says."""
        noise = self.noise
        if noise is None or not self.regime.trains_front or self.back == "closed-form":
            return noise
        changes = {"epsilon": self.training_epsilon, "threshold_share": self.training_threshold_share}
        given: Any = {name: value for name, value in changes.items() if value is not None}
        return replace(noise, **given)

    def deciding(self) -> dict[str, Any]:
        """As of every plan; with the values that stored plans had, where a setting came or went since."""
        found = super().deciding()
        if self.back == "closed-form":
            found["average"] = None
        idle = (("schedule", "linear"), ("prompt", None), ("blocks", None))
        return {name: value for name, value in found.items() if (name, value) not in idle}

    def _rules(self) -> Iterator[tuple[str, bool, str, str]]:
        """(setting, whether it is broken, rule, remedy): what cannot go together is refused, not ignored."""
        from dp_forward.data.tasks import split_name

        yield from self._closed_form_rules()
        undefended = self.mechanism == "none" and self.regime is not Regime.END_TO_END
        yield "regime", undefended, "be end-to-end without noise", "Nothing is released: --regime end-to-end."
        remedy = "The front is frozen there and sees no private text without noise."
        for name, idle in FRONT_SETTINGS.items():
            given = not self.regime.trains_front and getattr(self, name) not in (None, idle)
            yield name, given, f"be left out in {self.regime}", remedy
        # What is read as it is must not be what is protected.
        private = self.regime.protects_training or self.label_epsilon is not None
        rule = "be another than train where training records are protected"
        remedy = "What is measured on is read as it is: name a public split."
        split = self.evaluation_split and split_name(self.evaluation_split)
        yield "evaluation_split", private and split == "train", rule, remedy
        idle = not split and self.back == "gradient"
        yield "evaluation_split", idle, "be given where a back trains by gradients", "Use validation."
        same = self.public is not None and self.public == self.data.get(self.task)
        yield "public", same, "differ from the task's data", "Those texts are the private ones."
        idle = self.public is not None and self.regime is Regime.END_TO_END
        yield "public", idle, "be left out in end-to-end", "The front trains on the task's own texts."
        if self.regime is Regime.PUBLIC_FRONT:
            remedy = "Name public data with labels: --public FILE, or --public-task imdb."
            missing = self.public_task is None and self.public is None
            yield "public", missing, "be given in public-front", remedy
            both = self.public_task is not None and self.public is not None
            yield "public", both, "go without public_task", "One of them trains the front."
            remedy = "The task's texts are the private ones."
            yield "public_task", self.public_task == self.task, "differ from the task", remedy
            return
        # Public texts also say where the records of a folded release lie.
        known = {"public_task", "public_limit", "public_words"} if self.back != "gradient" else set()
        for item in fields(self):
            given = item.name.startswith("public_") and getattr(self, item.name) is not None
            given &= item.name not in known and (self.public is None or item.name != "public_limit")
            yield item.name, given, "go with public-front", "Use --regime public-front."

    def _closed_form_rules(self) -> Iterator[tuple[str, bool, str, str]]:
        """What the folded release needs, and what it has no use for."""
        folded, closed = self.label_privacy == "folded", self.back == "closed-form"
        remedy = "One epsilon covers text and label."
        yield "label_epsilon", folded and self.label_epsilon is not None, "go without --labels folded", remedy
        remedy = "Text and label are folded for it."
        yield "back", closed and self.label_privacy == "public", "be gradient for public labels", remedy
        yield "label_privacy", folded and self.back == "gradient", "be public with --back gradient", remedy
        if not closed and not folded:
            return
        yield "regime", not self.regime.protects_training, "release records once", "Use release-once."
        elsewhere = self.cut is not None and self.cut != "output"
        yield "cut", elsewhere, "be output for a folded release", "Inside the model labels are public."
        noises = ("privunit", "matrix-gaussian", "gaussian")
        rule = f"be {' or '.join(noises)} for a folded release"
        yield "mechanism", self.mechanism not in noises, rule, "privunit needs the least noise."
        yield "unit", self.unit != "text", "be text where labels are folded", "The whole record is protected."
        for name in ("threshold_share", "label_prior"):
            given = getattr(self, name) is not None
            yield name, given, "be left out for a folded release", "It has the least noise already."


@dataclass(frozen=True, kw_only=True)
class ReleasesPlan(PlanBase):
    """How a provider trains a back on a released corpus. None means: by the rule of `defaults`.

    What concerns texts (task, cut, noise, budget, regime) was decided when they were released, and is read
    from the corpus. A plan that says it again could only contradict it, so it is refused.
    """

    retired: ClassVar[Mapping[str, Any]] = {**_RETIRED, "weight_decay": 0.01}
    releases: str = setting(
        help="The folder of a released corpus, or of a collection.", decides=False, missing="Name a folder."
    )
    model: str = setting(help="Where the back starts: a run, a result of dpf split, a back.", decides=False)
    other_labels: str | None = setting(
        None, "Of folded records: a file of other labels of theirs, public, a line for each.", decides=False
    )
    epochs: float | None = setting(None, "Epochs on the releases.", check=POSITIVE)
    batch: int | None = setting(None, "Releases per step.", check=COUNT)
    learning_rate: float | None = setting(None, "Of the back.", check=POSITIVE)
    head_learning_rate: float | None = setting(None, _HEAD_RATE_HELP, check=POSITIVE)
    held_out: float | None = setting(
        None, "Share that is not trained on and tells how good the back is; 0: none [0.1].", check=check_share
    )
    central_delta: float = setting(
        DEFAULT_DELTA,
        "For the central promise of a corpus that came through a shuffler; it touches no other.",
        check=lambda name, value: checks.delta(value, name=name, zero=False),
    )
    seed: int = setting(0, "Of the order, the split and fresh weights.", check=COUNT_OR_ZERO)
    precision: Precision = setting("auto", "auto, fp32 or bf16.", check=_PRECISION)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """As every plan; what the corpus says already is refused too."""
        known, decided = ({item.name for item in fields(plan)} for plan in (cls, Plan))
        for name in sorted(settings.keys() & (decided - known)):
            remedy, rule = "It was decided when the texts were released.", "be left out with --from-releases"
            if name.startswith("evaluation_"):
                remedy = "The back is measured on held-out records: --set held_out=0.1."
            raise InvalidInput(name.replace("_", "-"), rule, settings[name], remedy)
        remedy = "Name the run or back folder to start from."
        refuse_if(settings.get("model") is None, "model", "be given with --from-releases", None, remedy)
        return super().from_dict(settings)
