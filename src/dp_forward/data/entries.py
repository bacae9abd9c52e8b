"""Public lists of questions and answers, as files of rows."""

import os
from pathlib import Path
from typing import Final

from dp_forward.data.own_data import MOST_LABELS
from dp_forward.data.records import check_text, find_column, is_blank
from dp_forward.data.row_files import existing_path, read_rows
from dp_forward.errors import refuse_if

__all__ = ["read_entries"]

_LONGEST_ENTRY: Final = 200


def read_entries(source: str | os.PathLike[str]) -> dict[str, str | None]:
    """The public entries of a file of rows: question (or prompt) and answer, None where there is no answer.

    Args:
        source: a CSV, TSV, JSONL, JSON or Parquet file whose columns have usual names.

    Edges:
        An entry is its question, in one line of at most 200 letters, and stands there once.
    """
    found: dict[str, str | None] = {}
    question = answer = ""
    for row in read_rows(existing_path(Path(source)), name="entries"):
        if not question:
            question = find_column(row, "question", name="entries")
            answer = find_column(row, "answer", name="entries", known=(question,), may_lack=True)
        entry = " ".join(check_text(row, row.fields.get(question), question, name="entries").split())
        if len(entry) > _LONGEST_ENTRY or not entry.isprintable():
            rule = f"be printable questions of at most {_LONGEST_ENTRY} letters"
            raise row.wrong(rule, "another", "Shorten it: it is what users see.", name="entries")
        if entry in found:
            raise row.wrong("be there once each", "one again", "Remove it.", name="entries")
        reply = row.fields.get(answer) if answer else None
        found[entry] = None if is_blank(reply) else check_text(row, reply, answer, name="entries").strip()
    remedy = "The front chooses one of them."
    refuse_if(not 2 <= len(found) <= MOST_LABELS, "entries", f"number 2 to {MOST_LABELS}", len(found), remedy)
    return found
