"""A text classifier with scikit-learn's interface, whose training records are differentially private.

`fit` is `finetune` in the regimes that protect records: one folded release per record, text and label under
one epsilon, charged in a ledger before it is drawn, and a decision in closed form. `predict` decides on this
machine: nothing is noised, charged or sent.

Guarantees:
    What `fit` learns depends on the records through their releases alone; `guarantee` says what that promises
    for each. What each text spends in all fits and releases of its owner never passes the ``budget``, by the
    owner's register: also in clones and in other processes. With a ``ledger``, its cap bounds what is charged
    there, and only that.
    No text and no label of a record is in an error, in `repr` or in a file.
Edges:
    Each `fit` releases its records again. By default the budget is one release, so a second `fit` is refused,
    and so is a clone (`cross_val_score`, `GridSearchCV`) unless somebody said a budget: k folds are charged
    k epsilon. A ledger that was named adds all that is charged in it, as if about the same records.
    `score` is a plain number about the records that it is given, and protects none of them.
    The noise comes from the operating system: no ``seed`` decides it, and no two fits are the same.
"""

import inspect
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from dp_forward.data import EncodedTexts, Task
from dp_forward.data.own_data import columns_of, encode_texts, task_from_labels
from dp_forward.data.sources import IN_MEMORY
from dp_forward.data.tasks import label_word
from dp_forward.errors import BudgetExhausted, InvalidInput, refuse_if
from dp_forward.privacy import Guarantee
from dp_forward.split.halves import ReadoutFront
from dp_forward.storage.json_files import read_json, write_json
from dp_forward.train.closed_form_training import read_rows
from dp_forward.train.defaults import effective_plan
from dp_forward.train.finetune import finetune
from dp_forward.train.inputs import Inputs, cut_model, public_texts
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Regime
from dp_forward.train.run import Run

__all__ = ["PrivateClassifier"]

_KEPT: Final = "classifier.json"
_SAME: Final = ("model", "epsilon", "delta", "prompt", "blocks")  # settings that a plan has as they are
_GIVEN: Final = f"{IN_MEMORY}public"
_EACH_FIT: Final = (
    "Each fit, and each fold of a cross-validation, releases the records again: k folds cost k epsilon. Give "
    "budget=k*epsilon if you mean that."
)


