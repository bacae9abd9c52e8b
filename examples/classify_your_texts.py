"""A private classifier of your own texts in ten lines, with scikit-learn's interface.

Each record (text and label) is released once, under one epsilon, and charged in a ledger first. What is
learnt from the releases decides on your machine; saved, it is a run that `dpf serve` and `dpf ask` take.

    python examples/classify_your_texts.py
"""

import os
import tempfile

import dp_forward as dpf
from dp_forward.errors import BudgetExhausted

# An example has a register of its own; yours, in ~/.local/share/dp-forward, knows every text you released.
home = tempfile.TemporaryDirectory()
os.environ["DPF_HOME"] = home.name

# Yours: lists, numpy arrays, pandas columns, or a datasets.Dataset. Here, 120 records of three labels.
said = {
    "delivery": ("where is my {}?", "the {} has not arrived", "my {} came a week late", "track my {}"),
    "billing": ("you charged me twice for the {}", "the bill of my {} is wrong", "no invoice for the {}"),
    "refund": ("I want my money back for the {}", "send the {} back, please", "return the {}, and pay me"),
}
things = (
    "parcel",
    "phone",
    "order",
    "laptop",
    "coat",
    "lamp",
    "table",
    "bike",
    "camera",
    "book",
    "chair",
    "bag",
)
records = [(phrase.format(thing), label) for label in said for phrase in said[label] for thing in things]
texts, labels = [text for text, _ in records], [label for _, label in records]

classifier = dpf.PrivateClassifier(epsilon=8.0).fit(texts, labels)
print("training records:", classifier.guarantee.statement)
print("a ticket is about", classifier.predict(["when will the sofa get here?"])[0])
print(f"right on {classifier.score(texts, labels):.0%} of its own records")
try:
    classifier.fit(texts, labels)
except BudgetExhausted as refused:
    print("a second fit is refused:", refused)
