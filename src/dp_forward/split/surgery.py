"""Cutting a model in two, physically.

Both halves are made by `copy.deepcopy` with a memo in which the modules of the other half are already
answered: by a `Passage` where rows go by, by a shorter list of blocks, or by part of a block. So what belongs
to the other side is never copied, and everything that stays is Hugging Face's own class.
"""

import copy
from typing import Any

from torch import nn

from dp_forward.data.tokens import check_prompt
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.checks import count
from dp_forward.split.cut import Cut
from dp_forward.split.cut_modules import BlockHead, BlockTail, Passage, Pick, PooledBase, QkvHead, Repeats
from dp_forward.split.families import Family, Wiring, base_of, family_of, head_of, wiring_of
from dp_forward.split.halves import Back, Front, Split, add_width_maps
from dp_forward.split.legal_cuts import CutInfo, blocks_of, check_cut

__all__ = ["keep_blocks"]

Memo = dict[int, Any]


def split_model(
    model: Any,
    cut: str | Cut,
    *,
    width: int | None = None,
    allow_vocabulary_head: bool = False,
    pooling: str | None = None,
    prompt: str | None = None,
) -> Split:
    """Cut a Hugging Face model in two at a named point.

    ``width`` puts dimension maps to so many columns between the halves. ``allow_vocabulary_head`` lets a
    masked-LM head, whose weight is as large as the vocabulary, go to the provider. ``pooling`` (mean, cls,
    pooler or last) says what `output` reads, in place of what the model's own head does; the halves are then
    another model than the whole. ``prompt`` is a public template that the front's texts are put into, for a
    decoder; it is stored with the front, and `FixedLength` applies it.

    Guarantees: at every cut that `legal_cuts` calls exact, `back(front(x))` is the whole model's output bit
    for bit, for inputs without padding in eval mode on a CPU. Neither half shares memory with the other or
    with `model`, which is left untouched. Mode (train or eval), dtype, device and `requires_grad` are kept.
    Edges: the decoder of a masked LM has one row per token, and is usually the token table itself. A back
    that holds it is refused without `allow_vocabulary_head`; with it, it is a copy, tied to nothing. ALBERT's
    shared block becomes one copy per half, and one more where it is cut through.
    """
    head = head_of(model)
    if prompt is not None:
        check_prompt(prompt)
        if not family_of(model).causal:
            raise InvalidInput("prompt", "go with a decoder", type(model).__name__, "Leave it out.")
    info = check_cut(model, cut, pooling=pooling)
    rule = "have a head without a vocabulary, or the back would hold one row per token"
    remedy = "Pass allow_vocabulary_head=True if the provider may hold that table."
    refuse_if(head == "masked_lm" and not allow_vocabulary_head, "model", rule, type(model).__name__, remedy)
    front = Front(_front_model(model, info), info, model)
    front.prompt = prompt
    back = Back(_back_model(model, info.cut), info, model)
    front.train(model.training)
    back.train(model.training)
    return Split(front, back) if width is None else add_width_maps(front, back, width)


def keep_blocks(model: Any, blocks: int) -> None:
    """Leave only the first ``blocks`` of a model, in place; its final norm stays.

    The next word is settled in the last blocks of a decoder, so an earlier one often says more of the text.
    """
    family, base = family_of(model), base_of(model)
    known = len(blocks_of(model))
    count("blocks", blocks, remedy=f"The model has {known}.")
    rule = f"be at most {known}" if not family.shared_blocks else "be left out for shared blocks"
    refuse_if(blocks > known or family.shared_blocks, "blocks", rule, blocks, "See dpf cuts MODEL.")
    path, _, name = family.blocks.rpartition(".")
    setattr(base.get_submodule(path), name, nn.ModuleList(blocks_of(model)[:blocks]))
    types = getattr(base.config, "layer_types", None)
    if types is not None:
        base.config.layer_types = types[:blocks]
    base.config.num_hidden_layers = blocks


