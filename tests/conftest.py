"""Options of the test run, and what many modules share: the embedded model, and its page on loopback."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
ASSETS = Path(__file__).parents[1] / "assets"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, default=GOLDEN, metavar="DIR", help="folder of golden answers (*.json)")


@pytest.fixture(scope="session")
def demo():
    """The embedded model in this process."""
    from macs.engine.local import LocalEngine

    engine = LocalEngine(str(ASSETS / "demo_model"))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def demo_page(demo):
    """The address of its page, launched as ``app.py`` launches it."""
    from macs.view.examples import find_examples
    from macs.view.page import build_page, launch_options

    page = build_page(demo, find_examples(ASSETS / "examples"))
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", show_error=True, **launch_options())
    yield address.rstrip("/")
    page.close()


@pytest.fixture(scope="session")
def client(demo_page):
    """A program that talks to that page."""
    from gradio_client import Client

    return Client(demo_page, verbose=False)
