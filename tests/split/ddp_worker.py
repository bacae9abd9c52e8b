"""Twenty Trainer steps on a joined tiny model, for test_private_model_trainer.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from dp_forward.noise import Sanitizer
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.split import split_model
from dp_forward.split.private_model import join


class Watched(Sanitizer):
    """Remembers a fingerprint of the noise it drew."""

    seen: list[float]

    def _noisy(self, inside: torch.Tensor) -> torch.Tensor:
        noisy: torch.Tensor = super()._noisy(inside)
        self.seen.append(float((noisy - inside).detach().double().sum()))
        return noisy


def main(out: Path) -> None:
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
    )
    pair = split_model(BertForSequenceClassification(shape), "encoder.1")
    mechanism = calibrate(PrivUnit, Budget(16.0), bound=normalise(1.0), unit=TEXT)
    sanitizer = Watched(mechanism, seed=11)
    sanitizer.seen = []
    ids = torch.randint(5, 60, (64, 8))
    records = [
        {"input_ids": row, "attention_mask": torch.ones(8, dtype=torch.long), "labels": int(row[0] > 30)}
        for row in ids
    ]
    arguments = TrainingArguments(
        output_dir=str(out / "run"),
        max_steps=20,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=5,
        seed=3,
        disable_tqdm=True,
    )
    model = join(pair, sanitizer, draws=2)
    before = model.front.state_dict()["model.embeddings.word_embeddings.weight"].clone()
    trained = Trainer(model=model, args=arguments, train_dataset=records).train()
    after = model.front.state_dict()["model.embeddings.word_embeddings.weight"]
    rank = int(os.environ.get("RANK", "0"))
    weights = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
    (out / f"rank{rank}.json").write_text(
        json.dumps(
            {
                "steps": trained.global_step,
                "loss": trained.training_loss,
                "noise": sanitizer.seen,
                "weights": weights,
                "front_moved": not torch.equal(before, after),
                "world": int(os.environ.get("WORLD_SIZE", "1")),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if torch.distributed.is_initialized():
        # Leaving while the other rank still talks would abort it.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
