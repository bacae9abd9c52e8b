"""What a refusal advises can be done: every flag that it names is one of the verb that refuses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tiny_task
import tiny_user
from dp_forward.cli.main import app
from dp_forward.cli.options import App
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.privacy import NoiseSpec
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.plan import Plan
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan

Verb = tuple[str, ...]
TOKEN = "a-token-of-enough-letters"
NO_SERVER = "--server http://127.0.0.1:1"


def _verbs(group: Any, path: Verb = ()) -> Iterator[tuple[Verb, Any]]:
    for name, command in group.commands.items():
        yield from _verbs(command, (*path, name)) if hasattr(command, "commands") else ()
        if command.params:
            yield (*path, name), command


VERBS: dict[Verb, Any] = dict(_verbs(typer.main.get_command(app)))
FLAGS = {
    verb: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help"}
    for verb, command in VERBS.items()
}
SETTINGS = {one.name for command in VERBS.values() for one in command.params}
SETTINGS |= {item.name for plan in (Plan, DpSgdPlan, PretrainPlan) for item in fields(plan)}


def wrong_hints(message: str, verb: Verb) -> list[str]:
    """Flags of another verb, and settings as Python spells them, that a message of ``verb`` names.

    A flag after `dpf OTHER` is meant for that verb; what was refused (`got ...`) is no advice.
    """
    advice = re.sub(r"; got .*?\. (?=[A-Z0-9])", "; ", message)
    if "`plan` must have only known keys" in advice:  # as a file spells them
        return []
    wrong = []
    for found in re.finditer(r"(?<![\w-])--[a-z][a-z-]*", advice):
        before = re.split(r"[.;:(] ?", advice[: found.start()])[-1]
        if "pip install" in before:
            continue
        words = tuple(re.findall(r"dpf ([a-z ]+)", before)[-1].split()) if "dpf " in before else verb
        owner = next((words[:size] for size in (3, 2, 1) if words[:size] in FLAGS), ())
        if found[0] not in FLAGS.get(owner, set()):
            wrong.append(found[0])
    python = re.findall(r"(?<!\S)(?<!set )([a-z][a-z_]*)=|\b([a-z]+(?:_[a-z]+)+)\b|(\w+\(\))", advice)
    named = {name for names in python for name in names if name in SETTINGS or name.endswith("()")}
    keys = {item.name for item in fields(Plan)} - {one.name for one in VERBS[verb].params}
    return wrong + sorted(named - keys if "--set" in FLAGS[verb] else named)


def wrong_name(message: str, verb: Verb) -> str | None:
    """What the message says is wrong, if only other verbs have such an option."""
    name = (re.findall(r"^dpf: `([a-z-]+)` must", message) or [""])[0]
    others = {flag for flags in FLAGS.values() for flag in flags}
    arguments = {one.name for one in VERBS[verb].params} | {"labels", "data", "task", "corpus", verb[0]}
    return name if f"--{name}" in others - FLAGS[verb] and name not in arguments else None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a random model, files of records that are wrong in some way, and tokens."""
    root = tmp_path_factory.mktemp("world")
    tiny_task.write_task(root / "sst2", train=40, validation=10)
    tiny_user.write_user(root / "run", noise=NoiseSpec(epsilon=8.0))
    pairs = [f"hello {number},l{number % 2}" for number in range(60)]
    for name, lines in {
        "good.csv": ["text,label", *pairs],
        "sst2.csv": ["text,label", *pairs],
        "columns.csv": ["a,b", *pairs],
        "one.csv": ["text,label", *["hello there,x"] * 20],
        "few.csv": ["text,label", *pairs[:6]],
        "entries.csv": ["question,answer", "hello,", "how?,so", "where?,here"],
        "many.csv": ["text,label", *(f"hello {number},l{number}" for number in range(1100))],
        "plan.toml": ["x = 1"],
        "short": ["word"],
        "token": [TOKEN],
        "other": [TOKEN + "-too"],
    }.items():
        (root / name).write_text("\n".join(lines) + "\n")
    rows = [f'{{"text": "hello {number}", "label": "l{number % 2}"}}' for number in range(60)]
    (root / "rows.jsonl").write_text("\n".join(rows))
    return root


