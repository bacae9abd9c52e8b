"""Tasks, data sources, and texts as records of a fixed public length.

>>> task = find_task("sst2")
>>> records = read_records(task, "train", source="train.tsv")  # lazy, checked row by row
>>> EncodedTexts.from_records(records, FixedLength(tokenizer, 12))  # token ids, no texts
EncodedTexts(256 records of 12 rows, labelled)
"""

from typing import TYPE_CHECKING

from dp_forward.data.public_text import cut_into_sentences
from dp_forward.data.records import Record, read_records, sample_records
from dp_forward.data.sources import parse_data_option
from dp_forward.data.tasks import TASKS, Task, find_task
from dp_forward.data.tokens import FixedLength
from dp_forward.optional_packages import load_lazily

if TYPE_CHECKING:
    from dp_forward.data.encoded_texts import EncodedTexts as EncodedTexts
    from dp_forward.data.encoded_texts import collate as collate
    from dp_forward.data.encoded_texts import read_texts as read_texts

__all__ = [
    "TASKS",
    "EncodedTexts",
    "FixedLength",
    "Record",
    "Task",
    "collate",
    "cut_into_sentences",
    "find_task",
    "parse_data_option",
    "read_records",
    "read_texts",
    "sample_records",
]

__getattr__, __dir__ = load_lazily(
    __name__, dict.fromkeys(("EncodedTexts", "collate", "read_texts"), "dp_forward.data.encoded_texts")
)
