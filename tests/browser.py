"""What the tests in a real browser share: Chromium, a served page, and the moves that a reader makes on it."""

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from macs.config import preset
from macs.engine.base import Request
from macs.engine.compare import compare, save_comparison
from macs.view.examples import find_examples
from macs.view.page import build_page, launch_options
from macs.view.page_texts import TABS

PHOTO = Path(__file__).parent / "data" / "cat.jpg"  # "Chelsea", CC0 by Stefan van der Walt, from scikit-image
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
SIZES = {"desktop": {"width": 1400, "height": 900}, "phone": {"width": 390, "height": 844}}
expect.set_options(timeout=30_000)  # a busy machine is slow, not wrong


@contextmanager
def browser():
    """Yield Chromium, ended afterwards."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def served(engine, examples, **options):
    """Yield the address of the page over ``engine``, launched as ``app.py`` launches it."""
    page = build_page(engine, examples)
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **options, **launch_options())
    yield address.rstrip("/")
    page.close()


def recorded(engine, folder: Path, requests: dict, length: int = 24):
    """Return recorded examples made in ``folder`` from name -> (prompt, picture or none), under MACS at gamma 0.6."""
    listing = []
    for name, (prompt, picture) in requests.items():
        if picture is not None:
            picture.save(folder / f"{name}.png")
            picture = picture.convert("RGB")
        save_comparison(compare(engine, Request(prompt, picture, length), preset("macs", gamma=0.6)), folder / name)
        listing.append({"prompt": prompt} | ({"file": f"{name}.png"} if picture else {"family": name}))
    (folder / "examples.json").write_text(json.dumps(listing))
    return find_examples(folder)


def ready(page: Page) -> None:
    """Wait until the page's script has marked what is selected."""
    expect(page.locator("#ledger table")).to_be_visible()
    page.wait_for_function("document.querySelector('.sel') && document.querySelector('#page').dataset.map")


def pressed_layer(page: Page) -> int:
    return int(page.locator('.ly[aria-pressed="true"]').get_attribute("data-value"))


def go_to_layer(page: Page, layer: int) -> None:
    page.locator(f'.ly[data-value="{layer}"]').click()
    expect(page.locator(f'.ly[data-value="{layer}"]')).to_have_attribute("aria-pressed", "true")


def set_slider(page: Page, name: str, value: float) -> None:
    """Type a value into a slider's box."""
    box = page.locator(f"#set-{name} input[type=number]")
    box.fill(f"{value:g}")
    box.press("Tab")


def set_gamma(page: Page, value: float) -> None:
    set_slider(page, "gamma", value)
    expect(page.locator('tr[data-row="policy"] th small')).to_contain_text(f"γ {value:.2f}")


def upload(page: Page, file: Path) -> None:
    page.locator("#upload input[type=file]").set_input_files(file)
    expect(page.locator("#upload img")).to_have_attribute("src", re.compile(f"{file.name}$"))


def assert_fault(page: Page, field: str, sentence: str) -> None:
    """Check that an error stands at its field: the sentence beside it, the field marked and described by it."""
    expect(page.locator("#field-error")).to_have_text(sentence)
    expect(page.locator(f"#{field}.faulty")).to_have_count(1)
    assert page.locator(f"#{field}[aria-describedby=field-error], #{field} [aria-describedby=field-error]").count() >= 1
    note, box = page.locator("#field-error").bounding_box(), page.locator(f"#{field}").bounding_box()
    assert note["y"] - (box["y"] + box["height"]) < 60, "the sentence stands elsewhere"


def tab(page: Page, name: str) -> None:
    page.locator(f"#tab_{name}-button").click()
    expect(page.locator(f"#{TABS[f'tab_{name}'][0]}")).to_be_visible()


def download(page: Page, button: str, folder: Path) -> Path:
    """Press a button and return the file it gives."""
    with page.expect_download() as waiting:
        page.locator(button).click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path