REFUSALS = f"""
calibrate -m matrix-gaussian
calibrate -m gaussian -e 2 --unit label
finetune good.csv -e 2 --out o --model {{model}} --rows 9999 --dry-run
calibrate -m mvg -e 2
calibrate -m mvg -e 2 --unit token --cols 3
calibrate -m gaussian -e 2 --threshold 1
calibrate -m privunit -e 2 --prior 0.5,0.5
calibrate -m randomized-response -e 2
calibrate -m randomized-response -e 2 --prior x
calibrate -m privunit --central-epsilon 0.5
calibrate -m classical-gaussian -e 0.5 -k 2
calibrate -m privunit -e 2 --paper
calibrate -m gaussian -e 2 -d 0
account -m gaussian
account -m gaussian -s -1
account -m gaussian -s 1 -d -1
account -m privunit -e 2 --label-epsilon -1 --labels 2
account -m privunit -e 2 --label-epsilon 1
account -m mvg -e 2
account -m privunit -s 2
account -m gaussian -e 2 --threshold-share 0.5
explain -m classical-gaussian -e 2
explain -m gaussian -e 2 --unit label
explain -m k-ary-response -e 2
explain
explain --run nothing
explain -m privunit --run run
audit
audit -m privunit
audit -m mvg -e 2
audit -m privunit -e 2 --rows 0
audit -m privunit -e 2 --cols -1
audit -m privunit -e 2 --bits 7
audit -m privunit -e 2 --draws 1
audit -m k-ary-response -e 2
audit run -e 2
audit run --text a
audit nothing
finetune --out o
finetune good.csv --out o
finetune plan.toml -e 2 --out o
finetune columns.csv -e 2 --out o
finetune one.csv -e 2 --out o
finetune few.csv -e 2 --out o
finetune many.csv -e 2 --out o
finetune sst2.csv -e 2 --out o
finetune nothing.csv -e 2 --out o
finetune rows.jsonl -e 2 --no-header --out o
finetune good.csv -e 2 --text-column q --out o
finetune good.csv -e 2 --label-prior 0.5,0.5 --back gradient --out o
finetune good.csv -e 2 --label-epsilon -1 --out o
finetune good.csv -e 2 --labels x --out o
finetune good.csv -e 2 --labels folded --back gradient --out o
finetune good.csv -e 2 --labels folded --label-epsilon 2 --out o
finetune good.csv -e 2 --public-task q --out o
finetune good.csv -e 2 --public-epochs 2 --out o
finetune good.csv -e 2 --regime public-front --out o
finetune good.csv -e 2 --draws 2 --out o
finetune good.csv -e 2 --describe q --out o
finetune good.csv -e 2 --describe q=hello --out o --model {{model}} --rows 12 --dry-run
finetune good.csv -m none --out o
finetune good.csv -m none -e 2 --out o
finetune good.csv -e 2 --set x --out o
finetune good.csv -e 2 --set x=1 --out o
finetune good.csv -e 2 --set training_epsilon=1 --out o
finetune good.csv -e 2 --plan nothing.toml --out o
finetune good.csv -e 2 --data q --out o
finetune good.csv -e 2 --other-labels q --out o
finetune good.csv -e 2 --out run
finetune good.csv -e 2 --out o --resume --model {{model}}
finetune --out o --from-releases releases
finetune --out o --from-releases releases --model run
finetune --out o --from-releases releases --model run --cut output
finetune --out o --from-releases releases --model run --evaluation-split test
finetune --out o --from-releases releases --model run --budget 2
pretrain --out o
pretrain -e 2 --out o
pretrain --steps 2 --out o
pretrain -e 2 --steps 2 --length 2 --out o
baseline dpsgd --out o
baseline dpsgd good.csv --out o
baseline dpsgd columns.csv -e 2 --out o
baseline dpsgd plan.toml -e 2 --out o
baseline dpsgd good.csv -e 2 --mode q --out o
baseline dpsgd good.csv -e 2 --out o --resume --model {{model}}
route nothing.csv -e 2 --out o
route columns.csv -e 2 --out o
route good.csv -e 2 --out run
route good.csv -e -1 --out o
route entries.csv -e 2 --out o --model run
route entries.csv -e 2 --out o --model {{model}} --rows 9999
route entries.csv -e 2 --out o --model {{model}} --generate run
release run --out o
release run plan.toml --out o
release run columns.csv --out o
release run sst2.csv --out o
release run good.csv --out o
release run rows.jsonl --no-header --out o
release run good.csv --out o --again
release run good.csv --out o --ca token
release run good.csv --out o --label-prior 0.5,0.5
release run good.csv --out o --label-epsilon -1
release run good.csv --out o --device q
release nothing good.csv --out o
release run --task sst2 --data sst2=sst2 --out o
release run --task sst2 --data sst2=sst2 --no-labels --out o --bits 7
evaluate nothing
evaluate run
attack membership run
attack membership nothing
attack membership run --device q
attack inversion run
attack inversion run --task q
attack inversion run --task own --data own=columns.csv
attack inversion run --task own --data own=many.csv
attack inversion run --task own --data other=good.csv
attack inversion run --task sst2 --data sst2=sst2 --split train
attack inversion run --task sst2 --data sst2=sst2 --with-prior
attack attribute run --task sst2 --data sst2=sst2
attack attribute run --labelled columns.csv
attack attribute run --labelled good.csv --attribute label --share 2
attack attribute run --labelled good.csv --task sst2
ask run {NO_SERVER}
ask run hello {NO_SERVER}
ask run hello --file short {NO_SERVER}
ask run --file short --pair {NO_SERVER}
ask run hello --budget 9 -e 20 {NO_SERVER}
ask run hello --budget 9 --token-file short {NO_SERVER}
ask run hello --budget 9 --ledger plan.toml {NO_SERVER}
ask run hello --budget 9 --ca token --server https://127.0.0.1:1
ask run hello --budget 9 --server http://host.example
ask run hello --budget 9 --server http://me:secret@127.0.0.1:1
ask run hello --budget 9 --proxy q {NO_SERVER}
ask nothing hello {NO_SERVER}
ask run/back hello {NO_SERVER}
ui run {NO_SERVER}
ui run --budget 9 --server http://host.example
ui run --budget 9 --ledger plan.toml {NO_SERVER}
serve nothing --port 70000
serve run/back --host 0.0.0.0
serve run/back --token-file short
serve run/back --workers 2
serve run/back --workers 0
serve run/back --tls-cert token
serve run/back --tls-cert a --tls-key b
serve run/back --max-batch 0
serve run/back --log q
serve run/back --allow-origin q
serve run/back --token-file token --metrics-token-file token
serve users add a --store store --per-day -1
serve users add a/b --store store
serve users rotate nobody --store store
serve users revoke nobody --store store
serve users add a --store store --token-out token
serve users list --store token
shuffle --collector http://host.example --collector-token-file token --store box --least 5
shuffle --collector http://127.0.0.1:1 --collector-token-file other --store box --least 5 --host 0.0.0.0
shuffle --collector http://127.0.0.1:1 --collector-token-file other --store box --least 5 --token-file token
shuffle --collector http://[::1] --collector-token-file other --store b --least 5 --token-file token --users u
split {{model}} --cut q --out o
split {{model}} --cut encoder.9 --out o
split {{model}} --cut output --out o --records 5
split {{model}} --cut output --out o --fold a,b
split {{model}} --cut output --out o --fold a,b -e 2
split {{model}} --cut output --out o --fold a -e 2 --records 9
split {{model}} --cut output --out o --fold a,b -e 2 --records 9 --labels 2
split {{model}} --cut encoder.1 --out o --fold a,b -e 2 --records 9
split {{model}} --cut encoder.1 --out o --width 9999
cuts {{model}} --labels 0
estimate nothing
estimate run --figure q.doc
estimate run --figure q/q.png
demo -e -1
demo --out short
ledger show nothing
ledger verify short
ledger create new
ledger create new -e 3 --pure-share 2
ledger create new -e 3 -d 1e-5 --pure-share 9
ledger create new -e 3 --per-day 9
ledger create new -e 3 --unit q
ledger create short -e 3
ledger register --json
"""


