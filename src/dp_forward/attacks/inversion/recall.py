r"""Token recall of an inversion attack, its chance and its ceiling; the attacker's model of text and noise.

The attacker has the front (it is public, or the provider made it), public text, and knows the mechanism: the
bound C, the noise, and that a matrix was scaled as a whole or row by row. It does not know the text's length
or mask. An attack runs unchanged on hidden matrices without noise (``mechanism=None``).

*Recall* is the share of a text's tokens that are named at their place; special tokens and PAD count neither
way, so no attacker ever guesses them. *Bag recall* is the share of a text's different tokens that are named
at all: in the rows of the text, or, at `output`, among as many best guesses as the text has different
tokens. Tokens of one text depend on each other, so intervals are over texts.

*Chance* needs no release: the best fixed guess for every place, learnt from public text (`TokenPrior`).

*Ceiling.* Draw a text, then one of its tokens T and its place J (uniformly: recall is the probability of
naming T), and even tell the attacker J. Given J, T is a secret of the whole text whose best fixed guess is
right with ``s_J``, so the success at J is at most its ceiling ``b(s_J)`` (`attacks.ceiling`), and since b is
concave, recall is at most ``b(E[s_J])``. For bags T is one of the different tokens, n is told, and "T = v"
becomes "T lies in a list of n". Lists overlap, so only the pure bound carries over; for Gaussian noise,
compare with releases of one fixed text: recall is a function with values in [0, 1], so its mean is at most
``e^e s + delta(e)`` for every e. ``E[s_J]`` is not known, so the best fixed guess *in hindsight*, chosen on
the attacked texts themselves, stands for it: on average it is larger.

A promise per token or phrase bounds what is learnt about a token *by somebody who knows the rest of the
text*. How well that one guesses without a release is not known here, so the ceiling is 1.

Releases of one text compose: the average of k of them has the ceiling of all k.

Paper: Section 6.3, Table 8.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from dp_forward.attacks.attack_result import AttackResult, exact_interval, require_texts
from dp_forward.attacks.ceiling import attribute_ceiling
from dp_forward.attacks.observations import each_batch, hidden_rows, kind_of_noise, observe
from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise import Sanitizer
from dp_forward.privacy import MVG, KaryResponse, MatrixGaussian, Mechanism, NormBound, compose
from dp_forward.privacy.checks import count
from dp_forward.progress import Count
from dp_forward.split.halves import AnyFront, Front

__all__ = ["Inversion", "TokenPrior", "token_table"]


@dataclass(frozen=True, eq=False, repr=False)
class TokenPrior:
    """What public text tells about a text that was never seen; ``special`` tokens are no text.

    ``log_share`` [vocabulary] is the log frequency of every token (one added to each count), minus infinity
    for special ones; ``at_place`` [rows] the most frequent token of every place; ``by_texts`` [vocabulary]
    all tokens, those that are in most texts first; ``log_lengths`` [rows] that of the lengths 1 to rows.
    """

    log_share: Tensor
    at_place: Tensor
    by_texts: Tensor
    log_lengths: Tensor
    special: Tensor

    @classmethod
    def learn(cls, public: EncodedTexts, *, special: Collection[int], vocabulary: int) -> Self:
        """Count tokens; ``special`` are the ids that never count as text (`tokenizer.all_special_ids`)."""
        excluded = torch.tensor(sorted(set(special)), dtype=torch.int64)
        if len(excluded) and not 0 <= int(excluded.min()) <= int(excluded.max()) < vocabulary:
            raise InvalidInput("special", f"be ids below {vocabulary}", "others", "Check the tokenizer.")
        in_texts = torch.zeros(vocabulary)
        places = torch.zeros(public.length, vocabulary)
        for batch, _ in each_batch(public, 4096):
            ids, text = batch["input_ids"], counted_tokens(batch, excluded)
            place = torch.arange(public.length).expand_as(ids)[text]
            places.index_put_((place, ids[text]), torch.ones(len(place)), accumulate=True)
            once = torch.unique((torch.arange(len(ids))[:, None] * vocabulary + ids)[text])
            in_texts += torch.bincount(once % vocabulary, minlength=vocabulary)
        totals, allowed = places.sum(dim=0), torch.ones(vocabulary, dtype=torch.bool)
        allowed[excluded] = False
        if not allowed.any() or totals[allowed].sum() == 0:
            raise InvalidInput("public", "hold tokens that are not special", "none", "Use ordinary text.")
        share = torch.where(allowed, totals + 1, 0.0)
        common = int(torch.where(allowed, totals, -1.0).argmax())
        seen = places.sum(dim=1) > 0
        lengths = torch.from_numpy(np.bincount(public.lengths, minlength=public.length + 1))
        return cls(
            log_share=(share / share.sum()).log(),
            at_place=torch.where(seen, places.argmax(dim=1), common),
            by_texts=torch.where(allowed, in_texts, -1.0).argsort(descending=True, stable=True),
            log_lengths=((lengths[1:] + 1.0) / (lengths[1:] + 1.0).sum()).log(),
            special=excluded,
        )

    def __repr__(self) -> str:
        return f"TokenPrior({len(self.log_share)} tokens, {len(self.at_place)} places)"


@dataclass(frozen=True, eq=False, repr=False)
class Inversion:
    """Texts under attack, and what the attacker knows of them.

    ``releases`` releases of each text are averaged before they are read; ``progress`` is called with the
    texts so far.

    Edges:
        Fewer than 20 texts are refused, and a prior that was learnt at another number of rows.
    """

    front: AnyFront
    mechanism: Mechanism | None
    texts: EncodedTexts
    prior: TokenPrior
    releases: int = 1
    device: str = "cpu"
    progress: Count | None = None

    def __post_init__(self) -> None:
        count("releases", self.releases, remedy="It is how many releases of one text are averaged.")
        rows, known = self.texts.length, len(self.prior.at_place)
        refuse_if(rows != known, "prior", f"be learnt at {rows} rows", known, "Encode both alike.")
        require_texts("texts", len(self.texts))

    def observe(self, batch: dict[str, Tensor], *, simulate: bool = False) -> Tensor:
        """The average of the releases of each text [texts, rows, width]; drawn a few at a time."""
        hidden = hidden_rows(self.front, batch, device=self.device)
        if self.mechanism is None:
            return hidden
        total, most = torch.zeros_like(hidden, dtype=torch.float64), max(1, (1 << 26) // hidden.numel())
        for start in range(0, self.releases, most):
            seen = observe(hidden, self.mechanism, draws=min(most, self.releases - start), simulate=simulate)
            total += seen.sum(dim=1, dtype=torch.float64)
        return (total / self.releases).float()

    def each_batch(self, size: int) -> Iterator[tuple[Tensor, Callable[[float], None]]]:
        """What is seen of all texts, ``size`` at a time, each with a callable for the share that is done."""
        for batch, tell in each_batch(self.texts, size, self.progress):
            yield self.observe(batch), tell

    def noise(self) -> tuple[float, NormBound | None]:
        """The deviation of an entry of an average, and the bound before the noise.

        PrivUnit counts as what its unbiased form nearly is in any one row: Gaussian. Noise that differs
        between entries is refused.
        """
        mechanism = self.mechanism
        if mechanism is None:
            return 0.0, None
        shaped = isinstance(mechanism, MatrixGaussian) and mechanism.shaped
        if shaped or isinstance(mechanism, MVG | KaryResponse):
            rule = "have the same noise in every entry for this attack"
            raise InvalidInput("mechanism", rule, mechanism.name, "Use the linear attack.")
        sigma: float = mechanism.sigma  # type: ignore[attr-defined]
        return sigma / math.sqrt(self.releases), Sanitizer(mechanism).bound

    def lengths(self, seen: Tensor) -> Tensor:
        r"""The likeliest length of each text, from the energy of its rows; PAD is zero before the noise.

        Let e_i = |y_i|^2 - w sigma^2. In a row of PAD it has mean 0 and variance ``2 w sigma^4``. In a row of
        a text of length L that was scaled to the norm C it has mean ``C^2/L``, and besides the variance ``4
        sigma^2 C^2/L`` and that of the rows' own sizes, whose spread is taken as half their mean. The
        likeliest L is that of normal laws with these moments and of the prior of lengths. Without a known
        norm, C^2 is the energy seen. Without noise the last row that is not zero is the last of the text.
        """
        (sigma, bound), pads_left = self.noise(), self.front.pads_left
        place = torch.arange(1, seen.shape[1] + 1, device=seen.device)
        if sigma == 0:
            text = (seen.flip(1) if pads_left else seen).ne(0).any(dim=2)
            return (text * place).amax(dim=1).clamp_min(1)
        energy = seen.double().square().sum(dim=2) - seen.shape[2] * sigma**2
        energy = energy.flip(1) if pads_left else energy
        total = energy.sum(dim=1, keepdim=True).clamp_min(1e-30)
        if bound is not None and bound.how == "normalise" and bound.over == "matrix":
            total = torch.full_like(total, bound.norm**2)
        mean = total / place
        of_pad = torch.full_like(mean, 2 * seen.shape[2] * sigma**4)
        of_text = of_pad + 4 * sigma**2 * mean + (0.5 * mean).square()
        inside = place <= place[:, None]
        off = energy[:, None, :] - torch.where(inside, mean[..., None], 0.0)
        variance = torch.where(inside, of_text[..., None], of_pad[..., None])
        fit = (-0.5 * (off.square() / variance + variance.log())).sum(dim=2)
        return (fit + self.prior.log_lengths.to(seen.device)).argmax(dim=1) + 1

    def judge(self, attack: str, guesses: Tensor, *, ranked: bool = False, **details: Any) -> AttackResult:
        """The recall of one guess for every row [texts, rows], by place.

        ``ranked`` is for texts that cross as one row: a ranking of tokens, best first [texts, at least rows],
        is judged as a bag. The interval is 95 % for the mean over texts; exact where all are 0 or all are 1.
        """
        batch = self.texts.batch(range(len(self.texts)))
        ids, text = batch["input_ids"], counted_tokens(batch, self.prior.special)
        bags = [set(row[kept].tolist()) for row, kept in zip(ids, text, strict=True)]
        if ranked:
            found = _bag_recalls(bags, _best_guesses(bags, guesses))
            fixed = self.prior.by_texts.expand(len(bags), -1)
            chance = _mean(_bag_recalls(bags, _best_guesses(bags, fixed)))
            hindsight, bag_recall = _best_lists([bag for bag in bags if bag]), _mean(found)
            recalls = torch.tensor(found, dtype=torch.float64)
        else:
            recalls = _shares((guesses == ids) & text, text)
            chance = float(_shares((self.prior.at_place == ids) & text, text).mean())
            named = [set(row[kept].tolist()) for row, kept in zip(guesses, text, strict=True)]
            hindsight = _best_fixed(ids, text)
            bag_recall = _mean(_bag_recalls(bags, named))
        trials, mean = len(recalls), float(recalls.mean())
        require_texts("texts", trials)
        half = float(student.ppf(0.975, trials - 1)) * float(recalls.std()) / math.sqrt(trials)
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        if mean in (0.0, 1.0):
            low, high = exact_interval(round(mean * trials), trials)
        ceiling = _ceiling(self.mechanism, self.releases, hindsight, lists=ranked)
        own: dict[str, Any] = {"releases": self.releases, "best_fixed_in_hindsight": hindsight}
        own |= {"released": kind_of_noise(self.mechanism) == "released", "bag_recall": bag_recall}
        own |= {"cut": str(self.front.cut), **details}
        return AttackResult(attack, mean, chance, low, high, trials, ceiling, own)


def token_table(front: AnyFront) -> nn.Module:
    """The front's table of tokens; an image front has none and is refused."""
    plain = front if isinstance(front, Front) else front.front
    table: nn.Module = plain.model.get_input_embeddings()  # type: ignore[operator]
    if getattr(table, "num_embeddings", None) is None:
        raise InvalidInput("front", "read tokens", "images", "There are no tokens to find.")
    return table