class PrivateClassifier:
    """A classifier of texts; see the module for what is promised.

    >>> texts = [f"{said} {number}" for number in range(20) for said in ("where is parcel", "wrong bill")]
    >>> classifier = PrivateClassifier(epsilon=8.0).fit(texts, ["delivery", "billing"] * 20)
    >>> len(classifier.predict(["when will my parcel come?"]))
    1
    >>> classifier.guarantee
    Guarantee(8.0-LDP per record)
    >>> classifier.save("run")  # dpf serve run/back, dpf ask run/front

    Args:
        model: a Hugging Face name or folder, a GGUF file, `minilm` or `smollm2`.
        epsilon: what one release of a record costs, text and label together.
        delta: None for PrivUnit, which has none; a positive one for the matrix Gaussian.
        regime: `release-once`, or `public-front`, whose front first learns from public texts with labels.
        public: public texts, which say where texts lie: a file, a list, or (texts, labels).
        descriptions: label -> a phrase or a list of them; by default the label's own words.
        prompt: for a decoder, a public template around every text, with {text} in it.
        blocks: use so many blocks of the model only; by default all.
        ledger: a file, whose cap then bounds the releases in it; by default the owner's register bounds all.
        budget: what a text may spend in all, or the cap of a new ledger; by default, exactly one release.
        seed: of what is random and public; never of the noise.
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6
    _cloned = False
    _folder: Path
    run_: Run
    """What `fit` made, as `dpf.finetune` gives it."""
    classes_: NDArray[Any]
    """The labels, as they were given, in order."""
    outlook_: tuple[str, ...]
    """What was charged, and whether the records were likely enough, as said before the charge."""

    def __init__(
        self,
        model: str = "minilm",
        *,
        epsilon: float = 4.0,
        delta: float | None = None,
        regime: str = "release-once",
        public: Any = None,
        descriptions: Mapping[Any, str | Iterable[str]] | None = None,
        prompt: str | None = None,
        blocks: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.model, self.epsilon, self.delta, self.regime = model, epsilon, delta, regime
        self.public, self.descriptions = public, descriptions
        self.prompt, self.blocks = prompt, blocks
        self.ledger, self.budget, self.seed = ledger, budget, seed

    def fit(self, texts: Any, labels: Any = None) -> Self:
        """Release every record once, and learn from the releases.

        Args:
            texts: a list, an array or a column of texts; or a `datasets.Dataset`, which may hold the labels.
            labels: words or numbers, one for each text; each label has five texts or more.

        Raises:
            BudgetExhausted: there is no room for another release; nothing was charged.
        """
        ledger = None if self.ledger is None else Path(self.ledger).absolute()
        if self._cloned and self.budget is None and (ledger is None or not ledger.exists()):
            raise BudgetExhausted(
                "A clone may be one of many that release the same records, and no budget was said for them. "
                f"Nothing was charged. {_EACH_FIT}"
            )
        kind = getattr(labels, "dtype", None)
        texts, labels = columns_of(texts, labels)
        task, classes = _find_classes(labels, kind)
        plan = self._plan(task)
        inputs = self._inputs(plan, texts, labels)
        folder, said = Path(tempfile.mkdtemp(prefix="dpf-")), list[str]()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        charged: dict[str, Any] = {"ledger": ledger, "budget": self.budget, "say": said.append}
        try:
            run = finetune(plan, folder=folder, inputs=inputs, checkpoints=False, **charged)
        except BudgetExhausted as refused:
            raise BudgetExhausted(f"{refused} {_EACH_FIT}") from None
        self._folder, self.run_, self.classes_, self.outlook_ = folder, run, classes, tuple(said)
        return self

    def _plan(self, task: Task) -> Plan:
        other, rule = self.regime not in ("release-once", "public-front"), "be release-once or public-front"
        refuse_if(other, "regime", rule, repr(self.regime), "Only these protect the records.")
        phrases = {label_word(label) or "": said for label, said in (self.descriptions or {}).items()}
        public = None if self.public is None else _GIVEN
        if isinstance(self.public, str | os.PathLike):
            public = os.fspath(self.public)
        plan = Plan.for_labels(
            task,
            regime=Regime(self.regime),
            mechanism="matrix-gaussian" if self.delta else "privunit",
            describe=phrases,
            public=public,
            seed=self.seed or 0,
            **{name: getattr(self, name) for name in _SAME},
        )
        return effective_plan(plan)

    def _inputs(self, plan: Plan, texts: list[Any], labels: list[Any] | None) -> Inputs:
        """The model cut in two, and the records and public texts as token ids."""
        task, (pair, tokens, spec) = plan.find_task(), cut_model(plan)
        if plan.public == _GIVEN:
            paired = isinstance(self.public, tuple) and len(self.public) == 2
            open_texts, found = columns_of(*self.public) if paired else columns_of(self.public)
            if not paired and plan.regime is Regime.PUBLIC_FRONT:
                raise InvalidInput("public", "be (texts, labels) in public-front", "texts", "Add labels.")
            known = found if paired else None
            public: EncodedTexts | None = encode_texts(open_texts, known, tokens, task=task)[1]
        else:
            public = public_texts(plan, tokens)
        if public is not None:
            public.check_known(tokens.tokenizer)
        train = encode_texts(texts, labels, tokens, task=task)[1]
        return Inputs(task, pair, tokens, spec, train, None, public)

    def predict(self, texts: Any) -> NDArray[Any]:
        """The label of each text, decided here: nothing is noised, charged or sent."""
        found: NDArray[Any] = self._fitted.classes_[self._scores(texts).argmax(axis=1)]
        return found

    def predict_proba(self, texts: Any) -> NDArray[np.float64]:
        """How likely each label is, [texts, labels], in the order of ``classes_``; decided here too."""
        scores = self._scores(texts)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def score(self, texts: Any, labels: Any = None, sample_weight: Any = None) -> float:
        """The share of the texts whose label `predict` names; nothing protects this number."""
        texts, labels = columns_of(texts, labels)
        if labels is None:
            raise InvalidInput("labels", "be given", None, "Give one for every text.")
        numbers = {label: number for number, label in enumerate(self._fitted.run_.spec.labels)}
        known = np.array([numbers.get(label_word(label) or "", -1) for label in labels])
        return float(np.average(self._scores(texts).argmax(axis=1) == known, weights=sample_weight))

    @property
    def guarantee(self) -> Guarantee:
        """What each training record is promised."""
        return cast(Guarantee, self._fitted.run_.promises.training)  # these regimes protect records

    @property
    def guarantee_of_query(self) -> Guarantee:
        """What a text is promised whose label a provider is asked for, with the saved front."""
        return cast(Guarantee, self._fitted.run_.promises.queries)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the run, its releases and their ledger into a new folder.

        Hand ``back`` to a provider (`dpf serve`) and ``front`` to users (`dpf ask`), and keep the rest.
        """
        root, run = Path(folder), self._fitted._folder
        refuse_if(root.exists() and any(root.iterdir()), "folder", "be new or empty", root, "Name another.")
        shutil.copytree(run, root, dirs_exist_ok=True)
        ledger = None if self.ledger is None else str(Path(self.ledger).absolute())
        kept = {"classes": self.classes_.dtype.str, "ledger": ledger, "budget": self.budget}
        write_json(root / _KEPT, kept)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """What `save` wrote, or `dpf finetune` by default; another `fit` is charged as before."""
        root = Path(folder).absolute()
        run = Run.load(root)
        plan, rule = run.plan, "hold a closed form"
        refuse_if(plan.back != "closed-form", "folder", rule, str(plan.back), "Use dpf.Run.load.")
        kept: dict[str, Any] = {"classes": "O", "ledger": None, "budget": None}
        if (root / _KEPT).is_file():
            kept |= read_json(root / _KEPT, name="folder", remedy="Save it again.")
        made = cls(
            regime=str(plan.regime),
            public=None if plan.public == _GIVEN else plan.public,
            descriptions=dict(plan.describe) or None,
            ledger=kept["ledger"],
            budget=kept["budget"],
            seed=plan.seed,
            **{name: getattr(plan, name) for name in _SAME},
        )
        made.run_, made.classes_, made.outlook_ = run, _read_classes(run.spec.labels, kept["classes"]), ()
        made._folder = root
        return made

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings that it was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; what was learnt stays until the next `fit`."""
        known = self.get_params()
        for name, value in settings.items():
            if name not in known:
                raise InvalidInput("settings", f"be of {', '.join(known)}", repr(name), "Check the spelling.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        shown = f"{self.model!r}, epsilon={self.epsilon!r}, regime={self.regime!r}"
        promised = repr(self.guarantee) if self.__sklearn_is_fitted__() else "not fitted"
        return f"{type(self).__name__}({shown}) -> {promised}"

    def __getstate__(self) -> dict[str, Any]:
        remedy = "Use save(folder), load(folder)."
        refuse_if(self.__sklearn_is_fitted__(), "classifier", "be stored by save()", "pickle", remedy)
        return dict(self.__dict__)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __sklearn_clone__(self) -> Self:
        made = type(self)(**self.get_params())
        made._cloned = True
        return made

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(poor_score=True),
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
            non_deterministic=True,
        )

    @property
    def _fitted(self) -> Self:
        """Itself, after `fit`; before, scikit-learn's error where that is loaded."""
        if self.__sklearn_is_fitted__():
            return self
        kinds: tuple[type[Exception], ...] = (InvalidInput,)
        if "sklearn" in sys.modules:
            from sklearn.exceptions import NotFittedError

            kinds = (InvalidInput, NotFittedError)
        kind = type("NotFitted", kinds, {})
        raise kind("classifier", "be fitted", "a new one", "Call fit(texts, labels), or load(folder).")

    def _scores(self, texts: Any) -> NDArray[np.float64]:
        """The score of each label, [texts, labels]."""
        run = self._fitted.run_
        front, (texts, _) = run.pair.front, columns_of(texts)
        assert isinstance(front, ReadoutFront)
        encoded = encode_texts(texts, None, run.tokens, task=run.plan.find_task())[1]
        return read_rows(front, encoded).astype(np.float64)


def _find_classes(labels: list[Any] | None, kind: object) -> tuple[Task, NDArray[Any]]:
    """The labels as they were given, in order, and the task of their words."""
    if labels is None:
        raise InvalidInput("labels", "be given: y cannot be None", None, "Give one for every text.")
    task, firsts = task_from_labels(labels), dict[str | None, Any]()
    for label in labels:
        firsts.setdefault(label_word(label), label)
    values = [firsts[word] for word in task.labels]
    keeps = isinstance(kind, np.dtype) and (kind.kind in "biufU" or isinstance(values[0], str))
    classes: NDArray[Any] = np.array(values, dtype=kind if keeps else None)  # type: ignore[call-overload]
    refuse_if(classes.ndim != 1, "labels", "be one for every text", "rows of them", "Give a list.")
    order = np.argsort(classes)
    return replace(task, labels=tuple(task.labels[number] for number in order)), classes[order]


def _read_classes(words: Sequence[str], kind: str) -> NDArray[Any]:
    """The labels of a stored classifier, as they were given."""
    found = np.array(words)
    return found == "True" if np.dtype(kind).kind == "b" else found.astype(kind)
