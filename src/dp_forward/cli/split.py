"""`dpf cuts` and `dpf split`: where a model can be cut; cut it, or prepare a front that folds labels in."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import descriptions
from dp_forward.errors import refuse_if

_Shown = tuple[dict[str, Any], str, list[str]]  # a result, its title and what is said of it
_Model = Annotated[str, Argument(metavar="MODEL", help="A folder, a name, a GGUF file, minilm or smollm2.")]
_Labels = Annotated[int | None, Option(help="Give the model a classification head with so many labels.")]
_Fold = Annotated[str | None, Option(metavar="LABEL,LABEL", help="Make a front that folds these labels in.")]
_FoldEpsilon = Annotated[float | None, Option("--epsilon", "-e", help="The privacy budget of a record.")]
_Describe = Annotated[list[str] | None, Option(metavar="LABEL=PHRASE", help="A label in words; repeatable.")]
_Public = Annotated[str | None, Option(help="Public text: a file, a folder or hf:NAME [that of minilm].")]


def cuts(
    model: _Model,
    labels: _Labels = None,
    check: Annotated[bool, Option(help="Cut at each of them and run the leak check.")] = True,
    json: options.Json = False,
) -> None:
    """List where a model can be cut in two, and what would cross.

    Example: dpf cuts minilm --no-check
    """
    from dp_forward.split import legal_cuts, split_model
    from dp_forward.split.check import check_split
    from dp_forward.split.pretrained import load_model

    with output.working("loading the model"):
        whole = load_model(model, labels=labels)
    rows: list[dict[str, Any]] = []
    legal = list(legal_cuts(whole))
    with output.Bars() as bars:
        for info in legal:
            row: dict[str, Any] = {"cut": str(info.cut), "shape": info.shape}
            row |= {"residual_dropped": info.cut.drops_residual, "row_local": info.cut.row_local}
            if check:
                pair = split_model(whole, info.cut, allow_vocabulary_head=True)
                row["problems"] = list(check_split(pair, whole).problems)
                bars("checking cuts", len(rows) + 1, len(legal), {})
            rows.append(row)
    if json:
        output.print_json(rows)
        return
    found = "passed" if check else "not run"
    columns = {
        "cut": lambda row: row["cut"],
        "what crosses": lambda row: str(row["shape"]),
        "residual dropped": lambda row: "yes" if row["residual_dropped"] else "no",
        "each row from its own token": lambda row: "yes" if row["row_local"] else "no",
        "leak check": lambda row: ", ".join(map(str, row.get("problems", []))) or found,
    }
    output.print_rows(f"Cuts of {model}", rows, columns)


def split(
    model: _Model,
    cut: Annotated[str, Option(help="Where to cut: see dpf cuts MODEL.")],
    out: Annotated[Path, Option(help="The folder for front/, back/ and split.json, or for projection/.")],
    width: Annotated[int | None, Option(help="d', the columns that cross, with maps M1 and M2.")] = None,
    labels: _Labels = None,
    allow_vocabulary_head: Annotated[
        bool, Option("--allow-vocabulary-head", help="Let the provider have a masked-LM head.")
    ] = False,
    fold: _Fold = None,
    epsilon: _FoldEpsilon = None,
    records: Annotated[int | None, Option(help="About how many records will be released.")] = None,
    describe: _Describe = None,
    public: _Public = None,
    pooling: Annotated[str | None, Option(help="What is read: mean, mean2, cls, pooler or last.")] = None,
    prompt: Annotated[str | None, Option(help="For a decoder: a public template with {text} in it.")] = None,
    blocks: Annotated[int | None, Option(help="Use so many blocks of the model only [all].")] = None,
    rows: Annotated[int | None, Option(help="n, the tokens read of every text [64].")] = None,
    json: options.Json = False,
) -> None:
    """Cut a model in two: a front for users, a back for the provider.

    The halves are checked for leaks. With --fold there is no back yet: OUT/projection/front releases text and
    label of a record under one epsilon. Collect such records with dpf serve OUT/projection --collect DIR.

    Example: dpf split minilm --cut encoder.3 --out halves
    """
    folding = {"epsilon": epsilon, "records": records, "describe": describe, "public": public}
    folding |= {"pooling": pooling, "prompt": prompt, "blocks": blocks, "rows": rows}
    unused, rule, remedy = folding, "go with --fold", "Name the labels: --fold bad,good."
    if fold is not None:
        unused = {"labels": labels, "allow-vocabulary-head": allow_vocabulary_head or None}
        rule, remedy = "be left out with --fold", "It names the labels."
    for name, value in unused.items():
        refuse_if(value is not None, name, rule, value, remedy)
    if fold is None:
        result, title, said = _split(model, cut, out, width, labels, allow_vocabulary_head)
    else:
        result, title, said = _prepare(model, cut, out, fold, width=width, **folding)
    output.print_result(result, json=json, title=title, sentences=said)


def _split(model: str, cut: str, out: Path, width: int | None, labels: int | None, head: bool) -> _Shown:
    from dp_forward.split import split_model
    from dp_forward.split.artifacts import save_split
    from dp_forward.split.check import check_split
    from dp_forward.split.pretrained import load_model

    with output.working("loading the model"):
        whole = load_model(model, labels=labels)
    with output.working("cutting and checking"):
        pair = split_model(whole, cut, width=width, allow_vocabulary_head=head)
        report = check_split(pair, whole)
        report.refuse()
        digests = save_split(pair, out)
    result: dict[str, Any] = {"cut": str(pair.cut), "width": pair.front.width}
    result |= {"digest_front": digests["front"], "digest_back": digests["back"]}
    result |= {"max_abs_difference": report.max_abs_difference, "back_inputs": report.back_inputs}
    result["out"] = str(out)
    same = (
        "Without noise the halves give the whole model's output exactly."
        if report.max_abs_difference == 0.0
        else "A residual is dropped, or maps lie in between: the halves are not the whole model; train them."
    )
    return result, f"Cut at {pair.cut}", [same]


def _prepare(model: str, cut: str, out: Path, fold: str, **given: Any) -> _Shown:
    from dp_forward.train.closed_form_training import PROJECTION, outlook, prepare_projection

    refuse_if(cut != "output", "cut", "be output with --fold", cut, "Inside the model labels are not folded.")
    for name, remedy in {"epsilon": "Try 4.", "records": "A guess is enough."}.items():
        refuse_if(given[name] is None, name, "be given with --fold", None, remedy)
    place = out / PROJECTION
    begun = place.exists() and any(place.iterdir())
    refuse_if(begun, "out", "be new", out, "Users may have the front that is there.")
    labels = [label.strip() for label in fold.split(",") if label.strip()]
    given |= {"describe": descriptions(given["describe"]) or {}, "rows": given["rows"] or 64}
    with output.Bars() as bars:
        made = prepare_projection(model, labels, progress=bars, **given).save(place)
    found, said = outlook(made, given["records"])
    hand = f"Users get {place / 'front'}; collect their records with dpf serve {place} --collect DIR."
    return {**found, "digest_front": made.spec.front, "out": str(place)}, "Labels are folded", [*said, hand]
