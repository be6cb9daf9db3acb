"""Who may import whom, and the sizes of files: what keeps the project readable."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "macs").rglob("*.py")) + [ROOT / "app.py"]

# part -> parts of macs it may import (config may be imported by all but demo)
ALLOWED = {
    "config": set(),
    "core": {"core"},
    "trace": {"core", "trace"},
    "model": {"core", "trace", "model"},
    "engine": {"core", "trace", "model", "engine"},
    "eval": {"core", "trace", "model", "engine", "eval", "demo"},
    "view": {"trace", "engine", "view"},
    "demo": {"demo"},
    "app": {"engine", "view"},
    "root": {"core", "trace", "model", "engine", "eval", "view"},  # macs/__init__.py and macs/__main__.py
}
FOREIGN = {  # third-party packages that a part must not know
    "config": {"torch", "transformers", "gradio", "plotly", "numpy"},
    "core": {"transformers", "gradio", "plotly", "PIL"},
    "trace": {"transformers", "gradio", "plotly", "PIL"},
    "model": {"gradio", "plotly"},
    "engine": {"gradio", "plotly"},
    "eval": {"gradio"},
    "demo": {"gradio", "plotly"},
}


def part_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "app":
        return "app"
    if len(parts) == 2:
        return {"trace_file": "trace", "trace_records": "trace", "trace_import": "trace", "__init__": "root", "__main__": "root"}.get(parts[1], parts[1])
    return parts[1]


def imports(path: Path) -> set[str]:
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            found |= {f"{base}{node.module or ''}".rstrip(".")}
            if node.module == "macs" or (node.level and not node.module):
                found |= {f"{base or 'macs.'}{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_part_may(path):
    part = part_of(path)
    allowed = ALLOWED[part] | (set() if part == "demo" else {"config"})
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "macs" and rest:
            target = part_of(ROOT / "macs" / (rest[0] + ".py")) if len(rest) == 1 or not (ROOT / "macs" / rest[0]).is_dir() else rest[0]
            target = rest[0] if (ROOT / "macs" / rest[0]).is_dir() else target
            assert target in allowed, f"{part} may not import {name}"
        assert head not in FOREIGN.get(part, set()), f"{part} may not import {name}"


def test_view_figures_know_neither_torch_nor_gradio():
    for path in (ROOT / "macs" / "view").glob("*.py"):
        heads = {name.split(".")[0] for name in imports(path)}
        assert "torch" not in heads, path.name
        if "gradio" in heads:
            assert path.name.startswith("page"), f"{path.name}: only the page's modules know gradio"


def test_files_stay_readable_and_small():
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 300, path.name
    for path in ROOT.rglob("*"):
        inside_repo = not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        if path.is_file() and inside_repo:
            assert path.stat().st_size <= 10_000_000, path
