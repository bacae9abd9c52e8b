"""`dpf serve users`: whom a server answers, by tokens of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.service.server.users import UserStore

app = options.App(help="Manage the users of a server: their tokens and quotas.")

AuditFile = Annotated[Path | None, Option(help="Append events for the operator to this file.")]
_Name = Annotated[str, Argument(metavar="NAME", help="The user's name.", show_default=False)]
_Store = Annotated[str, Option(help="The folder of the users, as for dpf serve --store.")]
_TokenOut = Annotated[Path | None, Option(help="Write the token to this new file instead of printing it.")]


@app.command()
def add(
    name: _Name,
    store: _Store,
    per_day: Annotated[int | None, Option(help="Most requests and records a day (UTC) [no limit].")] = None,
    group: Annotated[str, Option("--class", help="A class of users, for metrics and audit log.")] = "user",
    token_out: _TokenOut = None,
    audit_log: AuditFile = None,
    json: options.Json = False,
) -> None:
    """Add a user, and print the token once.

    A running server knows it within a second.

    Example: dpf serve users add alice --store users --per-day 1000
    """
    with _opened(store, "user_added", name, audit_log, token_out) as users:
        token = users.add(name, per_day=per_day, group=group)
    _print_token(name, token, token_out, json=json)


@app.command()
def rotate(
    name: _Name,
    store: _Store,
    grace: Annotated[int, Option(help="Seconds that the old token keeps working.")] = 0,
    token_out: _TokenOut = None,
    audit_log: AuditFile = None,
    json: options.Json = False,
) -> None:
    """Give a user another token, and print it once.

    Example: dpf serve users rotate alice --store users --grace 3600
    """
    with _opened(store, "user_rotated", name, audit_log, token_out) as users:
        token = users.rotate(name, grace=grace)
    _print_token(name, token, token_out, json=json)


@app.command()
def revoke(name: _Name, store: _Store, audit_log: AuditFile = None, json: options.Json = False) -> None:
    """Remove a user; servers refuse the token within a second.

    Example: dpf serve users revoke alice --store users
    """
    with _opened(store, "user_revoked", name, audit_log) as users:
        users.revoke(name)
    output.print_result({"name": name, "revoked": True}, json=json, title="User")


@app.command("list")
def list_users(store: _Store, json: options.Json = False) -> None:
    """List the users with their class, quota and use of today (UTC).

    Example: dpf serve users list --store users --json
    """
    from dp_forward.service.server.users import UserStore

    with closing(UserStore(store, new=False)) as users:
        found = users.list_users()
    if json:
        output.print_json(found)
    else:
        names = ("name", "class", "per_day", "used", "tokens")
        rows = [["none" if row[name] is None else str(row[name]) for name in names] for row in found]
        output.print_table("Users", names, rows)


@contextmanager
def _opened(
    place: str, event: str, name: str, audit_log: Path | None, token_out: Path | None = None
) -> Iterator[UserStore]:
    """The store, for one change that the audit log is told of; ``token_out`` can be written."""
    from dp_forward.service.server.audit_log import AuditLog
    from dp_forward.service.server.users import UserStore

    audit = AuditLog(audit_log)
    if token_out is not None and (token_out.exists() or not os.access(token_out.parent, os.W_OK)):
        raise InvalidInput("token-out", "be a new file in a folder of yours", token_out, "Name another.")
    with closing(UserStore(place, new=event == "user_added")) as users:
        yield users
    audit.write(event, name=name)


def _print_token(name: str, token: str, file: Path | None, *, json: bool) -> None:
    from dp_forward.storage.files import write_file

    if file is not None:
        write_file(file, token + "\n", private=True, new=True)
    shown = {"name": name, "token_file" if file else "token": str(file or token)}
    output.print_result(shown, json=json, title="User")
