"""What an argument is: from the docstring of its object, or from the words that mean the same everywhere.

The reference shows `COMMON` where a docstring does not say more, and for arguments of methods `METHODS` first.
`tests/docs/test_arguments.py` checks that every argument of every public object, and of its public methods, is
described by one of them.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["COMMON", "METHODS", "described", "meaning"]

COMMON: Final = {
    "at_delta": "the delta at which its repr states the promise.",
    "audit": "the log of an operator's events.",
    "back": "the provider's half of a model.",
    "bits": "how many bits a released integer has: 8 or 16.",
    "bound": "the bound of what crosses; it knows the sensitivity.",
    "budget": "the wanted epsilon and delta.",
    "cut": "where the model is cut, such as `encoder.6`.",
    "delta": "the delta of the promise.",
    "device": "the torch device to compute on.",
    "entropy": "a source of random bytes, for tests alone; by default the operating system.",
    "epsilon": "the epsilon of the promise.",
    "folder": "the folder that is read or written.",
    "front": "the user's half of a model.",
    "hidden": "hidden matrices at the cut, one row for each token.",
    "label_epsilon": "the epsilon of a label's randomized response.",
    "level": "the confidence of the lower bounds.",
    "mechanism": "bound and noise, with what they prove.",
    "mu": "sensitivity over sigma of one Gaussian release.",
    "pair": "front and back of one model.",
    "path": "a file.",
    "place": "a folder, or the URL of a Postgres database.",
    "plan": "the settings of the run.",
    "progress": "called with how much is done.",
    "records": "records, as `read_records` gives them.",
    "register": "the register of the owner's texts; by default the owner's own.",
    "releases": "how many fresh releases of one input the promise covers.",
    "resume": "whether to continue what the folder holds.",
    "rows": "how many rows cross: the tokens of a text.",
    "seed": "of all that is random here, but for released noise.",
    "sensitivity": "how far two neighbours can lie apart.",
    "server": "the address of a server.",
    "settings": "what `as_dict` gave.",
    "spec": "the description of what is released.",
    "task": "a task, as `find_task` gives it.",
    "texts": "the texts, in order.",
    "tokenizer": "a tokenizer of Hugging Face.",
    "tokens": "the tokenizer, held to a fixed length.",
    "unit": "what is protected: `TEXT`, `TOKEN`, `phrase(c)` and others.",
    "user": "the user's side: front, tokenizer and spec.",
    "users": "how many users send releases.",
    "width": "how many columns cross.",
    "with_estimate": "whether to compute the authors' estimate too.",
}
"""Arguments that mean the same wherever a docstring does not say otherwise."""


METHODS: Final = {
    "attention_mask": "1 where there is a token, 0 where padding.",
    "batch": "the batch, as the store gave it.",
    "call": "the request: its method, path, headers and body.",
    "candidates": "how many inputs are equally likely beforehand.",
    "details": "the arguments of `Deployment.guarantee`.",
    "first": "one of the two inputs, at the cut.",
    "indices": "the numbers of the records, from 0.",
    "input_ids": "token ids [texts, rows].",
    "most": "how many at most.",
    "pixel_values": "images, for a model of images.",
    "release_id": "the id that `reserve` gave.",
    "second": "the other one.",
    "seconds": "the second text of each pair; None for single texts.",
    "text": "one text, or a pair of them.",
    "token_type_ids": "which text of a pair each token is of.",
    "AskingSide.tokens": "ids and masks, as the tokenizer gave them.",
    "AuditLog.event": "the name of the event.",
    "AuditLog.fields": "what is noted beside it.",
    "AuditLog.group": "the class of the user.",
    "Back.labels": "the labels; with them the loss is returned too.",
    "Budget.mechanism": "the name of what needs a delta.",
    "Cap.charge": "what may be charged in all.",
    "Cap.pure": "the epsilon that is set aside for pure releases.",
    "Charge.releases": "how many equal releases.",
    "Client.epsilon": "that of the question; by default the client's.",
    "Client.resend": "send stored releases again, as in `ask`.",
    "CollectionSpec.records": "how many records.",
    "CollectionSpec.shard_records": "how many of them a file holds.",
    "CorpusSpec.shard": "the number of the shard, from 0.",
    "Deployment.assumptions": "what the promise rests on besides.",
    "Deployment.central": "what `central` gave; without it there is no sentence about the mixture.",
    "Deployment.notion": "of which neighbours; by default what the unit and the labels say.",
    "DrawStore.cost": "what each of them is charged.",
    "DrawStore.draws": "number of the record, bytes of the matrix, bytes of the label.",
    "DrawStore.records": "the numbers of the records.",
    "EncodedTexts.fixed": "the tokenizer, held to a fixed length.",
    "EncodedTexts.part": "the share that is held out, between 0 and 1.",
    "Factor.name": "what the error calls it.",
    "Guarantee.prior": "what was believed before, between 0 and 1.",
    "Inversion.attack": "the name of the attack.",
    "Inversion.batch": "token ids and attention mask, as `EncodedTexts.batch` gives them.",
    "Inversion.details": "what is kept beside the result.",
    "Inversion.guesses": "token ids, a row for each text.",
    "Inversion.seen": "what `observe` gave.",
    "Inversion.simulate": "draw simulated noise, which is quicker, in place of released.",
    "KaryResponse.of_decisions": "the share of right decisions before the noise.",
    "KaryResponse.rows": "a row of K scores for each text.",
    "Ledger.cap": "the cap of a new ledger.",
    "Ledger.charge": "what one release costs.",
    "Ledger.key": "what names the release: a keyed digest, and never a text.",
    "Ledger.mechanism": "a name to note beside the charge.",
    "Ledger.payload": "the bytes that were drawn.",
    "Ledger.per_day": "the cap of a new ledger for each day of UTC.",
    "Manifest.front_digest": "the digest of the front that users have.",
    "Manifest.header": "the header of a frame.",
    "Manifest.request": "the id of the request, 16 bytes.",
    "Manifest.side": "the half of the run that this party has.",
    "Manifest.time": "seconds since 1970.",
    "NearestTokens.seen": "pairs of a matrix, and which kind of rows it has.",
    "PrivateClassifier.deep": "for scikit-learn, and without effect.",
    "PrivateClassifier.labels": "the true label of each text.",
    "PrivateClassifier.sample_weight": "the weight of each text.",
    "PrivateClassifier.settings": "the settings to change.",
    "PrivateModel.labels": "the labels; with them the loss is returned too.",
    "PrivUnit.cap_probability": "the wanted probability of the cap, in place of a threshold.",
    "RetryPolicy.attempt": "the number of the attempt that failed, from 0.",
    "RetryPolicy.retry_after": "what the server's header of that name said.",
    "ShufflerStore.records": "the records, as they came.",
    "ShufflerStore.request": "the last of the new ids that the collector has.",
    "ShufflerStore.user": "the name of who sent them.",
    "Task.field_name": "a field, such as `label`.",
    "Task.value": "the label as a file has it.",
    "TokenPrior.public": "texts that anybody may know.",
    "TokenPrior.vocabulary": "how many tokens there are.",
    "Users.items": "digests of what is counted.",
    "Users.name": "the name of the user; None counts nothing.",
    "Users.token": "the token as it was sent.",
    "UserStore.group": "the class that metrics and the audit log name.",
    "UserStore.name": "the name of the user.",
    "UserStore.per_day": "the quota of requests and records for each day of UTC; None for no limit.",
    "UserStore.wanted": "the charges, each with its user and digests.",
}
"""Arguments of methods, by `name` where they mean the same everywhere, or by `Class.name`."""


def meaning(name: str, owner: str | None = None) -> str | None:
    """What an argument means where its docstring does not say it; ``owner`` is the class of a method."""
    own = owner and (METHODS.get(f"{owner}.{name}") or METHODS.get(name))
    return own or COMMON.get(name)


def described(docstring: str) -> set[str]:
    """The names that a docstring describes: quoted in its prose, or as an entry of a list of arguments."""
    quoted = re.findall(r"`{1,2}(\w+)(?:`|[ .=(\[])", docstring)
    listed = re.findall(r"^ +\*{0,2}(\w+): ", docstring, flags=re.MULTILINE)
    return {*quoted, *listed}
