"""The service: a provider in its own process, and a user with a ledger who asks it.

The client checks what the server wants before it charges a text, charges before a byte leaves, and answers
from its own disk when the same text is asked again. (The head is untrained: only the way is shown.)

    python examples/serve_and_ask.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import dp_forward as dpf
from dp_forward.errors import BudgetExhausted
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import save_sides
from dp_forward.split.pretrained import load_model, load_tokenizer

torch.manual_seed(0)
pair = dpf.split(load_model("minilm", labels=2), cut="output", width=8)
noise = NoiseSpec(mechanism="privunit", epsilon=8.0)
spec = ReleaseSpec.of(pair.front, noise=noise, rows=32, labels=("negative", "positive"))

with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    save_sides(pair, spec, load_tokenizer("minilm"), run)  # run/front for users, run/back for the provider

    serve = [sys.executable, "-m", "dp_forward.cli.main", "serve", str(run / "back"), "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as provider:
        try:
            address = json.loads(provider.stdout.readline())["address"]
            with dpf.Client(
                run / "front", server=address, ledger=Path(folder) / "me.ledger", budget=16
            ) as client:
                print(client)
                for text in ("a quiet, generous film", "a quiet, generous film", "loud and lazy"):
                    answer = client.ask(text)
                    print(f"{answer.label}: charged {answer.charge:.3g}, {answer.remaining:.3g} left")
                try:
                    client.ask("one more")
                except BudgetExhausted as refusal:
                    print(f"refused: {refusal}")
        finally:
            provider.terminate()
