"""What the site needs besides its pages.

* A figure is a `<picture>` with a light and a dark file, which follows the scheme that the reader's system asks for. The
  site has a switch of its own: it gets both images, and shows the one for its scheme.
* A page may link to a file of the repository outside `docs/`, so that it also reads well there. A linked result file is
  put into the site; of any other such link the words are kept.
* The page of the command line is written from the command line (`cli_page`).
* The pages of the paper's tables, and pages beside this folder that have no place yet, come under `Results` by themselves.
* Notebooks become pages under `Tutorial` (`notebooks`).
"""

from __future__ import annotations

import re
import sys
from os.path import relpath
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import notebooks
from cli_page import MARK, verbs_page

_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_PICTURE: Final = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)"><img alt="([^"]*)" src="([^"]+)"></picture>'
)
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", flags=re.MULTILINE | re.DOTALL)
_DOCS: Final = Path(__file__).parents[1]
_ROOT: Final = _DOCS.parent
_GENERATED: Final = (("The paper's tables", "paper"),)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that others write into `Results`, where they exist, and notebooks into `Tutorial`."""
    tutorial = next((entry["Tutorial"] for entry in config.nav or [] if "Tutorial" in entry), [])
    tutorial.extend(sorted(notebooks.pages().values(), reverse=True))  # the first classifier first
    results = next((entry["Results"] for entry in config.nav or [] if "Results" in entry), None)
    if results is None:
        return config
    for title, folder in _GENERATED:
        pages = sorted(page.name for page in (_DOCS / folder).glob("*.md"))
        if pages:
            pages.sort(key=lambda name: name != "index.md")
            results.append({title: [f"{folder}/{name}" for name in pages]})
    named = str(config.nav)
    results.extend(page.name for page in sorted(_DOCS.glob("*.md")) if f"'{page.name}'" not in named)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Put the notebooks, and every result file that a page links to, into the site."""
    for path, uri in notebooks.pages().items():
        files.append(File.generated(config, uri, content=notebooks.page_of(path)))
    linked: set[Path] = set()
    for page in files.documentation_pages():
        for match in _LINK.finditer(_FENCE.sub("", page.content_string)):
            target = _outside(page.src_uri, match.group(2))
            if target is not None and _is_result(target):
                linked.add(target)
    for target in sorted(linked):
        uri = target.relative_to(_ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend links that leave `docs/`, show figures in both schemes, and write the page of the command line."""
    if MARK in markdown:
        markdown = markdown.replace(MARK, verbs_page())
    markdown = _PICTURE.sub(r"![\2](\3#only-light)![\2](\1#only-dark)", markdown)

    def mended(match: re.Match[str]) -> str:
        words, link = match.group(1), match.group(2)
        target = _outside(page.file.src_uri, link)
        if target is None:
            return match.group(0)
        if not _is_result(target) and target not in notebooks.pages():
            return words
        here = (_DOCS / page.file.src_uri).parent
        inside = _DOCS / notebooks.pages().get(target, str(target.relative_to(_ROOT)))
        return f"[{words}]({Path(relpath(inside, here)).as_posix()})"

    parts, start = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(mended, markdown[start : fence.start()]), fence.group(0)]
        start = fence.end()
    return "".join([*parts, _LINK.sub(mended, markdown[start:])])


def _outside(page: str, link: str) -> Path | None:
    """The file of the repository that a link means, if it lies outside `docs/`."""
    if re.match(r"[a-z]+:|/", link):
        return None
    target = ((_DOCS / page).parent / link).resolve()
    if target.is_relative_to(_DOCS) or not target.is_relative_to(_ROOT):
        return None
    return target if target.exists() else None


def _is_result(target: Path) -> bool:
    return target.is_file() and target.is_relative_to(_ROOT / "results")
