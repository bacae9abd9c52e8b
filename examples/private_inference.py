"""Private inference by hand: what the user does, what crosses, what the provider does.

The model is cut in two. The user runs the front, bounds and noises the hidden matrix, and sends bytes. The
provider reads nothing but these bytes. (The head of this model is untrained: only the way is shown.)

    python examples/private_inference.py
"""

import torch

import dp_forward as dpf
from dp_forward.data import FixedLength
from dp_forward.noise import dequantise, release, serialise
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.split.pretrained import load_model, load_tokenizer

ROWS = 32  # every text becomes so many rows, so that its length does not cross

# Together, once: a model, a cut, and a budget per text. The budget says how much noise there must be.
torch.manual_seed(0)
pair = dpf.split(load_model("minilm", labels=2), cut="encoder.3")
mechanism = calibrate(PrivUnit, Budget(epsilon=8.0), bound=normalise(1.0), unit=TEXT)
print(mechanism)

# The user: front, bound, noise. `release` draws from the operating system, on an integer grid.
tokens = FixedLength(load_tokenizer("minilm"), ROWS)
with torch.inference_mode():
    hidden = pair.front(**tokens.encode(["a quiet, generous film that earns its tears"]))
released = release(hidden[0], mechanism, bits=8)
wire = serialise(released)
print(released)
print(f"what crosses: {len(wire)} bytes, for this text and for any other")

# The provider: bytes in, an answer out. The step of the grid follows from the public mechanism.
received = torch.frombuffer(bytearray(wire), dtype=torch.int8).reshape(ROWS, -1).numpy()
noisy = torch.from_numpy(dequantise(received, mechanism, bits=8))[None]
with torch.inference_mode():
    print(f"the provider answers with probabilities {pair.back(noisy).logits.softmax(-1)[0].tolist()}")

# For training and experiments, both halves with *simulated* noise are one ordinary module.
private = dpf.join(pair, dpf.Sanitizer(mechanism, seed=0))
print(private.guarantee().statement)
