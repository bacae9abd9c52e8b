"""Which cuts a given model allows, and what would cross at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dp_forward.errors import InvalidInput
from dp_forward.split.cut import POINTS, Cut, nearest, parse_cut
from dp_forward.split.families import Readout, base_of, family_of, readout_of, wiring_of

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_cut"]


@dataclass(frozen=True, slots=True)
class CutInfo:
    """A legal cut of one model, and how many columns cross there."""

    cut: Cut
    width: int
    exact: bool
    """Whether the halves give the whole model's output bit for bit on a CPU. Not where a residual is dropped;
    nor at `output` of a causal classifier, whose head Hugging Face applies to all rows before it picks the
    last one: a product with one row rounds differently than one with many (about 1e-7)."""
    readout: Readout | None = None
    """At `output`: how the one row is read."""
    pooling: str | None = None
    """At `output`: the pooling that was asked for; None for what the model's own head reads."""

    @property
    def shape(self) -> str:
        """The one tensor that crosses, per record."""
        return f"{'1' if self.cut.place == 'output' else 'n'} x {self.width}"


def blocks_of(model: Any) -> list[nn.Module]:
    """The blocks in the order in which they run; a shared block stands as often as it runs."""
    family, base = family_of(model), base_of(model)
    stored = list(base.get_submodule(family.blocks))
    if not family.shared_blocks:
        return stored
    steps = base.config.num_hidden_layers
    return [stored[int(step / (steps / len(stored)))] for step in range(steps)]


def legal_cuts(model: Any) -> list[CutInfo]:
    """Every legal cut of a ``model`` of Hugging Face, from the text to the head.

    Guarantees: `split_model` takes each of them, and no other.
    Edges: blocks are cut only between where their parts do not follow one another (Phi, GPT-NeoX with a
    parallel residual) or are not those of the family's row (OPT-350m, groups of several ALBERT layers);
    `output` needs a head that reads one row, so a masked LM and a bare model without a pooler have none.
    """
    return [_info(model, cut) for cut in _cuts(model)]


def check_cut(model: Any, cut: str | Cut, *, pooling: str | None = None) -> CutInfo:
    """The cut, if it is legal for this model; ``pooling`` (of `families.POOLINGS`) is for `output` alone.

    Edges: otherwise one line with the rule, the value and the nearest legal cuts.
    """
    names = [str(legal) for legal in _cuts(model, pooling)]
    parsed = parse_cut(cut, among=names)
    if pooling is not None and parsed.place != "output":
        raise InvalidInput("pooling", "go with the cut output", pooling, "Leave it out.")
    if str(parsed) in names:
        return _info(model, parsed, pooling)
    depth = len(blocks_of(model))
    rule = "lie between blocks, since the parts of a block here cannot be told apart"
    if parsed.place == "output":
        rule = f"be at rows of the encoder, since {type(model).__name__} has no head that reads one row"
    elif parsed.block is not None and parsed.block > depth:
        rule = f"name a block from 1 to {depth}"
    raise InvalidInput("cut", rule, str(parsed), nearest(str(parsed), names))


def _cuts(model: Any, pooling: str | None = None) -> list[Cut]:
    inside = [] if wiring_of(model) is None else [point for point in POINTS if point != "qkv"]
    cuts = [Cut("embeddings")]
    if inside:
        cuts.append(Cut("encoder", 1, "qkv"))
    for k in range(1, len(blocks_of(model)) + 1):
        cuts += [*(Cut("encoder", k, point) for point in inside), Cut("encoder", k)]
    return cuts if readout_of(model, pooling) is None else [*cuts, Cut("output")]


def _info(model: Any, cut: Cut, pooling: str | None = None) -> CutInfo:
    config = base_of(model).config
    readout = readout_of(model, pooling) if cut.place == "output" else None
    width = int(config.hidden_size)
    if cut.point == "qkv":
        wiring = wiring_of(model)
        assert wiring is not None  # or the cut were not legal
        attention = blocks_of(model)[0].get_submodule(wiring.attention)
        from dp_forward.split.cut_modules import projected_width

        width = sum(projected_width(attention.get_submodule(name)) for name in wiring.qkv)
    elif readout == "pooler":
        width = int(getattr(config, "pooler_output_size", None) or width)
    elif cut.place == "output":
        width = int(getattr(config, "word_embed_proj_dim", width))  # OPT-350m ends in a projection
    own = pooling is None
    return CutInfo(cut, width, own and not cut.drops_residual and readout != "last", readout, pooling)
