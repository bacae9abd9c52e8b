"""`dpf route`: private questions to a public FAQ, or to a language model with public prompts."""

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput
from dp_forward.privacy.rounding import percent_down


def route(
    entries: Annotated[
        Path, Argument(help="A CSV, TSV, JSONL, JSON or Parquet file: questions or prompts, and answers.")
    ],
    epsilon: Annotated[float, Option("--epsilon", "-e", help="The privacy budget of one question.")],
    out: Annotated[Path, Option(help="The new folder for front/ (users) and back/ (the provider).")],
    model: Annotated[str, Option(help="A sentence encoder: a folder or name, or minilm.")] = "minilm",
    generate: Annotated[
        str | None, Option(metavar="MODEL", help="Let this language model answer the entries that have none.")
    ] = None,
    rows: Annotated[int, Option(help="n, the tokens read of every question.")] = 64,
    json: options.Json = False,
) -> None:
    """Answer private questions from a public list of answers.

    The list is an FAQ, or public prompts that a language model answers.

    A user's front picks the entry that is nearest to the question, and releases the pick by K-ary response;
    the provider answers with the text of that entry. Preparing reads public entries only, and charges
    nothing. Then: dpf serve OUT/back, and dpf ask OUT/front "a question".

    Example: dpf route faq.csv --epsilon 8 --out route
    """
    from dp_forward.data.entries import read_entries
    from dp_forward.train.routing import make_route

    if out.exists() and any(out.iterdir()):
        raise InvalidInput("out", "be new", out, "Users may have the front that is there.")
    found = read_entries(entries)
    with output.Bars() as bars:
        how: dict[str, Any] = {"model": model, "rows": rows, "generate": generate}
        made = make_route(found, epsilon=epsilon, progress=bars, **how)
        digests = made.save(out)
    response = made.response
    bits = math.ceil(10 * min(epsilon / math.log(2), math.log2(len(found)))) / 10
    result: dict[str, Any] = {"entries": len(found), "replies": len(made.replies), "epsilon": epsilon}
    result |= {"keep": response.keep, "guess_rate": response.guess_rate()}
    result |= {"digest_front": digests["front"], "digest_back": digests["back"], "out": str(out)}
    said = [
        f"The entry that the front picks is answered in {percent_down(response.keep)} of cases, and in the "
        "others one of the rest, all alike.",
        f"Each question: {response.promise()}. Its release says at most {bits} bits.",
        f"Users get {out / 'front'}; serve {out / 'back'}; ask with dpf ask {out / 'front'} QUESTION.",
    ]
    if math.exp(epsilon) < len(found) - 1:
        said.insert(1, "That is less often than not: take fewer entries, or a larger epsilon.")
    output.print_result(result, json=json, title="A route", sentences=said)
