"""The documents: every command in them parses, every link leads somewhere, and the citation holds both papers."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

import app
from macs.__main__ import COMMANDS
from tests import fuzz, load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "assets" / "docs").glob("*.md"))]
PREFIX = {("python", "app.py"): app.parse, ("python", "-m", "tests.load"): load.parse, ("python", "-m", "tests.fuzz"): fuzz.parse}
ELSEWHERE = ("pip", "hf")  # other people's tools; tests/test_space.py looks at hf


def commands(text: str) -> list[list[str]]:
    """Every command of a document's shell blocks and of its inline code that starts with python, split into words."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    inline = [code for code in re.findall(r"`(python -m [^`]+)`", text)]
    words = [shlex.split(part, comments=True) for line in [*blocks, *inline] for part in line.split("&&")]
    return [w for w in words if w]


def parse(words: list[str]) -> None:
    """Parse a command; raises SystemExit or KeyError if it cannot be."""
    if words[0] == "torchrun":
        words = ["python", *words[words.index("-m") :]]
    for prefix, parser in PREFIX.items():
        if tuple(words[: len(prefix)]) == prefix:
            return parser(words[len(prefix) :])
    if words[:3] == ["python", "-m", "pytest"] or words[0] in ELSEWHERE:
        return None
    assert words[:3] == ["python", "-m", "macs"], words
    name = next(n for n in (" ".join(words[3:5]), words[3]) if n in COMMANDS)
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
    return parser.parse_args(words[3 + len(name.split()) :])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_parses(page, capsys):
    found = commands(page.read_text())
    assert len(found) >= 5 or page.name == "numbers.md"
    for words in found:
        try:
            parse(words)
        except (SystemExit, StopIteration):
            pytest.fail(f"{' '.join(words)}: {capsys.readouterr().err}")


def test_a_command_that_does_not_exist_is_noticed():
    with pytest.raises(SystemExit):
        parse(shlex.split("python -m macs run --prompt x --gamam 1"))
    with pytest.raises(StopIteration):
        parse(shlex.split("python -m macs bench nothing"))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        path, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        assert (page.parent / path).exists(), link
        assert not anchor or anchor in anchors(page.parent / path), link


def test_the_readme_leads_to_every_page_and_the_pages_are_short():
    readme = PAGES[0].read_text()
    assert {page.name for page in PAGES[1:]} == {"own-model.md", "numbers.md", "own-gpus.md"}
    for page in PAGES[1:]:
        assert f"](assets/docs/{page.name})" in readme and len(page.read_text().splitlines()) <= 70
    assert "](CITATION.cff)" in readme


def test_every_flag_of_a_run_is_explained():
    text = (ROOT / "assets" / "docs" / "numbers.md").read_text()
    assert all(f"`--{flag}`" in text for flag in ("gamma", "delta", "capacity-basis", "entropy-source", "priority", "min-affinity", "renormalize", "phase", "seed"))


def test_the_citation_names_the_software_and_both_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license", "references"} <= set(cited)
    assert cited["license"] == "Apache-2.0" and f'version = "{cited["version"]}"' in (ROOT / "pyproject.toml").read_text()
    assert [paper["url"].rsplit("/", 1)[1] for paper in cited["references"]] == ["2605.05225", "2503.05066"]
    assert all(paper["authors"] and paper["title"] and paper["type"] == "conference-paper" for paper in cited["references"])
