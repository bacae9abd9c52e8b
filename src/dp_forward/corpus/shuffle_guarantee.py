r"""Central guarantee of a corpus whose records came through a shuffler, with its proof.

A collector that takes records from a shuffler sees each batch as a set: no sender, no time, no order. A
record then hides among the others of its batch, and the promise per record can be better than the local one.

Proof. Neighbours are two collections that differ in one record, which is replaced (with another of the same
label, where labels are public). How many records there are, in which batches, and with which public labels
is the same for both, and known to the attacker.

1. *One randomizer.* Every record is the output of the same local randomizer on its own input: the noise on
   the hidden matrix, and, where labels are randomized, the answer about the label with a coin of its own.
   Both together are one randomizer of the record. For pure noise its ratio of probabilities is at most
   ``e^(eps_text + eps_label)`` for *any* two records, as the ratios of independent parts multiply. Where the
   label is folded into the release (`noise.folded_record`), that is one randomizer of the whole record, with
   a ratio of at most ``e^eps`` for any two records: nothing is added for the label.
2. *One batch.* A record is in exactly one batch. The other batches are drawn from other records, with coins
   of their own, so they tell nothing about this one: its promise is that of its batch. All records are
   promised what the worst batch promises; nothing adds up over batches.
3. *Hiding.* Within a batch of N each of the N - 1 others sends, with a known probability, what tells nothing
   about its own record. Two theorems count them, and the least epsilon is taken: the privacy blanket (Balle
   et al. 2019; PrivUnit and randomized response, see `privacy.shuffling.blanket`), and the clones (Feldman,
   McMillan and Talwar 2021; any pure noise, and Gaussian, see `privacy.shuffling.clones`).
   Both need a promise between *any* two inputs, not only between neighbours. A
   promise per token is about texts that differ in one token, and says nothing about how like two strangers'
   releases are. So there is no central promise here for noise that protects less than a text
   (`hides_whole_texts`).
4. *Public labels.* A label that can be seen splits a batch into one set for each label. Only the records of
   the same label hide each other, so N is the number of those; the worst is the least that is not 0.
5. *The smallest is the worst.* A shuffled set of N is post-processing of a shuffled set of N' < N that holds
   the record, and the N - N' others handed over one by one. So what is proved for the smallest set holds for
   every larger one, and one number is enough. (The formula for Gaussian noise, which holds the term
   ``N delta0``, need not show that by itself.)

Guarantees:
    `central_promise` gives a number only for a corpus all of whose records came in batches, at the size of
    the smallest set in which a record hides. ``upper`` is never above what the
    local proof gives: the pure epsilon, or for Gaussian noise that at the same delta.
Edges:
    The sizes are what the collector wrote down; a user who trusts the shuffler alone has its word that no
    batch is smaller than its ``least``, which with public labels says nothing about one label.
    A record that a shuffler refuses only makes the count of the others too low here, which is the safe side.

Paper: Section 3.4 assumes that pairs are shuffled and does not say by whom; public labels are its SeqDP
(Definition 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dp_forward.corpus.corpus_spec import CorpusSpec, LabelMechanism
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import RECORD, TEXT, Deployment, Notion, RandomizedResponse
from dp_forward.privacy.checks import count
from dp_forward.privacy.shuffling import CentralBounds
from dp_forward.privacy.shuffling.central_epsilon import ASSUMPTIONS, SHUFFLER

__all__ = ["ShuffledBatch", "central_promise", "hides_whole_texts"]

_KEYS: Final = {"records", "by_label"}
_FROM_SHUFFLER: Final = "Only records that came through a shuffler have a central promise."


@dataclass(frozen=True, slots=True)
class ShuffledBatch:
    """One sealed batch of so many ``records``; where labels are public, so many of each (``by_label``)."""

    records: int
    by_label: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count("records", self.records, remedy="A batch holds records.")
        if self.by_label is None:
            return
        if not isinstance(self.by_label, tuple):
            raise InvalidInput("by_label", "be a tuple of counts", type(self.by_label).__name__, "Or None.")
        for found in self.by_label:
            count("by_label", found, at_least=0, remedy="Count the records of each label.")
        rule, remedy = f"sum to the {self.records} records", "Count them again."
        refuse_if(sum(self.by_label) != self.records, "by_label", rule, sum(self.by_label), remedy)

    @property
    def least(self) -> int:
        """In how large a set a record of this batch hides, itself included, at worst."""
        return self.records if self.by_label is None else min(filter(None, self.by_label))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"records": self.records, "by_label": None if self.by_label is None else list(self.by_label)}

    @classmethod
    def from_dict(cls, settings: Any) -> Self:
        """From JSON; anything but what `as_dict` writes is refused."""
        if not isinstance(settings, dict) or settings.keys() != _KEYS:
            raise InvalidInput("batch", "have the keys by_label and records", "others", "Update dp-forward.")
        by_label = settings["by_label"]
        return cls(settings["records"], tuple(by_label) if isinstance(by_label, list) else by_label)


def hides_whole_texts(spec: CorpusSpec) -> bool:
    """Whether any two texts are alike to the noise: only then is there a central promise (see the module)."""
    return spec.release.mechanism().unit in (TEXT, RECORD)


def shuffled_deployment(spec: CorpusSpec, batches: Sequence[ShuffledBatch]) -> Deployment:
    """One record among the fewest that hide it, in a corpus that came in these batches.

    Edges:
        `InvalidInput` without batches, for batches that do not make up the corpus, and for noise that
        protects less than a text: see the module. Where nothing is gained ``central`` says so, and its
        ``upper`` is the local epsilon.
    """
    check_batches(spec, batches)
    users = min(batch.least for batch in batches)
    text = spec.release.mechanism()
    remedy = "For less than a text there is the local promise alone."
    refuse_if(not hides_whole_texts(spec), "unit", "be text for a central promise", str(text.unit), remedy)
    if isinstance(spec.labels, LabelMechanism) and spec.labels.releases != 1:
        raise InvalidInput("label releases", "be 1", spec.labels.releases, "A record holds one label.")
    label = None
    if isinstance(spec.labels, LabelMechanism):
        # A label outside the top k of a prior is answered by a uniform one of them: a mixture of the k
        # answers, from which a distance (being convex) is at most the largest one between two of them.
        among = len(spec.labels.top)
        if among > 1:  # one answer says nothing
            label = RandomizedResponse(spec.labels.label_epsilon, among)
    return Deployment(text, label, shuffled=users, public_label=spec.labels == "public")


def central_promise(spec: CorpusSpec, batches: Sequence[ShuffledBatch], *, delta: float) -> dict[str, Any]:
    """What is proved for these ``batches``, and what an attack shows: never without what it rests on."""
    deployment = shuffled_deployment(spec, batches)
    reading = deployment.central(delta, with_estimate=False)
    assert reading is not None  # there is a shuffler
    return {
        "epsilon_upper": reading.upper.epsilon,
        "epsilon_lower": reading.lower.epsilon,
        "central_bound": reading.upper.bound,
        "delta": delta,
        "notion": str(deployment.central_notion),
        "trusted": reading.upper.trusted,
        "batches": len(batches),
        "statements": central_statement(reading, batches),
        "assumptions": list(ASSUMPTIONS[SHUFFLER]),
    }


def central_statement(reading: CentralBounds, batches: Sequence[ShuffledBatch]) -> list[str]:
    """The central promise in sentences, what it rests on included."""
    sizes = [batch.records for batch in batches]
    between = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    came = f"The records came in {len(sizes)} shuffled batch{'es' if len(sizes) > 1 else ''} of {between}."
    least = min(batch.least for batch in batches)
    about = "record, replaced by another"
    if batches[0].by_label is not None:
        about = f"text, replaced by another with the same label ({Notion.SEQ_DP})"
        came += f" Labels are public, so a record hides among the {least} or more of its label in its batch."
    rests = reading.upper.rests_on
    if not reading.upper.assumptions:
        could = "; and if ".join(ASSUMPTIONS[SHUFFLER])
        rests = f"The shuffler adds nothing proved here. It could only if {could}."
    return [
        f"About one {about}; not about all the records of a person. {reading.upper.statement}",
        came,
        reading.lower.statement,
        rests,
    ]


def check_batches(spec: CorpusSpec, batches: Sequence[ShuffledBatch]) -> None:
    """Refuse batches that do not make up the corpus."""
    refuse_if(not batches, "batches", "be at least one", 0, _FROM_SHUFFLER)
    total = sum(batch.records for batch in batches)
    refuse_if(total != spec.records, "batches", f"make up the {spec.records} records", total, _FROM_SHUFFLER)
    for batch in batches:
        if (spec.labels == "public") != (batch.by_label is not None):
            found = "none" if batch.by_label is None else "counts"
            raise InvalidInput("by_label", "be given where labels are public", found, "And nowhere else.")
        if batch.by_label is not None and len(batch.by_label) != len(spec.release.labels):
            rule = f"count {len(spec.release.labels)} labels"
            raise InvalidInput("by_label", rule, len(batch.by_label), "Count every label, 0 included.")
