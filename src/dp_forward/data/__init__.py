"""Texts and labels into records of a fixed public length.

task = find_task("sst2")
records = read_records(task, "train", source="folder/with/train.tsv")     # lazy, checked row by row
encoded = EncodedTexts.from_records(records, FixedLength(tokenizer, 64))   # token ids, no texts
"""

from dp_forward.data.encoded import EncodedTexts, ready
from dp_forward.data.pieces import pieces
from dp_forward.data.records import Record
from dp_forward.data.sources import parse_data_option, read_records
from dp_forward.data.tasks import TASKS, Task, find_task
from dp_forward.data.tokens import FixedLength

__all__ = [
    "TASKS",
    "EncodedTexts",
    "FixedLength",
    "Record",
    "Task",
    "find_task",
    "parse_data_option",
    "pieces",
    "read_records",
    "ready",
]
