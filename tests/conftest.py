"""Options of the test run."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, default=GOLDEN, metavar="DIR", help="folder of golden answers (*.json)")
