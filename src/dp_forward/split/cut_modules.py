"""The small modules that stand where a model was cut: Hugging Face's own submodules, in another order.

Nothing here keeps state between calls, so both halves can be compiled, exported and run from several threads.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from dp_forward.split.families import Wiring

Pick = Callable[[str], nn.Module]
"""From a path below a block to a private copy of what stands there."""


class Passage(nn.Module):
    """Stands where a module of the front stood; the rows pass unchanged.

    Guarantees: no parameter, and nothing in the state dict.
    Edges: a table that is asked with indices only (positions) contributes an exact zero. At `probe` Hugging
    Face looks up `weight.dtype`: an empty buffer stands there and follows `.to(dtype)`.
    """

    def __init__(self, *, probe: str = "", dtype: torch.dtype | None = None) -> None:
        super().__init__()
        name, _, rest = probe.partition(".")
        if name:
            self.add_module(name, Passage(probe=rest, dtype=dtype))
        elif dtype is not None:
            self.register_buffer("weight", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.ndim > 2:  # OPT's positions get a mask of floats
                return tensor
        # An integer zero: adding it never changes the dtype of the rows.
        return tensors[0].new_zeros((*tensors[0].shape, 1), dtype=torch.long)


class PooledBase(nn.Module):
    """Stands where the whole base model stood, for the cut `output`: the one row is what the head reads.

    Edges: with `bare=True` no head follows, and the row is given as `pooler_output` alone.
    """

    def __init__(self, settings: Any, *, bare: bool) -> None:
        super().__init__()
        self.config = settings
        self.bare = bare

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        row = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point())
        output: Any = BaseModelOutputWithPoolingAndCrossAttentions
        return output(last_hidden_state=None if self.bare else row, pooler_output=row[:, 0])


class Repeats(nn.Module):
    """A list of blocks in which one block may stand several times; its weights are held once (ALBERT)."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        kinds = list(dict.fromkeys(blocks))
        self.kinds = nn.ModuleList(kinds)
        self.order = [kinds.index(block) for block in blocks]

    def __getitem__(self, index: int) -> nn.Module:
        return self.kinds[self.order[index]]

    def __len__(self) -> int:
        return len(self.order)


