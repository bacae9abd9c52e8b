"""Your own model: any supported Hugging Face class can be cut; here a tiny random Qwen classifier.

No modelling code is copied: the halves are made of the model's own modules. `dpf cuts FOLDER` lists the cuts
of a checkpoint on disk.

    python examples/your_own_model.py
"""

import torch
from transformers import Qwen2Config, Qwen2ForSequenceClassification

import dp_forward as dpf
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, calibrate, normalise
from dp_forward.split import legal_cuts

torch.manual_seed(0)
shape = Qwen2Config(
    vocab_size=200,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    num_labels=3,
)
model = Qwen2ForSequenceClassification(shape).eval()
cuts = [str(info.cut) for info in legal_cuts(model)]
print(f"{len(cuts)} legal cuts, from {cuts[0]} to {cuts[-1]}")

pair = dpf.split(model, cut="encoder.2")
ids = torch.randint(1, 200, (4, 16))  # causal models are padded on the left; these texts fill their rows
with torch.inference_mode():
    whole, halves = model(input_ids=ids).logits, dpf.join(pair)(input_ids=ids).logits
print(f"without noise, the halves differ from the whole model by {(whole - halves).abs().max().item():g}")
print("the back holds a token table:", any("embed_tokens" in name for name in pair.back.state_dict()))

mechanism = calibrate(MatrixGaussian, Budget(epsilon=8.0, delta=1e-5), bound=normalise(1.0), unit=TEXT)
private = dpf.join(pair, dpf.Sanitizer(mechanism, seed=0)).train()
optimizer = torch.optim.AdamW(private.parameters(), lr=1e-3)
output = private(input_ids=ids, labels=torch.tensor([0, 1, 2, 1]))
output.loss.backward()
optimizer.step()
moved = sum(weight.grad is not None for weight in private.front.parameters())
print(
    f"one step through the noise: loss {output.loss.item():.3f}, {moved} tensors of the front got a gradient"
)
print(private.guarantee().statement)
