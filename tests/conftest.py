"""Options of the test run, and what many modules share: the embedded model, its page on loopback, Chromium, the workbench."""

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
    from tests.browser import served

    with served(demo, find_examples(ASSETS / "examples"), show_error=True) as address:
        yield address


@pytest.fixture(scope="session")
def client(demo_page):
    """A program that talks to that page."""
    from gradio_client import Client

    return Client(demo_page, verbose=False)


@pytest.fixture(scope="module")
def chromium():
    """The browser; one for each module, since it holds the thread's event loop."""
    from tests.browser import browser

    with browser() as chromium:
        yield chromium


@pytest.fixture
def visit(chromium, address):
    """A function that opens a new tab at the module's ``address``; a script error in any of them fails the test."""
    from tests.browser import SIZES, ready

    opened, errors = [], []

    def open_tab(query: str = "", **options):
        opened.append(chromium.new_context(**({"viewport": SIZES["desktop"], "locale": "en-GB"} | options)))
        page = opened[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + query)
        ready(page)
        return page

    yield open_tab
    for context in opened:
        context.close()
    assert not errors


@pytest.fixture(scope="session")
def workbench(tmp_path_factory):
    """The page over made-up router scores that the real scheduler decides: ``engine``, ``examples``, ``address`` and the ``content`` of its first screen."""
    from types import SimpleNamespace

    from PIL import Image

    from macs.view import shown
    from tests.browser import PHOTO, recorded, served
    from tests.fake_engine import FakeEngine

    engine, photo = FakeEngine(), Image.open(PHOTO)
    requests = {"cat": ("What animal is this?", photo), "detail": ("What colour are its eyes?", photo.crop((100, 50, 350, 250)))}
    examples = recorded(engine, tmp_path_factory.mktemp("examples"), requests)
    with served(engine, examples) as address:
        yield SimpleNamespace(engine=engine, examples=examples, address=address, content=shown.open_run(examples[0].load(), "recorded"))