class Columns(nn.Module):
    """Some columns of the rows, laid out as a projection lays them, so that later products round alike."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def forward(self, rows: Tensor) -> Tensor:
        return rows[..., self.start : self.stop].contiguous()


class TwoLanes(nn.Module):
    """An attention module that adds the residual by itself, run so that the residual is exactly zero.

    The rows travel in a left lane of columns and the output of attention in a right lane that starts as zero:
    the module's own sum leaves there attention alone, as 0 + y is y in floating point.
    """

    def __init__(self, attention: nn.Module, wiring: Wiring, *, left: int, right: int, whole: bool) -> None:
        super().__init__()
        if whole:
            for name in wiring.qkv:
                projection = attention.get_submodule(name)
                setattr(attention, name, nn.Sequential(Columns(0, left), projection))
        merge = attention.get_submodule(wiring.merge)
        setattr(attention, wiring.merge, nn.Sequential(merge, nn.ZeroPad1d((left, 0))))
        norm = wiring.attention_norm.removeprefix(wiring.attention + ".")
        setattr(attention, norm, Columns(left, left + right))
        self.attention = attention
        self.right = right

    def forward(self, rows: Tensor, **named: Any) -> Any:
        return self.attention(functional.pad(rows, (0, self.right)), **named)


class AttentionBranch(nn.Module):
    """From the rows of a block to what attention adds to the residual.

    With `given=True` the rows are already [Q|K|V], and the projections into them are gone.
    """

    def __init__(self, block: nn.Module, pick: Pick, wiring: Wiring, *, given: bool = False) -> None:
        super().__init__()
        # The block's own loop passes some arguments by position; attention takes all of them by name.
        self.names = tuple(inspect.signature(type(block).forward).parameters)[2:]
        self.norm = nn.Identity() if given else _norm_in("pre", pick, wiring, wiring.attention_norm)
        attention = pick(wiring.attention)
        stop = 0
        for name in wiring.qkv if given else ():
            start, stop = stop, stop + projected_width(attention.get_submodule(name))
            setattr(attention, name, Columns(start, stop))
        if wiring.residual_inside:
            right = projected_width(attention.get_submodule(wiring.merge))
            left = stop if given else right
            attention = TwoLanes(attention, wiring, left=left, right=right, whole=not given)
        self.attention = attention
        self.projection = nn.Sequential(*(pick(path) for path in wiring.projection))

    def forward(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        named = {**dict(zip(self.names, args, strict=False)), **kwargs}
        mixed = self.attention(self.norm(rows), **named)
        projected: Tensor = self.projection(mixed[0] if isinstance(mixed, tuple) else mixed)
        return projected


def _ffn_branch(pick: Pick, wiring: Wiring) -> nn.Module:
    """From the rows after attention to what the feed-forward part adds to the residual."""
    chain = nn.Sequential(*(pick(path) for path in wiring.ffn))
    return nn.Sequential(OrderedDict(norm=_norm_in("pre", pick, wiring, wiring.ffn_norm), chain=chain))


def _norm_in(style: str, pick: Pick, wiring: Wiring, norm: str) -> nn.Module:
    """A pre-norm block has its norm at the start of a branch, a post-norm one after the residual sum."""
    return pick(norm) if wiring.style == style else nn.Identity()


class _Part(nn.Module):
    """One side of a block that was cut through."""

    def __init__(self, block: nn.Module, wiring: Wiring, point: str) -> None:
        super().__init__()
        self.point = point
        self.gives_tuple = wiring.gives_tuple
        for name in wiring.reads:
            setattr(self, name, getattr(block, name))

    def forward(self, rows: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = self._run(rows, *args, **kwargs)
        return (out,) if self.gives_tuple else out

    def _run(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError


class BlockHead(_Part):
    """A block from its input to a point inside it; the last thing the front runs."""

    def __init__(self, block: nn.Module, pick: Pick, wiring: Wiring, point: str) -> None:
        super().__init__(block, wiring, point)
        self.attention = AttentionBranch(block, pick, wiring)
        if point != "attention":
            self.after_attention = _norm_in("post", pick, wiring, wiring.attention_norm)
        if point == "ffn":
            self.ffn = _ffn_branch(pick, wiring)

    def _run(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        added: Tensor = self.attention(rows, *args, **kwargs)
        if self.point == "attention":
            return added
        attended: Tensor = self.after_attention(rows + added)
        if self.point == "attention_norm":
            return attended
        fed: Tensor = self.ffn(attended)
        return fed


class QkvHead(_Part):
    """The first block from its input to [Q|K|V]: row by row, without attention itself."""

    def __init__(self, block: nn.Module, pick: Pick, wiring: Wiring, point: str) -> None:
        super().__init__(block, wiring, point)
        self.norm = _norm_in("pre", pick, wiring, wiring.attention_norm)
        self.projections = nn.ModuleList(pick(f"{wiring.attention}.{name}") for name in wiring.qkv)

    def _run(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        normed = self.norm(rows)
        return torch.cat([projection(normed) for projection in self.projections], dim=-1)


class BlockTail(_Part):
    """A block from a point inside it to its output; the first thing the back runs.

    Guarantees: where the residual is dropped (`attention`, `ffn`, `qkv`), it is zero in the sums around it.
    """

    def __init__(self, block: nn.Module, pick: Pick, wiring: Wiring, point: str) -> None:
        super().__init__(block, wiring, point)
        if point == "qkv":
            self.attention = AttentionBranch(block, pick, wiring, given=True)
        if point in {"attention", "qkv"}:
            self.after_attention = _norm_in("post", pick, wiring, wiring.attention_norm)
        if point != "ffn":
            self.ffn = _ffn_branch(pick, wiring)
        self.after_ffn = _norm_in("post", pick, wiring, wiring.ffn_norm)

    def _run(self, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.point == "ffn":
            finished: Tensor = self.after_ffn(rows)
            return finished
        if self.point == "qkv":
            rows = self.attention(rows.flatten(2), *args, **kwargs)
        if self.point in {"attention", "qkv"}:
            rows = self.after_attention(rows)
        out: Tensor = self.after_ffn(rows + self.ffn(rows))
        return out


def projected_width(projection: nn.Module) -> int:
    """The number of columns that a projection gives (`nn.Linear`, or the Conv1D of GPT-2)."""
    width = getattr(projection, "out_features", None)
    return int(getattr(projection, "nf", 0) if width is None else width)
