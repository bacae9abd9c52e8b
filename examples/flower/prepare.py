"""Make a federation in a folder: the front that everybody gets, and the files of every user.

    python prepare.py FOLDER [NODES] [RECORDS]

Each of 50 users gets 40 labelled sentences of Rotten Tomatoes to learn from, and 10 to evaluate on.
"""

import csv
import sys
from itertools import islice
from pathlib import Path

from dp_forward.data import find_task, read_records
from dp_forward.train.closed_form_training import prepare_projection

PHRASES = {
    "negative": ["a bad film", "dull and boring", "a waste of time", "badly acted", "I hated it"],
    "positive": ["a good film", "moving and funny", "well worth seeing", "beautifully acted", "I loved it"],
}


def main(folder: Path, nodes: int = 50, records: int = 40, held_out: int = 10) -> None:
    labels, epsilon = list(PHRASES), 4.0
    made = prepare_projection("minilm", labels, records=nodes * records, epsilon=epsilon, describe=PHRASES)
    made.save(folder / "projection")
    sentences = read_records(find_task("rotten-tomatoes"), "train")
    for number in range(nodes):
        place = folder / "nodes" / str(number)
        place.mkdir(parents=True)
        for name, count in (("records", records), ("held_out", held_out)):
            with (place / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                rows = ((one.text, labels[one.label]) for one in islice(sentences, count))
                csv.writer(file).writerows([("text", "label"), *rows])
    print(f"{nodes} users with {records} + {held_out} records each, epsilon {epsilon} per record: {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *map(int, sys.argv[2:]))
