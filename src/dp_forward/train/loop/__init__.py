"""The training path: loss, noise, Trainer, averages, LoRA."""
