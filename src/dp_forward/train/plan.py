"""The plan of a run: everything that decides its result, in one frozen object.

A plan is a TOML file, command-line flags, or both (flags win). An unknown key is an error. What was left out
is filled in by `defaults` before anything runs; that *effective* plan is printed first, stored in the run,
and its digest is what `--resume` compares.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dp_forward.data.tasks import find_task, split_name
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec, checks
from dp_forward.split.cut import parse_cut
from dp_forward.train.regimes import Regime

__all__ = ["Plan", "Precision", "check_settings", "load_plan", "read_settings"]

Precision = Literal["auto", "fp32", "bf16"]

_NOT_PART_OF_THE_RESULT = ("data",)
"""Where the files lie is not part of what a run is: they may be moved between a kill and a resume."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to train, on what, through which noise. None means: by the rule of `defaults`.

    The task's own training: ``epochs``, ``batch``, ``learning_rate``. In `end-to-end` that is the training
    through the noise; in the other regimes, the training of the back from the stored releases. The public
    step of `public-front` has its own: ``public_task``, ``public_epochs``, ``public_learning_rate``.
    ``draws``, ``warm_up_epochs`` and ``auxiliary_weight`` belong to whatever step trains the front.
    """

    task: str
    model: str = "minilm"
    """A name or folder of Hugging Face, or the folder of a run, whose halves are then taken as published."""
    cut: str | None = None
    regime: Regime = Regime.RELEASE_ONCE
    mechanism: str = "privunit"
    """A name of `NoiseSpec`, or "none" for the undefended model."""
    epsilon: float | None = None
    delta: float | None = None
    unit: str = "text"
    norm: float | None = None
    threshold_share: float | None = None
    training_epsilon: float | None = None
    """The noise while the front trains, where that may be less than what is released."""
    training_threshold_share: float | None = None
    rows: int | None = None
    """n: every text becomes so many tokens."""
    width: int | None = None
    """d': columns that cross; 0 means the model's own width, without maps."""
    label_epsilon: float | None = None
    label_prior: tuple[float, ...] | None = None
    """How common each label is *publicly* known to be; for randomized response with a prior."""
    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    head_learning_rate: float | None = None
    """For what starts from random weights: head, maps, auxiliary head."""
    weight_decay: float = 0.01
    average: float | None = None
    """Decay of the moving average of the weights that is kept in the end; 0 keeps the last weights."""
    draws: int | None = None
    warm_up_epochs: float | None = None
    """Epochs of the undefended model (no noise, bound or maps) before the training through the noise."""
    auxiliary_weight: float | None = None
    auxiliary_alone: bool | None = None
    """Whether the front's own weights learn from the auxiliary loss only, and not through the noise."""
    public_task: str | None = None
    public_epochs: float | None = None
    public_batch: int | None = None
    public_learning_rate: float | None = None
    public_head_learning_rate: float | None = None
    public_limit: int | None = None
    public_relabel: bool | None = None
    """Train first on the public labels without noise, then through the noise on what that model says."""
    public_words: int | None = None
    """Cut public texts into sentence-like pieces of at most so many words; 0 keeps them whole."""
    lora_rank: int = 0
    early_stopping: int = 0
    """Stop after so many epochs without a better validation accuracy; 0 never stops early."""
    train_limit: int | None = None
    evaluation_limit: int | None = None
    evaluation_split: str = "validation"
    evaluation_draws: int = 10
    seed: int = 0
    precision: Precision = "auto"
    data: Mapping[str, str] = field(default_factory=dict)
    """Where a task's files lie, by task: {"sst2": "PATH"}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "regime", _regime(self.regime))
        # One spelling of a task: what a front has seen is noted, and compared, by name.
        for name in ("task", "public_task"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, find_task(getattr(self, name)).name)
        if self.label_prior is not None:
            object.__setattr__(self, "label_prior", tuple(self.label_prior))
        if self.cut is not None:
            parse_cut(self.cut)
        self._check_noise()
        self._check_sizes()
        self._check_choices()
        self._check_regime()

    @property
    def noise(self) -> NoiseSpec | None:
        """The choice of noise; None for the undefended model."""
        if self.mechanism == "none":
            return None
        assert self.epsilon is not None
        return NoiseSpec(
            mechanism=self.mechanism,
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            norm=1.0 if self.norm is None else self.norm,
            threshold_share=self.threshold_share,
            rows=self.rows,
            columns=self.width or None,
        )

    @property
    def training_noise(self) -> NoiseSpec | None:
        """The noise while the front trains: the released one, but for what the plan says."""
        noise = self.noise
        if noise is None or not self.regime.trains_front:
            return noise
        changes: dict[str, Any] = {}
        if self.training_epsilon is not None:
            changes["epsilon"] = self.training_epsilon
        if self.training_threshold_share is not None:
            changes["threshold_share"] = self.training_threshold_share
        return replace(noise, **changes)

    def _check_noise(self) -> None:
        if self.mechanism == "none":
            for name in (
                "epsilon",
                "delta",
                "threshold_share",
                "training_epsilon",
                "training_threshold_share",
            ):
                if getattr(self, name) is not None:
                    raise InvalidInput(name, "be left out without noise", getattr(self, name), "Drop it.")
            return
        if self.epsilon is None:
            raise InvalidInput(
                "epsilon", "be given", None, "There is no default for a promise; try --epsilon 8."
            )
        assert self.training_noise is not None  # makes the choice, which refuses what means nothing

    def _check_sizes(self) -> None:
        for name in (
            "rows",
            "batch",
            "draws",
            "public_batch",
            "train_limit",
            "public_limit",
            "evaluation_limit",
        ):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), remedy="Leave it out for the default.")
        for name in ("width", "public_words", "lora_rank", "early_stopping", "seed"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), at_least=0, remedy="Leave it out for the default.")
        checks.count("evaluation_draws", self.evaluation_draws, remedy="Use 10 or more.")
        for name in (
            "norm",
            "epochs",
            "public_epochs",
            "learning_rate",
            "head_learning_rate",
            "public_learning_rate",
        ):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name), remedy="Leave it out for the default.")
        for name in ("warm_up_epochs", "auxiliary_weight", "weight_decay"):
            if getattr(self, name) is not None:
                checks.nonnegative(name, getattr(self, name), remedy="Use 0 for none.")

    def _check_choices(self) -> None:
        if self.average is not None and not 0 <= self.average < 1:
            raise InvalidInput("average", "lie in [0, 1)", self.average, "Use 0 for none, or 0.999.")
        if self.average and self.early_stopping:
            raise InvalidInput(
                "average",
                "be 0 with early_stopping",
                self.average,
                "One keeps the best weights, one the mean.",
            )
        if self.precision not in get_args(Precision):
            raise InvalidInput("precision", "be auto, fp32 or bf16", repr(self.precision), "Use auto.")
        if self.label_epsilon is not None:
            checks.positive("label_epsilon", self.label_epsilon, remedy="Leave it out for public labels.")
        elif self.label_prior is not None:
            raise InvalidInput("label_prior", "go with label_epsilon", "alone", "Give --label-epsilon.")

    def _check_regime(self) -> None:
        """What the regime does not allow is refused, not ignored."""
        if self.mechanism == "none" and self.regime is not Regime.END_TO_END:
            raise InvalidInput(
                "regime",
                "be end-to-end without noise",
                self.regime,
                "Nothing is released: --regime end-to-end.",
            )
        if not self.regime.trains_front:
            idle = {"draws": 1, "warm_up_epochs": 0, "auxiliary_weight": 0, "auxiliary_alone": False}
            for name in (*idle, "training_epsilon", "training_threshold_share"):
                if getattr(self, name) not in (None, idle.get(name)):
                    raise InvalidInput(
                        name,
                        f"be left out in {self.regime}",
                        getattr(self, name),
                        "The front is frozen there and sees no private text without noise.",
                    )
        private = self.regime.protects_training or self.label_epsilon is not None
        if private and split_name(self.evaluation_split) == "train":
            raise InvalidInput(
                "evaluation_split",
                "be another than train where training records are protected",
                self.evaluation_split,
                "What is measured on is read as it is: name a public split.",
            )
        public = [item.name for item in fields(self) if item.name.startswith("public_")]
        if self.regime is Regime.PUBLIC_FRONT:
            if self.public_task is None:
                raise InvalidInput(
                    "public_task", "be given in public-front", None, "Name public data: --public-task imdb."
                )
            if self.public_task == self.task:
                raise InvalidInput(
                    "public_task", "differ from the task", self.task, "The task's texts are the private ones."
                )
        else:
            for name in public:
                if getattr(self, name) is not None:
                    raise InvalidInput(
                        name, "go with public-front", getattr(self, name), "Use --regime public-front."
                    )

    def but(self, **changes: Any) -> Plan:
        """The same plan with some settings changed."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """For JSON and TOML."""
        return {**asdict(self), "regime": str(self.regime), "data": dict(self.data)}

    def digest(self) -> str:
        """SHA-256 of what decides the result."""
        deciding = {k: v for k, v in self.as_dict().items() if k not in _NOT_PART_OF_THE_RESULT}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Plan:
        """From JSON or TOML; an unknown key or a wrong type is an error."""
        check_settings(cls, settings)
        return cls(**dict(settings))


def check_settings(kind: type, settings: Mapping[str, Any]) -> None:
    """Refuse keys that a plan of this kind does not have, and values of a wrong type."""
    known = {item.name: str(item.type) for item in fields(kind)}
    for name, value in settings.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known))}."
            raise InvalidInput("plan", "have only known keys", repr(name), hint)
        if value is not None:
            _check_type(name, value, known[name])
    if "task" in known and not settings.get("task"):
        raise InvalidInput("task", "be given", None, "Try --task rotten-tomatoes.")


def load_plan(path: str | os.PathLike[str] | None, flags: Mapping[str, Any]) -> Plan:
    """A TOML file (or none), with the flags that were given on top."""
    return Plan.from_dict(read_settings(path, flags))


def read_settings(path: str | os.PathLike[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a TOML file (or none), with the flags that were given on top."""
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError:
            raise InvalidInput("plan", "be a file that can be read", path, "Check the path.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput("plan", "be TOML", f"{path} ({error})", 'Lines are: key = "value".') from None
    given = {name: value for name, value in flags.items() if value is not None}
    if isinstance(settings.get("data"), dict) and "data" in given:
        given["data"] = {**settings["data"], **given["data"]}
    return {**settings, **given}


def _regime(name: str) -> Regime:
    try:
        return Regime(name)
    except ValueError:
        known = ", ".join(Regime)
        raise InvalidInput(
            "regime", f"be one of {known}", repr(name), "release-once is the default."
        ) from None


def _check_type(name: str, value: object, annotation: str) -> None:
    """TOML has types; say which one is wrong before some arithmetic does."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if annotation.startswith("bool"):
        right, kind = isinstance(value, bool), "true or false"
    elif annotation.startswith("int"):
        right, kind = number and isinstance(value, int), "a whole number"
    elif annotation.startswith("float"):
        right, kind = number, "a number"
    elif annotation.startswith("Mapping"):
        right, kind = isinstance(value, Mapping), "a table of paths"
    elif annotation.startswith("tuple"):
        right, kind = isinstance(value, list | tuple), "a list of numbers"
    else:
        right, kind = isinstance(value, str), "text"
    if not right:
        raise InvalidInput(name, f"be {kind}", type(value).__name__, "Check the plan.")
