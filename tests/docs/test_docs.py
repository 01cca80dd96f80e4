"""What the documentation says can be done can be done: its links lead somewhere, its code runs."""

from __future__ import annotations

import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, PAGES, ROOT, SITE, Block, anchors, blocks, links, name_of
from typer.testing import CliRunner

from eqsat.cli import app
from eqsat.frontends import frontends, unregister
from eqsat.ir.operator import defined_operators, undefine
from eqsat.rewrite import registered_rules
from eqsat.rewrite import unregister as forget

RUNNABLE = ("python", "sh")

SECONDS = ("docs/extending/cost_models.md", "docs/engines.md")
"""Pages whose code takes that long."""

RUN = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.thorough] if name_of(page) in SECONDS else [])
    for page in PAGES
    if page.parent.name != "rules"
]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name_of(page)}: {link} does not exist"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}: there is no such heading"
        assert page not in SITE or target.is_relative_to(DOCS), f"{name_of(page)}: {link} is not part of the site"


@pytest.mark.parametrize("page", SITE, ids=name_of)
def test_every_page_is_listed(page: Path) -> None:
    assert str(page.relative_to(DOCS)) in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shown_examples_are_those_of_the_repository(page: Path) -> None:
    for block in blocks(page):
        first, _, rest = block.text.partition("\n")
        if first.startswith("# examples/"):
            path = ROOT / first.removeprefix("# ")
            assert rest == path.read_text(), f"{name_of(page)}:{block.line} is not {first.removeprefix('# ')}: copy it"
        elif block.language == "toml":
            tomllib.loads(block.text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a small model and the examples, in which nothing that is registered outlives the test."""
    import eqsat.rules  # noqa: F401

    monkeypatch.syspath_prepend(str(ROOT))
    attention_block: Callable[[Path], Path] = runpy.run_path(str(ROOT / "examples" / "attention_block.py"))[
        "attention_block"
    ]
    attention_block(tmp_path).rename(tmp_path / "model.onnx")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    rules, operators, known = (
        {r.name for r in registered_rules()},
        set(defined_operators()),
        {f.name for f in frontends()},
    )
    yield tmp_path
    for name in {r.name for r in registered_rules()} - rules:
        forget(name)
    for key in set(defined_operators()) - operators:
        undefine(key)
    for name in {f.name for f in frontends()} - known:
        unregister(name)


def _run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, *arguments = shlex.split(line, comments=True)
    if command == "eqsat":
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
    elif command == "python" and arguments[0].startswith("examples/"):
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        pytest.fail(f"{line}: such commands are not run here; say so before the block: <!-- not run: why -->")


def _run(block: Block, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if block.language == "python":
        exec(compile(block.text, f"line {block.line}", "exec"), names)
    else:
        for line in block.text.splitlines():
            if line.strip() and not line.startswith("#"):
                _run_line(line, monkeypatch)


@pytest.mark.parametrize("page", RUN)
def test_code_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page run one after another; those of Python share their names. `tests/rule_check` runs rules/README.md."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        shown = block.text.startswith("# examples/")  # commands on the page run it
        if block.language in RUNNABLE and not block.reason and not shown:
            _run(block, names, monkeypatch)


def test_most_code_runs() -> None:
    code = [block for page in PAGES for block in blocks(page) if block.language in RUNNABLE]
    assert sum(not block.reason for block in code) > len(code) / 2


def test_the_picture_is_of_what_a_run_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_line("python examples/attention_block.py", monkeypatch)
    drawn = (folder / "attention.svg").read_text()
    assert drawn == (DOCS / "attention.svg").read_text(), "draw it again: python examples/attention_block.py docs"


def test_repeated_layers_are_found(
    real_model: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_line(f"python examples/repeated_layers.py {real_model('squeezenet')}", monkeypatch)
    assert capsys.readouterr().out in (DOCS / "extending" / "networkx.md").read_text()
