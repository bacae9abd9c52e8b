"""The front as ONNX: a user asks without torch.

``front.onnx`` holds no weights: it points into the ``model.safetensors`` beside it. It reads one text of the
fixed public length. ``half.json`` names its SHA-256, so the digest of the front covers it, and
``max_difference``: how far its hidden matrix was from torch's on the texts that it was checked with.

Guarantees:
    A release drawn from either front is the same mechanism: bound, integers and noise come after the hidden
    matrix (`noise.released`) and hold for any, so its last bits may differ. The ledger knows a text by its
    tokens, which both read alike (checked when it is saved): no text is drawn for twice on two machines.
    A graph that names any other file than ``model.safetensors`` beside it is refused before it is loaded: it
    would read what no digest covers, or what is the user's own.
Edges:
    A promise per token or phrase needs rows that do not mix. Code here makes it so in a torch front; what an
    ONNX file computes, and in what time, is known to its maker alone. So there is none for such noise.
    Who does not trust the maker that far passes ``load_user_side(folder)``, the torch front, to the client.
    There is none where ``onnxscript`` is not installed, ``DPF_ONNX`` is 0, the model cannot be exported, or
    the difference is above 1e-4 of the norm; the last two warn. Such a front asks with torch.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.data import FixedLength
from dp_forward.data.tokens import FastTokenizer, tokenizer_facts, tokens_for
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.split.cut import Cut, parse_cut
from dp_forward.split.half_files import ONNX, TOKENIZER
from dp_forward.storage.digests import file_digest
from dp_forward.storage.files import write_file

if TYPE_CHECKING:
    from dp_forward.split.halves import AnyFront

SWITCH: Final = "DPF_ONNX"
_TOLERANCE: Final = 1e-4
_WEIGHTS: Final = "model.safetensors"
_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "Sparse", 23: "Sparse"},
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}
"""Fields of ONNX messages (onnx.proto) that hold tensors, or what holds them; an entry tells where one is."""
_ODD_TEXTS: Final = ("a", "a quiet, generous film", "naïve 🙂 ٣ 映画 [SEP]\t</s>", "Long words! " * 2000)
"""Cut, padded, unknown, special: both tokenizers must read them alike."""

Tokens = Mapping[str, NDArray[np.int64]]


class OnnxFront:
    """A front that onnxruntime computes, on one thread: forks may share it, and no pool rounds otherwise."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._file = folder / ONNX
        self.cut: Cut = parse_cut(settings["cut"])
        self.width, self.pads_left = int(settings["onnx"]["width"]), bool(settings["onnx"]["pads_left"])
        self.row_local = False  # nobody has proved it; see the module

    def start(self) -> None:
        """Load the graph; `hidden` needs it."""
        import onnxruntime

        others = set(_external_files(self._file.read_bytes())) - {_WEIGHTS}
        refuse_if(others, "front", f"read {_WEIGHTS} alone", "a graph that names others", "Do not use it.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(self._file, options, providers=["CPUExecutionProvider"])
        self._names = [given.name for given in self._session.get_inputs()]

    def hidden(self, tokens: Tokens) -> NDArray[np.float32]:
        """The hidden matrix [1, rows, width] of one text's tokens [1, rows]."""
        found: NDArray[np.float32] = self._session.run(None, {name: tokens[name] for name in self._names})[0]
        return found


def _external_files(data: bytes, kind: str = "Model") -> Iterator[str]:
    """The files that an ONNX message takes tensors from: every field that may hold one is walked."""
    fields = list(_fields(data))
    if kind == "Entry":
        named = (1, b"location") in fields
        yield from (value.decode("utf-8", "replace") for number, value in fields if named and number == 2)
        return
    for number, value in fields:
        if number in _MESSAGES[kind]:
            yield from _external_files(value, _MESSAGES[kind][number])


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message that hold bytes; ValueError for what is no message."""
    at = 0

    def varint() -> int:
        nonlocal at
        for shift in range(0, 70, 7):
            byte, at = data[at], at + 1
            if byte < 128:
                return sum((data[at - 1 - k] & 127) << (shift - 7 * k) for k in range(shift // 7 + 1))
        raise ValueError

    while at < len(data):
        number, kind = divmod(varint(), 8)
        size = {0: 0, 1: 8, 5: 4}.get(kind) if kind != 2 else varint()
        if kind == 0:
            varint()
        if size is None or at + size > len(data):
            raise ValueError
        if kind == 2:
            yield number, data[at : at + size]
        at += size


def light_tokens(folder: Path, settings: Mapping[str, Any]) -> FixedLength:
    """The tokenizer of a saved front that has ONNX, without transformers."""
    entry = settings["onnx"]
    tokenizer = FastTokenizer(folder / TOKENIZER / "tokenizer.json", entry["tokenizer"])
    return FixedLength(tokenizer, settings["rows"], causal=entry["pads_left"], prompt=settings.get("prompt"))


def export_front(
    front: AnyFront, tokenizer: Any, folder: Path, settings: dict[str, Any], *, of: str, known: Any
) -> dict[str, Any] | None:
    """Write ``front.onnx`` beside the saved weights, and check it; returns what ``half.json`` says of it.

    ``settings`` and ``of``, the digest, are those of the front as it was saved without. ``known``, what was
    said of an earlier export, is returned where it is of that very front, whose digest then stays the same.
    """
    file = folder / ONNX
    same = isinstance(known, dict) and known["of"] == of and file.is_file()
    if same and known["sha256"] == file_digest(file):
        return dict(known)
    file.unlink(missing_ok=True)
    off = os.environ.get(SWITCH) == "0" or not all(map(find_spec, ("onnxscript", "onnxruntime")))
    if off or not (folder / TOKENIZER / "tokenizer.json").is_file():
        return None
    fixed = tokens_for(front, tokenizer, settings["rows"])
    entry: dict[str, Any] = {"of": of, "width": front.width, "pads_left": front.pads_left}
    entry["tokenizer"] = tokenizer_facts(tokenizer)
    made = copy.deepcopy(front).cpu().train(False)
    try:
        write_file(file, _export(made, fixed, folder))
        entry["max_difference"] = _check(made, fixed, folder, {**settings, "onnx": entry})
    except Exception as error:  # exporters raise anything; the front itself is saved
        why = str(error) if isinstance(error, InvalidInput) else type(error).__name__
        warnings.warn(f"No {ONNX} was made, so this front asks with torch: {why}", stacklevel=2)
        file.unlink(missing_ok=True)
        return None
    return entry | {"sha256": file_digest(file)}


def _export(front: AnyFront, fixed: FixedLength, folder: Path) -> bytes:
    """The graph, with its weights where they lie in ``model.safetensors``, and no path of this machine."""
    import onnx_ir
    import torch
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Not optimised: every weight is still one of the saved tensors. onnxruntime does it at the start.
            text = dict(fixed.encode([_ODD_TEXTS[1]]))
            made = torch.onnx.export(front, (), kwargs=text, dynamo=True, optimize=False, verbose=False)
    finally:
        quiet.setLevel(level)
    assert made is not None
    model = ClearMetadataAndDocStringPass()(made.model).model
    with (folder / _WEIGHTS).open("rb") as weights:
        size = int.from_bytes(weights.read(8), "little")
        stored = json.loads(weights.read(size))
    for name, value in model.graph.initializers.items():
        known, tensor = stored.get(name), value.const_value
        if tensor is None or known is None or known["dtype"] != "F32" or known["shape"] != list(tensor.shape):
            continue  # a buffer that is not saved: it stays in the graph
        start, end = (8 + size + offset for offset in known["data_offsets"])
        more: Any = {"shape": onnx_ir.Shape(known["shape"]), "name": name, "base_dir": folder}
        value.const_value = onnx_ir.ExternalTensor(_WEIGHTS, start, end - start, tensor.dtype, **more)
    return bytes(onnx_ir.to_proto(model).SerializeToString())


def _check(front: AnyFront, fixed: FixedLength, folder: Path, settings: dict[str, Any]) -> float:
    """The largest difference of any entry between the two fronts; refuses other tokens, or another matrix."""
    import torch

    light, largest = OnnxFront(folder, settings), 0.0
    light.start()
    for tokens in _token_cases(front, fixed, light_tokens(folder, settings)):
        with torch.inference_mode():
            wanted = front(**{name: torch.from_numpy(values) for name, values in tokens.items()}).numpy()
        away = np.abs(light.hidden(tokens) - wanted)
        if not np.linalg.norm(away) <= _TOLERANCE * np.linalg.norm(wanted):
            rule = f"give torch's hidden matrix within {_TOLERANCE} of its norm"
            raise InvalidInput(ONNX, rule, "another", "Try other versions of onnxscript and onnxruntime.")
        largest = max(largest, float(away.max()))
    return largest


def _token_cases(front: AnyFront, fixed: FixedLength, light: FixedLength) -> Iterator[Tokens]:
    """Odd texts, alone and in pairs where a pair fits; random ids at full length; nothing but PAD."""
    pairs = fixed.prompt is None and fixed.length >= light.tokenizer.num_special_tokens_to_add(pair=True)
    seconds = _ODD_TEXTS[1:3] if pairs else ()
    for first, second in itertools.product(_ODD_TEXTS, (None, *seconds)):
        parts = [[first]] if second is None else [[first], [second]]
        tokens, cut = fixed.encode_arrays(*parts)
        same, cut_too = light.encode_arrays(*parts)
        alike = tokens.keys() == same.keys() and all(np.array_equal(tokens[n], same[n]) for n in tokens)
        if cut != cut_too or not alike:
            raise InvalidInput("tokenizer.json", "read as the tokenizer does", "otherwise", "Ask with torch.")
        yield tokens
    words = np.random.default_rng(0).integers(0, front.plain.settings["vocab_size"], (1, fixed.length))
    yield tokens | {"input_ids": words, "attention_mask": np.ones_like(words)}
    if front.cut.place != "output":  # where the one row of no text is anything
        nothing = {name: np.zeros_like(values) for name, values in tokens.items()}
        yield nothing | {"input_ids": np.full_like(words, fixed.tokenizer.pad_token_id)}
