"""Fine-tune through the noise with the Hugging Face Trainer: a joined model is an ordinary module.

This is `end-to-end`, as in the paper's experiments: the front learns from raw texts, so later *queries* are
protected and the training texts are not. For protected training texts see release_and_train.py.

    python examples/finetune_with_trainer.py
"""

import tempfile
from itertools import islice

from transformers import Trainer, TrainingArguments, set_seed

import dp_forward as dpf
from dp_forward.data import EncodedTexts, FixedLength, collate, find_task, read_records
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.split.pretrained import load_model, load_tokenizer

set_seed(0)
pair = dpf.split(load_model("minilm", labels=2), cut="output", width=4)  # four columns cross
mechanism = calibrate(PrivUnit, Budget(epsilon=8.0), bound=normalise(1.0), unit=TEXT)
private = dpf.join(pair, dpf.Sanitizer(mechanism, seed=0), draws=4)  # four noisy draws of each text

tokens = FixedLength(load_tokenizer("minilm"), 32)
records = islice(read_records(find_task("rotten-tomatoes"), "train"), 48)
texts = EncodedTexts.from_records(records, tokens)

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=private,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=6,
            per_device_train_batch_size=8,
            learning_rate=2e-4,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_steps=3,
        ),
        train_dataset=texts,
        data_collator=collate,  # EncodedTexts gives whole batches
    )
    result = trainer.train()

print(f"{result.global_step} steps, mean loss {result.training_loss:.3f}")
print("training texts: NOT protected; the front learnt from them as they are")
print("queries:", private.guarantee().statement)