@pytest.fixture(scope="module")
def model(world: Path) -> Path:
    return tiny_task.write_checkpoint(world / "model")


def _verb_of(words: list[str]) -> Verb:
    return next(tuple(words[:size]) for size in (3, 2, 1) if tuple(words[:size]) in VERBS)


@pytest.mark.slow
@pytest.mark.parametrize("first", sorted({line.split()[0] for line in REFUSALS.split("\n") if line}))
def test_every_flag_of_a_refusal_is_one_of_the_verb_that_refuses(
    dpf: Callable[..., Any], world: Path, model: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.chdir(world)
    (world / "home").touch()
    monkeypatch.setenv("DPF_HOME", str(world / "home"))  # a file: no register can be there
    for line in REFUSALS.strip().split("\n"):
        words = shlex.split(line.format(model=model))
        if words[0] != first:
            continue
        refused = dpf(*words)
        message = refused.err.strip().split("\n")[-1]
        assert refused.code in (1, 2, 3, 4), f"{line}: {refused}"
        assert message.startswith("dpf: "), f"{line}: {message}"
        assert wrong_hints(message, _verb_of(words)) == [], f"{line}: {message}"
        assert wrong_name(message, _verb_of(words)) is None, f"{line}: {message}"


def test_all_verbs_are_asked_for_a_refusal() -> None:
    asked = {_verb_of(shlex.split(line)) for line in REFUSALS.strip().split("\n")}
    assert set(VERBS) - asked <= {("doctor",)}  # which refuses nothing


@pytest.mark.parametrize(
    ("verb", "message", "wrong"),
    [
        ("ask", "dpf: `x` must be given; got 3. Say --budget 9.", []),
        ("explain", "dpf: `x` must be given; got 3. Say --budget 9.", ["--budget"]),
        ("explain", "dpf: `x` must be known; got --rows. Use dpf ask --budget 9.", []),
        ("explain", "dpf: Use dpf ask --budget 9; or --budget 9.", ["--budget"]),
        ("explain", "dpf: Use dpf ask --epochs 9.", ["--epochs"]),
        ("evaluate", "dpf: Use label_column=NAME.", ["label_column"]),
        ("evaluate", "dpf: Take it from calibrate().", ["calibrate()"]),
        ("finetune", "dpf: Use --set training_epsilon=2.", []),
        ("finetune", "dpf: `x` must go with label_epsilon; got 3. Use it.", ["label_epsilon"]),
        ("demo", "dpf: `x` must be installed; got none. pip install --no-deps x", []),
    ],
)
def test_a_hint_of_another_verb_is_found(verb: str, message: str, wrong: list[str]) -> None:
    assert wrong_hints(message, (verb,)) == wrong


def test_a_name_that_only_another_verb_has_is_found() -> None:
    message = "dpf: `epsilon` must be a finite number above 0; got -1.0. Use 2."
    assert (wrong_name(message, ("release",)), wrong_name(message, ("explain",))) == ("epsilon", None)


def test_a_refusal_spells_settings_as_flags() -> None:
    tiny = App()

    @tiny.command()
    def one(label_epsilon: float = 1.0, header: bool = True, token_file: str = "") -> None:
        """A verb with three options."""
        rule = "go with label_epsilon, not other_name"
        raise InvalidInput(
            "label_epsilon", rule, "label_epsilon=3", "Say label_epsilon=2, header=False, bits=8."
        )

    @tiny.command()
    def two(budget: float = 1.0, resume: bool = False) -> None:
        """Another one."""
        raise BudgetExhausted("Say budget=8.0 or resume=True, or header=False.")

    said = str(CliRunner().invoke(tiny, ["one"]).exception)
    assert said == (
        "`label-epsilon` must go with --label-epsilon, not other_name; got label_epsilon=3. "
        "Say --label-epsilon 2, --no-header, bits=8."
    )
    said = str(CliRunner().invoke(tiny, ["two"]).exception)
    assert said == "Say --budget 8.0 or --resume, or header=False."