def _front_model(model: Any, info: CutInfo) -> nn.Module:
    family, base, blocks, cut = family_of(model), base_of(model), blocks_of(model), info.cut
    memo: Memo = {}
    kept = len(blocks) if cut.place == "output" else cut.block or 0
    through = blocks[kept - 1] if cut.point not in {None, "ffn_norm"} else None
    parts = [copy.deepcopy(block, memo) for block in blocks[: kept if through is None else kept - 1]]
    if through is not None:
        head = QkvHead if cut.point == "qkv" else BlockHead
        parts.append(head(through, _picker(through, base, memo), _inside(model), str(cut.point)))
    _answer(base, family.blocks, Repeats(parts) if family.shared_blocks else nn.ModuleList(parts), memo)
    if cut.place != "output":
        for path in family.final:
            _answer(base, path, Passage(), memo)
    half: nn.Module = copy.deepcopy(base, memo)
    if getattr(half, "pooler", None) is not None and info.readout != "pooler":
        half.register_module("pooler", None)
    _settle(half, family, range(len(parts)))
    return half


def _back_model(model: Any, cut: Cut) -> Any:
    family, base, blocks = family_of(model), base_of(model), blocks_of(model)
    memo: Memo = {}
    parts: list[nn.Module] = []
    if cut.place == "output":
        memo[id(base)] = PooledBase(copy.deepcopy(base.config, memo), bare=model is base)
    else:
        start = cut.block or 0
        if cut.point not in {None, "ffn_norm"}:
            block = blocks[start - 1]
            parts.append(BlockTail(block, _picker(block, base, memo), _inside(model), str(cut.point)))
        parts += [copy.deepcopy(block, memo) for block in blocks[start:]]
        _answer(base, family.blocks, Repeats(parts) if family.shared_blocks else nn.ModuleList(parts), memo)
        for path in family.entry:
            _answer(base, path, Passage(), memo)
        if family.dtype_probe:
            _answer(base, family.entry[0], Passage(probe=family.dtype_probe, dtype=base.dtype), memo)
        if family.fold_qkv and cut.point == "qkv":
            _answer(base, family.fold_qkv, nn.Unflatten(-1, (3, base.config.hidden_size)), memo)
    half: Any = copy.deepcopy(model, memo)
    _settle(half, family, range(len(blocks) - len(parts), len(blocks)))
    # Forget ties to the tables that stayed in the front, and hold every tensor under one name.
    names = set(half.state_dict())
    for target, source in dict(getattr(half, "all_tied_weights_keys", None) or {}).items():
        if {target, source} <= names:
            owner, _, name = source.rpartition(".")
            delattr(half.get_submodule(owner), name)
    half.all_tied_weights_keys = {}
    half.config.tie_word_embeddings = False
    # Causal classifiers refuse a batch without a PAD token; where rows are given, they never compare with it.
    if getattr(half.config, "pad_token_id", None) is None:
        half.config.pad_token_id = 0
    return half


def _picker(block: nn.Module, base: Any, memo: Memo) -> Pick:
    # A memo of its own: where a block is shared (ALBERT), the copy that runs whole must not be taken apart.
    # Only the settings stay one object for the whole half.
    own: Memo = {id(base.config): copy.deepcopy(base.config, memo)}
    return lambda path: copy.deepcopy(block.get_submodule(path), own)


def _inside(model: Any) -> Wiring:
    """The wiring of a block that is cut through, which is legal only where it is known."""
    wiring = wiring_of(model)
    assert wiring is not None
    return wiring


def _answer(base: Any, path: str, answer: nn.Module, memo: Memo) -> None:
    """Let the copy have `answer` at `path`, which a model may lack (ELECTRA projects where widths differ)."""
    part = dict(base.named_modules(remove_duplicate=False)).get(path)
    if part is not None:
        memo[id(part)] = answer


def _settle(half: Any, family: Family, kept: range) -> None:
    """Let the copied settings say what the half holds, and switch off every output but the one."""
    configs = {id(module.config): module.config for module in half.modules() if hasattr(module, "config")}
    for config in configs.values():
        types = getattr(config, "layer_types", None)
        if types is not None:
            config.layer_types = [types[index] for index in kept]
        config.num_hidden_layers = len(kept)
        if family.shared_blocks:
            # Hugging Face picks group i * groups / layers for step i; equal numbers make that step i.
            config.num_hidden_groups = len(kept)
        config.use_cache = False
        config.output_hidden_states = False
        config.output_attentions = False
        config.return_dict = True
