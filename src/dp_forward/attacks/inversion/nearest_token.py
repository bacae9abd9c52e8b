r"""Nearest-token attack: for each row that was seen, the token whose own row lies nearest.

Where the front computes row i from token i alone (`row_local`: embeddings, encoder.1.qkv), it is run on every
token at every place, so all candidate rows x_v are known (`compare_tokens`). What is seen of row i is
``y_i = s x_v + noise``, where a bound has multiplied the matrix by s. Without noise the nearest candidate
*is* the token. Two attackers use this, and differ in what they know:

*`NearestTokens`* reads one matrix for a person who watches. It is told which rows hold text, and neither the
scale nor the noise. For Gaussian noise on normalised matrices (all sX have norm C) the likelihood of X grows
with ``<Y, X> / |X|``; for PrivUnit it has two levels, the higher one where that passes a threshold. So the
matrix of greatest cosine is a most likely one. `_best` moves towards it: for given tokens the best s is
``<Y, X> / |X|^2``, and for given s the best tokens are found row by row; no step lowers the cosine of the
whole. Where rows are bounded one by one, each has its own s and cosine. Where rows are not local it is an
approximation: a candidate is the front on the token alone between its special tokens. In a text its
neighbours move the row, and what is learnt from texts reads more (`discriminant`). At `output`, where one row
crosses for the whole text, no token is named.

*`invert_nearest`* attacks many texts, with the bound and the noise in its model, and is told no length.

* A bound by row makes s a known function of the candidate: ``C / |x_v|`` (normalise), at most 1 (clip).
* A bound over the whole matrix has one s for all rows, ``C / |X|``. |X| follows from the tokens: it starts
  from the likeliest length and an average row, and is taken anew from the tokens named, a few times.

Given s, the likelihood of v under Gaussian noise is greatest where ``|y_i - s x_v|`` is least. PrivUnit of a
whole matrix is the same model in one row, up to a term of that row's small share of x. PrivUnit by row has
two levels of density: with a prior the most frequent token whose cap holds y_i is the best guess, exactly;
without one all tokens of the highest level are equally likely, and the nearest is named. ``use_prior=True``
adds the log frequency of tokens in public text: the most probable token, not the likeliest.

Edges:
    `invert_nearest` runs candidates as a single text (token type 0): of pairs, the second text is read less
    well.
Paper: embedding inversion, nearest neighbour.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Inversion, counted_tokens, token_table
from dp_forward.attacks.observations import hidden_rows
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import PrivUnit
from dp_forward.privacy.checks import count
from dp_forward.progress import Count
from dp_forward.split.artifacts import UserSide
from dp_forward.split.halves import AnyFront

__all__ = ["NearestTokens", "invert_nearest"]

Scale = Literal["known", "matrix", "row"]
"""What a reader knows of the scale: all of it (no bound), one number per matrix, or one per row."""

_ENDS: Final = ("pad", "cls", "sep", "bos", "eos")
_TINY: Final = 1e-30


def filled(template: Mapping[str, Tensor], tokens: Tensor, places: Tensor | slice | int) -> dict[str, Tensor]:
    """One text for each token, which stands at all of these places."""
    batch = {name: value.repeat(len(tokens), 1) for name, value in template.items()}
    batch["input_ids"].T[places] = tokens
    return batch


def compare_tokens(
    front: AnyFront,
    seen: Tensor,
    tokens: Tensor,
    *,
    template: Mapping[str, Tensor],
    places: Tensor | slice,
    device: str = "cpu",
    tell: Callable[[float], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Products of the rows seen with every candidate [matrices, places, tokens], and the candidates' squares.

    A candidate is a token put into the ``template`` of one text, at all ``places`` in one run: where rows are
    local, each depends on its own token only. ``tell`` is called with the share of the tokens that is done.
    """
    entries = 1 << (26 if torch.device(device).type == "cuda" else 20)  # few enough for the cache of a core
    at_once = max(1, entries // max(1, template["input_ids"].shape[1] * seen.shape[2]))
    dots, squares, done = [], [], 0
    for some in torch.split(tokens, at_once):
        found = hidden_rows(front, filled(template, some, places), device=device)[:, places]
        dots.append(torch.einsum("mpw,kpw->mpk", seen, found))
        squares.append(found.square().sum(dim=2).T)
        done += len(found)
        if tell is not None:
            tell(done / len(tokens))
    return torch.cat(dots, dim=2), torch.cat(squares, dim=1)


def invert_nearest(target: Inversion, *, use_prior: bool = False) -> AttackResult:
    """Name a token for every row of every text of the ``target``; see the module.

    With ``use_prior`` a frequent token is preferred to a rare one that is a little nearer.

    Edges:
        A cut behind which rows are mixed is refused.
    """
    front, mechanism, (_, bound) = target.front, target.mechanism, target.noise()
    rule = "compute each row from its own token (embeddings, encoder.1.qkv)"
    refuse_if(not front.row_local, "front", rule, front.cut, "Use the linear attack there.")
    tokens = torch.arange(int(token_table(front).num_embeddings))  # type: ignore[arg-type]
    blank = torch.zeros((1, target.texts.length), dtype=torch.int64)
    template = {"input_ids": blank, "attention_mask": torch.ones_like(blank)}
    by_row = bound is not None and bound.over == "row"
    cap = isinstance(mechanism, PrivUnit) and by_row and use_prior and target.releases == 1
    share = target.prior.log_share.to(target.device)
    # A special token has the log frequency of minus infinity, so it is left out either way.
    weights = share if use_prior else torch.where(share.isinf(), share, 0.0)
    scores_at_once = 1 << (28 if torch.device(target.device).type == "cuda" else 26)
    guesses = []
    for seen, tell in target.each_batch(max(1, scores_at_once // (target.texts.length * len(tokens)))):
        dots, squares = compare_tokens(
            front, seen, tokens, template=template, places=slice(None), device=target.device, tell=tell
        )
        scores = (_cap_levels if cap else _likelihoods)(target, seen, dots, squares)
        guesses.append((scores + weights).argmax(dim=2).cpu())
    return target.judge("nearest with prior" if use_prior else "nearest", torch.cat(guesses))


def _likelihoods(target: Inversion, seen: Tensor, dots: Tensor, squares: Tensor) -> Tensor:
    """The log-likelihood of every token in every row [texts, rows, tokens], up to what all share."""
    sigma, bound = target.noise()
    if bound is None:
        return 2 * dots - squares
    largest = 1.0 if bound.how == "clip" else math.inf

    def under(power: Tensor) -> Tensor:
        scale = (bound.norm / power.sqrt()).clamp(max=largest)
        return (2 * scale * dots - scale.square() * squares) / (2 * sigma**2)

    if bound.over == "row":
        return under(squares.clamp_min(_TINY))
    place, lengths = torch.arange(dots.shape[1], device=dots.device), target.lengths(seen)
    text = (place.flip(0) if target.front.pads_left else place) < lengths[:, None]
    power = lengths * (squares * target.prior.log_share.exp().to(squares.device)).sum(dim=1).mean()
    scores = dots
    for _ in range(4):
        scores = under(power[:, None, None])
        named = squares.expand_as(scores).gather(2, scores.argmax(dim=2, keepdim=True))[..., 0]
        power = (named * text).sum(dim=1)
    return scores


def _cap_levels(target: Inversion, seen: Tensor, dots: Tensor, squares: Tensor) -> Tensor:
    """The exact log density of one PrivUnit release by row: one of two levels."""
    mechanism: PrivUnit = target.mechanism  # type: ignore[assignment]
    t, (inside, outside) = mechanism.threshold, mechanism.log_levels
    along = dots / (squares.clamp_min(_TINY).sqrt() * mechanism.sigma)
    return torch.where(along >= t, inside, outside if math.isfinite(outside) else -1e30)


@dataclass(frozen=True, slots=True, repr=False)
class Reading:
    """The words read from one matrix, each with whether it is right, and the share of the text's tokens."""

    words: tuple[tuple[str, bool], ...]
    recall: float

    def as_dict(self) -> dict[str, Any]:
        return {"words": [{"word": word, "right": ok} for word, ok in self.words], "recall": self.recall}


class NearestTokens:
    """Reads matrices of one front; candidates that need the whole front are computed once and kept.

    ``vocabulary`` limits the candidates to the first so many tokens of the vocabulary, which is sorted by
    frequency in most tokenizers.

    Guarantees:
        Where `exact` holds, every token among the candidates is found in a matrix without noise, unless two
        tokens have the same row.
    Edges:
        A token that is no candidate counts as not found. Special tokens are neither guessed nor counted. No
        repr holds what was read. The cut `output` is refused.
    """

    def __init__(self, user: UserSide, *, vocabulary: int | None = None) -> None:
        if vocabulary is not None:
            count("vocabulary", vocabulary, remedy="It is a number of tokens.")
        self._front, self._tokenizer = user.front, user.tokens.tokenizer
        one_row, remedy = self._front.cut.place == "output", "Compare two texts there."
        refuse_if(one_row, "front", "give a row for each token", str(self._front.cut), remedy)
        self._ids = torch.tensor(_candidates(self._tokenizer, vocabulary))
        ends = (getattr(self._tokenizer, f"{name}_token_id", None) for name in _ENDS)
        self._special = torch.tensor([i for i in ends if i is not None], dtype=torch.int64)
        self._rows: Tensor | None = None
        self._turn = threading.Lock()
        self._done = 0
        user.front.train(False)

    def __repr__(self) -> str:
        return f"NearestTokens({len(self._ids)} tokens at {self._front.cut})"

    @property
    def exact(self) -> bool:
        """Whether a matrix without noise is read without error."""
        return bool(self._front.row_local)

    @property
    def size(self) -> int:
        """How many tokens there are to choose from."""
        return len(self._ids)

    @property
    def prepared(self) -> float:
        """The share of the candidates that is there, from 0 to 1."""
        return 1.0 if self.exact else self._done / len(self._ids)

    def prepare(self, progress: Count | None = None) -> None:
        """Compute what every token looks like; nothing where rows are local, since places differ there."""
        with self._turn:
            if self.exact or self._rows is not None:
                return
            alone, place = self._alone()
            template = {"input_ids": alone, "attention_mask": torch.ones_like(alone)}
            found, self._done = [], 0
            for some in torch.split(self._ids, 512):
                rows = hidden_rows(self._front, filled(template, some, place), device="cpu")
                found.append(rows[:, place])
                self._done += len(some)
                if progress is not None:
                    progress(self._done)
            self._rows = torch.cat(found)

    def read(self, seen: Sequence[tuple[Tensor, Scale]], tokens: Mapping[str, Tensor]) -> list[Reading]:
        """What each matrix [rows, width] tells; ``tokens`` are the true ones, as the front read them.

        They say which rows hold text and which guesses are right, and nothing else.
        """
        # The places of text, without the special tokens that every text has.
        places = torch.nonzero(counted_tokens(tokens, self._special)[0])[:, 0]
        true = tokens["input_ids"][0, places]
        rows = torch.stack([matrix[places].float() for matrix, _ in seen])
        if self.exact:
            # What follows the text on the right is PAD; on the left it moves positions, so it stays.
            end = None if self._front.pads_left else max(places.tolist(), default=-1) + 1
            template = {name: value[:, :end] for name, value in tokens.items()}
            dots, squares = compare_tokens(self._front, rows, self._ids, template=template, places=places)
        else:
            self.prepare()
            known = self._rows
            assert known is not None  # where rows are not local
            dots, squares = rows @ known.T, known.square().sum(dim=1).expand(len(places), -1)
        found = []
        for products, (_, scale) in zip(dots, seen, strict=True):
            guessed = self._ids[_best(products, squares, scale if self.exact else "row")]
            right = guessed == true
            words = tuple((self._word(int(i)), bool(ok)) for i, ok in zip(guessed, right, strict=True))
            found.append(Reading(words, float(right.double().mean()) if len(true) else 0.0))
        return found

    def _alone(self) -> tuple[Tensor, int]:
        """A token between its special tokens, and the place where it stands."""
        bare = self._tokenizer("")["input_ids"]
        for i in self._ids[: 1 << 10].tolist():
            ids = self._tokenizer(self._word(i))["input_ids"]
            if len(ids) == len(bare) + 1 and i in ids:
                return torch.tensor([ids]), ids.index(i)
        raise InvalidInput("tokenizer", "read some word as one token", "none", "Use a common tokenizer.")

    def _word(self, i: int) -> str:
        """A token for people: as it stands in a text, a piece inside a word with a hyphen before it."""
        token = self._tokenizer.convert_ids_to_tokens(i)
        if token.startswith("##"):
            return f"-{token[2:]}"
        return str(self._tokenizer.convert_tokens_to_string([token])).strip() or token


def _best(dots: Tensor, squares: Tensor, scale: Scale) -> Tensor:
    """The index of the best candidate for every row [rows]; together, under one unknown scale of a matrix."""
    if scale == "known":
        return (2 * dots - squares).argmax(dim=1)
    best = (dots / squares.clamp_min(_TINY).sqrt()).argmax(dim=1)
    for _ in range(16 if scale == "matrix" else 0):
        chosen = best[:, None]
        s = dots.gather(1, chosen).sum() / squares.gather(1, chosen).sum().clamp_min(_TINY)
        better = (2 * s * dots - s * s * squares).argmax(dim=1)
        if s <= 0 or torch.equal(better, best):
            break
        best = better
    return best


def _candidates(tokenizer: Any, most: int | None) -> list[int]:
    """The ids that may be guessed, in the order of the vocabulary: no special ones."""
    special = set(tokenizer.all_special_ids)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    kept = [i for word, i in vocabulary if i not in special and not word.startswith("[unused")]
    refuse_if(not kept, "tokenizer", "have tokens to guess", "none", "Use another front.")
    return kept[:most]