def counted_tokens(batch: Mapping[str, Tensor], special: Tensor) -> Tensor:
    """Where the tokens stand that count [texts, rows]: no PAD, no special ones."""
    return (batch["attention_mask"] != 0) & ~torch.isin(batch["input_ids"], special)


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _bag_recalls(bags: list[set[int]], named: list[set[int]]) -> list[float]:
    """The share of each bag that was named; empty bags are left out."""
    return [len(bag & some) / len(bag) for bag, some in zip(bags, named, strict=True) if bag]


def _best_guesses(bags: list[set[int]], ranked: Tensor) -> list[set[int]]:
    """As many of the best guesses for each bag as it has tokens."""
    return [set(row[: len(bag)].tolist()) for bag, row in zip(bags, ranked, strict=True)]


def _shares(right: Tensor, text: Tensor) -> Tensor:
    """The share of each text that is right; texts without a token that counts are left out."""
    tokens = text.sum(dim=1)
    kept = tokens > 0
    return right.sum(dim=1)[kept].double() / tokens[kept]


def _best_fixed(ids: Tensor, text: Tensor) -> float:
    """The recall of the best guess per place that could have been made, chosen on these very texts."""
    weights = (text.double() / text.sum(dim=1, keepdim=True).clamp_min(1))[text]
    place = torch.arange(ids.shape[1]).expand_as(ids)[text]
    totals = torch.zeros(ids.shape[1], int(ids.max()) + 1, dtype=torch.float64)
    totals.index_put_((place, ids[text]), weights, accumulate=True)
    return float(totals.amax(dim=1).sum()) / max(1, int(text.any(dim=1).sum()))


def _best_lists(bags: list[set[int]]) -> float:
    """The recall of the best list for every size of bag, chosen on these very texts."""
    total = 0.0
    for size in {len(bag) for bag in bags}:
        tally = Counter(token for bag in bags if len(bag) == size for token in bag)
        total += sum(times for _, times in tally.most_common(size)) / size
    return total / max(1, len(bags))


def _ceiling(mechanism: Mechanism | None, releases: int, hindsight: float, *, lists: bool) -> float | None:
    if mechanism is None or not mechanism.guaranteed:
        return None
    together = compose(*[mechanism] * releases)
    if not lists:
        return attribute_ceiling(together, min(1.0, hindsight))
    levels = np.linspace(0.0, 20.0, 201)
    found = min(1.0, *(math.exp(e) * hindsight + together.delta(float(e)) for e in levels))
    if together.gaussian_mu == 0 and 0 < hindsight < 1:
        # Pure noise: the odds of each single event grow by e^epsilon at most, overlapping or not.
        odds = together.epsilon() + math.log(hindsight / (1 - hindsight))
        found = min(found, 1 / (1 + math.exp(-odds)))
    return found
