"""What a plan leaves open, filled in by rules that were measured (docs/recipes.md has the measurements).

The rules follow from one fact about PrivUnit (`privacy.privunit`): its release tells on which side of a plane
across the input's direction it lies. If the front puts every text of a class at one of two opposite points, a
threshold t near 0 makes that randomized response on the class, which is the best that pure LDP allows.

* At `output` the front has seen the whole text. One clean epoch lets it separate the classes, few columns
  (d') are enough, t is small, and more draws per text cost only the head.
* At a cut inside the model the front must be *told* to separate the classes before the cut, by an auxiliary
  label loss. The less of the model lies in the front, the less it succeeds, and the nearer to t* the best t.
* A front learns little through much noise: below epsilon 4 it trains with the noise of epsilon 4.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dp_forward.errors import refuse_if
from dp_forward.split.cut import parse_cut
from dp_forward.split.pretrained import count_decoder_blocks, default_pooling
from dp_forward.train.lineage import Shape, cut_of_start, published_shape
from dp_forward.train.plan import FRONT_SETTINGS, Plan, ReleasesPlan
from dp_forward.train.regimes import Regime

__all__ = ["effective_plan", "effective_releases_plan"]


# Settings for a front that trains through the noise; each was measured at its cut.
_UNDEFENDED: dict[str, Any] = {"rows": 64, "width": 0, "norm": 1.0}
_UNDEFENDED |= {"warm_up_epochs": 0.0, "draws": 1, "auxiliary_weight": 0.0, "auxiliary_alone": False}
_UNDEFENDED |= {"epochs": 4, "batch": 128, "learning_rate": 1e-4, "head_learning_rate": 1e-3}
_OUTPUT = dict(_UNDEFENDED, width=4, threshold_share=0.1, training_threshold_share=0.3)
_OUTPUT |= {"warm_up_epochs": 4, "draws": 16, "epochs": 1}
_LATE = dict(_UNDEFENDED, rows=48, width=16, threshold_share=0.6, auxiliary_weight=1)
_LATE |= {"learning_rate": 2e-4, "head_learning_rate": 2e-4}
_EARLY = dict(_LATE, threshold_share=0.85, epochs=2, auxiliary_alone=True)
_EMBEDDINGS = dict(_LATE, rows=32, width=4, norm=8.0, threshold_share=1.0, head_learning_rate=1e-3)
_EMBEDDINGS_BY_ROW = dict(_EMBEDDINGS, width=2, norm=1.0, learning_rate=5e-5, head_learning_rate=5e-4)
"""For a promise per token or phrase, which bounds rows one by one; at the rates above it rarely learns."""


def recipe(
    cut: str, *, epsilon: float | None, mechanism: str, unit: str = "text", decoder_blocks: int | None = None
) -> dict[str, Any]:
    """The rule, from the cut, the epsilon per unit and how many blocks the model has if it is a decoder."""
    place = parse_cut(cut)
    if epsilon is None:
        made = _UNDEFENDED
    elif place.place == "output":
        made = dict(_OUTPUT, threshold_share=0.3) if epsilon > 6 else _OUTPUT
    elif place.place == "embeddings":
        made = _EMBEDDINGS if unit == "text" else _EMBEDDINGS_BY_ROW
    else:
        # From block 3 on a front separates the classes well (of six blocks: 1 is early, 3 and 5 are late).
        made = _EARLY if (place.block or 1) < 3 and decoder_blocks is None else _LATE
    if decoder_blocks is not None:
        made = made | _changes_for_decoder(cut, decoder_blocks, noise=epsilon is not None)
    only_privunit = () if mechanism == "privunit" else ("threshold_share", "training_threshold_share")
    return {name: value for name, value in made.items() if name not in only_privunit}


def _changes_for_decoder(cut: str, blocks: int, *, noise: bool) -> dict[str, Any]:
    """What was measured with 30 blocks: lower rates, but where a front of few blocks has much to learn."""
    place = parse_cut(cut)
    if not noise:
        return {"learning_rate": 5e-5, "epochs": 3}
    if place.place == "output":
        return {"learning_rate": 5e-5, "warm_up_epochs": 2}
    if place.block is None:
        return {}
    pace = {"learning_rate": 2e-4, "epochs": 3} if 2 * place.block <= blocks else {"learning_rate": 5e-5}
    return {"epochs": 2, "width": 8, "head_learning_rate": 1e-3, **pace}


_HEAD_PACE = {"epochs": 12.0, "batch": 1024, "learning_rate": 5e-3, "head_learning_rate": 5e-3}
_BACK_PACE = {"epochs": 4.0, "batch": 128, "learning_rate": 2e-4, "head_learning_rate": 1e-3}
"""For a back that trains from stored releases: only a head, or blocks too."""
_PUBLIC_PACE = {"warm_up_epochs": 1.0, "draws": 8, "public_relabel": True, "public_words": 48}
_PUBLIC_PACE |= {"public_epochs": 0.5, "public_batch": 256, "public_learning_rate": 1.5e-4}
_PUBLIC_PACE |= {"public_head_learning_rate": 1e-3}


def effective_releases_plan(plan: ReleasesPlan) -> ReleasesPlan:
    """The effective plan of a provider, by where the back that it starts from was cut.

    Edges:
        What belongs to a back that trains is refused for a projection, and other labels for such a back.
    """
    pace, cut = {"held_out": 0.1}, cut_of_start(plan.model)
    if cut is None:
        for name in (*_HEAD_PACE, *pace):
            given, remedy = getattr(plan, name), "It is fitted in closed form, to all of them."
            if name == "held_out":
                remedy = "They have no labels that it could be measured by."
            refuse_if(given not in (None, 0), name, "be left out for folded records", given, remedy)
        return plan
    given, remedy = plan.other_labels, "Of other releases a back learns the labels that they hold."
    refuse_if(given is not None, "other-labels", "go with folded records", given, remedy)
    pace |= _HEAD_PACE if parse_cut(cut).place == "output" else _BACK_PACE
    return plan.filled(pace)


_CLOSED_FORM: Mapping[str, Any] = {
    "cut": "output",
    "rows": 64,
    "back": "closed-form",
    "label_privacy": "folded",  # and no threshold_share: t* estimates best, and hides well behind a shuffler
}
_CLOSED_PUBLIC = {"public_limit": 6000, "public_words": 48}
_CLOSED_PUBLIC_FRONT = {"warm_up_epochs": 1.0, "public_batch": 256, "public_words": 48}
_CLOSED_PUBLIC_FRONT |= {"public_learning_rate": 1e-4, "public_head_learning_rate": 1e-3}
"""The front learns from public labels without noise; the discriminant is read off it afterwards."""
_BY_GRADIENT = (
    *("epochs", "batch", "learning_rate", "head_learning_rate", "norm", "threshold_share"),
    *("label_epsilon", "label_prior", "training_epsilon", "training_threshold_share", "draws"),
    *("auxiliary_weight", "auxiliary_alone", "public_epochs", "public_relabel"),
)
"""Settings that mean nothing in closed form: whoever gives one wants a back that trains."""


def _folds(plan: Plan, published: Shape | None) -> bool:
    """Whether a plan that leaves it open is for the folded release and the closed form."""
    given = any(getattr(plan, name) is not None for name in _BY_GRADIENT)
    noise = plan.mechanism in ("privunit", "matrix-gaussian", "gaussian") and plan.unit == "text"
    folds = not given and plan.label_privacy != "public"
    return plan.regime.protects_training and noise and published is None and folds


def _closed_form_plan(plan: Plan) -> Plan:
    # After a prompt the last row of a decoder says what comes next; there is nothing to average.
    chosen = {**_CLOSED_FORM, "pooling": "last" if plan.prompt else default_pooling(plan.model)}
    if plan.regime is Regime.PUBLIC_FRONT:
        chosen |= _CLOSED_PUBLIC_FRONT
    elif plan.public_task is not None:
        chosen |= _CLOSED_PUBLIC
    return plan.filled(chosen)


def effective_plan(plan: Plan, *, encoder: bool = False) -> Plan:
    """The effective plan: nothing that decides the result is left open.

    Where the model is known to be an ``encoder``, its settings are not looked up to see whether it is one.
    """
    plan = plan.with_data()
    published, regime = published_shape(plan.model), plan.regime
    cut = plan.cut or (published.cut if published else "output")
    at_output = parse_cut(cut).place == "output"
    if plan.back == "closed-form" or (plan.back is None and at_output and _folds(plan, published)):
        return _closed_form_plan(plan)
    folded, remedy = plan.label_privacy == "folded", "Leave out what belongs to that back."
    refuse_if(folded, "labels", "be public where a back trains by gradients", "folded", remedy)
    plan = replace(plan, back="gradient")
    blocks = published.decoder_blocks if published else None
    if regime.trains_front and not published and not encoder:
        blocks = count_decoder_blocks(plan.model)
    if blocks is not None and plan.blocks is not None:
        blocks = min(blocks, plan.blocks)
    noise: Any = {name: getattr(plan, name) for name in ("epsilon", "mechanism", "unit")}
    rule = recipe(cut, **noise, decoder_blocks=blocks)
    chosen = {**rule, "cut": cut}
    if published:
        chosen |= {"rows": published.rows, "width": published.width}
    if not regime.trains_front:
        chosen = {name: value for name, value in chosen.items() if name not in FRONT_SETTINGS}
    elif plan.epsilon is not None:
        chosen["training_epsilon"] = max(plan.epsilon, 4.0)
    if regime.protects_training:
        chosen |= _HEAD_PACE if at_output else _BACK_PACE
    if regime is Regime.PUBLIC_FRONT:
        chosen |= _PUBLIC_PACE
    if at_output and regime.protects_training:
        # A head that learns from one release per text wants a little less noise than one that has many.
        if plan.mechanism == "privunit":
            chosen["threshold_share"] = max(0.2, rule.get("threshold_share", 0.0))
        if published is None:
            chosen["width"] = 8
    return plan.filled(chosen)
