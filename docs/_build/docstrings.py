"""Docstrings as the site shows them.

* Formulas and examples become blocks, which read without a script from elsewhere.
* Every argument is said: that of a plan by its help, another one by its docstring or else by `arguments`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING, Field, fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object

sys.path.insert(0, str(Path(__file__).parent))
from arguments import described, meaning

_MATH: Final = re.compile(r"^( *)\.\. math::[ \t]*(.*(?:\n\1[ \t]+\S.*)*)", flags=re.MULTILINE)
_EXAMPLE: Final = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", flags=re.MULTILINE)
_HEADING: Final = re.compile(r"(?<!\n)\n( *)(Guarantees|Edges|Paper):", flags=re.MULTILINE)
_PAPER: Final = re.compile(r"^( *)Paper: (?=\S)", flags=re.MULTILINE)
_ARGUMENTS: Final = re.compile(r"^Args:\n(?: +.*\n?)+", flags=re.MULTILINE)
_ENTRY: Final = re.compile(r"^ {4}\*{0,2}(\w+): .*(?:\n {5,}.*)*", flags=re.MULTILINE)
_SPACES: Final = re.compile(r"\\[,;! ]|\\q?quad")


class Readable(Extension):
    """Makes docstrings readable on a page, and complete; list it after griffe's own extensions."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _MATH.sub(_formula, obj.docstring.value)
            text = _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
            text = _HEADING.sub(r"\n\n\1\2:", text)
            obj.docstring.value = _PAPER.sub(r"\1*Paper:* ", text)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        self.on_object(obj=pkg)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Give the settings of a plan their help as a docstring, and their default as a value."""
        settings = {
            name: item for name, item in cls.attributes.items() if str(item.value).startswith("setting(")
        }
        if settings:
            real = getattr(import_module(cls.module.path), cls.name)
            for field in fields(real):
                if field.name in settings:
                    _explain(settings[field.name], field)

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Describe the arguments that the docstring leaves out; of a class, in that of the class."""
        described_by = func.parent if func.name == "__init__" else func
        if described_by is not None and described_by.docstring is not None:
            _describe(func, described_by.docstring)
            if described_by is not func:
                func.docstring = None
                for parameter in func.parameters:  # said once, among the arguments
                    if parameter.name in described_by.attributes:
                        described_by.attributes[parameter.name].docstring = None


def _formula(match: re.Match[str]) -> str:
    indent, formula = match.groups()
    lines = [_SPACES.sub(" ", line).strip() for line in formula.splitlines()]
    return "\n".join(f"{indent}{line}" for line in ("```latex", *(line for line in lines if line), "```"))


def _explain(attribute: Attribute, field: Field[Any]) -> None:
    attribute.docstring = Docstring(field.metadata["setting"].help, parent=attribute)
    value = field.default.value if isinstance(field.default, Enum) else field.default
    default = "{}" if field.default_factory is not MISSING else repr(value)
    attribute.value = None if field.default is field.default_factory is MISSING else default


def _describe(func: Function, docstring: Docstring) -> None:
    owner = func.parent.name if isinstance(func.parent, Class) and func.name != "__init__" else None
    names, text = {parameter.name for parameter in func.parameters}, docstring.value
    listed = _ARGUMENTS.search(text)
    start, end = (len(text), len(text)) if listed is None else listed.span()
    entries = [found for found in _ENTRY.finditer(text[start:end]) if found[1] in names]
    known = described(text[:start] + text[end:]) | {found[1] for found in entries}
    lines = [found.group().rstrip() for found in entries]
    for parameter in func.parameters:
        words = meaning(parameter.name, owner) if parameter.docstring is None else parameter.docstring.value
        if words is not None and parameter.name not in known:
            lines.append(f"    {parameter.name}: {' '.join(words.split())}")
    if lines:
        section = "\n\nArgs:\n" + "\n".join(lines) + "\n\n"
        docstring.value = text[:start].rstrip() + section + text[end:].lstrip("\n")
        vars(docstring).pop("parsed", None)  # what was made of it before
