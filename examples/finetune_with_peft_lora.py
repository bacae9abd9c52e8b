"""LoRA on the back, with peft: the front stays as it was published, and few numbers train.

Every step draws fresh noise, so a text that is used twice is released twice. In a deployment, release each
text once and train on what was stored: release_and_train.py.

    python examples/finetune_with_peft_lora.py
"""

from itertools import islice

import torch
from peft import LoraConfig, get_peft_model

import dp_forward as dpf
from dp_forward.data import EncodedTexts, FixedLength, find_task, read_records
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.split.pretrained import load_model, load_tokenizer

torch.manual_seed(0)
pair = dpf.split(load_model("minilm", labels=2), cut="encoder.3")
mechanism = calibrate(PrivUnit, Budget(epsilon=16.0), bound=normalise(1.0), unit=TEXT)
private = dpf.join(pair, dpf.Sanitizer(mechanism, seed=0))

# peft finds the linear layers of the back by name; it freezes all that is not named, the front too.
lora = LoraConfig(
    r=8, lora_alpha=16, target_modules=r"back\..*\.(query|value)", modules_to_save=["classifier"]
)
model = get_peft_model(private, lora)
trains = [name for name, weight in model.named_parameters() if weight.requires_grad]
count = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
print(f"{count} of {sum(weight.numel() for weight in model.parameters())} weights train")
print(f"of the front: {sum('.front.' in name for name in trains)} tensors")

records = islice(read_records(find_task("rotten-tomatoes"), "train"), 96)
texts = EncodedTexts.from_records(records, FixedLength(load_tokenizer("minilm"), 32))
optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), lr=1e-3)
for step in range(6):
    output = model(**texts.batch(range(16 * step, 16 * (step + 1))))
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step + 1}: loss {output.loss.item():.3f}")

merged = model.merge_and_unload()
print(f"merged: an ordinary {type(merged).__name__} again -> {mechanism.promise()} per query")
