"""The pages of the documentation: their links, headings and blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
"""Pages of the site, which holds nothing but `DOCS`."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "rules" / "README.md", *SITE]

_FENCE = re.compile(
    r"^(?P<reason><!-- not run: .+? -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of code. ``reason``: why it is not run, empty if it is."""

    language: str
    text: str
    line: int
    reason: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found["language"], found["text"], line, found["reason"] or "")


def links(page: Path) -> Iterator[str]:
    """Targets of links, those in code left out."""
    prose = re.sub(r"`[^`\n]+`", "", _FENCE.sub("", page.read_text()))
    yield from (found["target"] for found in _LINK.finditer(prose))


def anchors(page: Path) -> set[str]:
    """Names of the headings, where GitHub and the site agree on them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
