"""Release each training record once, and train the back on the stored releases: any number of epochs.

The user releases and keeps the ledger; the provider gets a folder of integers and trains. Nothing of a text
is in that folder but what its one release tells. (So few records do not make a good model.)

    python examples/release_and_train.py
"""

import tempfile
from itertools import islice
from pathlib import Path

import torch

import dp_forward as dpf
from dp_forward.corpus.writer import ledger_of, release_corpus
from dp_forward.data import EncodedTexts, find_task, read_records
from dp_forward.errors import BudgetExhausted
from dp_forward.ledger import Ledger
from dp_forward.privacy import Budget, NoiseSpec, RandomizedResponse, calibrate
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import load_user_side, save_sides
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.provider_training import finetune_from_releases

task = find_task("rotten-tomatoes")
torch.manual_seed(0)
pair = dpf.split(load_model("minilm", labels=2), cut="output")
noise = NoiseSpec(mechanism="privunit", epsilon=8.0)
spec = ReleaseSpec.of(pair.front, noise=noise, rows=32, labels=task.labels)

with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    save_sides(pair, spec, load_tokenizer("minilm"), root / "run")  # run/front, run/back

    # The user: every record once, text and label, charged before anything is drawn.
    user = load_user_side(root / "run" / "front")
    records = EncodedTexts.from_records(islice(read_records(task, "train"), 200), user.tokens)
    labels = calibrate(RandomizedResponse, Budget(epsilon=2.0), labels=2)
    own = {"label_mechanism": labels, "register": root / "register"}  # yours is in ~/.local/share/dp-forward
    corpus = release_corpus(user, records, root / "shards", **own)
    print(f"released {len(corpus)} records in {corpus.bytes} bytes")
    print(corpus.guarantee.statement)
    with Ledger.open(ledger_of(root / "shards")) as ledger:
        print(ledger)
    try:
        release_corpus(user, records, root / "again", **own)
    except BudgetExhausted as refusal:
        print(f"a second release is refused: {refusal}")

    # The provider: twelve epochs over the stored releases, and no more is spent.
    plan = ReleasesPlan(releases=str(root / "shards"), model=str(root / "run"))
    report = finetune_from_releases(plan, folder=root / "better")
    print(f"trained on stored releases; right on {report['accuracy']:.0%} of those held out")
