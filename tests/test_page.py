"""The page in a real browser, on the embedded model: what it says is what the library computes for the same input."""

import re
import time

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Page, expect

from macs.config import preset
from macs.engine.base import Hooks, Request
from macs.engine.compare import NAMES, compare
from macs.engine.intake import open_image
from macs.trace import DROPPED
from macs.view import reading
from tests.browser import PHOTO, SIZES, assert_fault, go_to_layer, pressed_layer, recorded, served, set_gamma, upload

PROMPT = "Is the cat awake?"


@pytest.fixture(scope="module")
def engine(demo):
    return demo


@pytest.fixture(scope="module")
def examples(engine, tmp_path_factory):
    """Two recorded examples, a drawing and a text-only run, made here so that the test knows what they hold."""
    drawing = Image.new("RGB", (160, 160), "white")
    ImageDraw.Draw(drawing).ellipse((40, 40, 100, 100), fill="red")
    runs = {"circle": ("How many circles?", drawing), "words": ("Say hello.", None)}
    return recorded(engine, tmp_path_factory.mktemp("examples"), runs, length=8)


@pytest.fixture(scope="module")
def address(engine, examples):
    with served(engine, examples) as url:
        yield url


@pytest.fixture
def page(visit):
    return visit()


def ledger_cell(page: Page, row: str, column: str) -> str:
    return page.locator(f'tr[data-row="{row}"] td[data-col="{column}"]').inner_text().strip()


def assert_shows(page: Page, comparison, layer: int) -> None:
    """Check every number of ledger and queues against the traces."""
    for row in NAMES:
        trace = getattr(comparison, row)
        decided = trace.layers[layer]
        fates = page.locator(f'tr[data-row="{row}"] .stack')
        expect(fates).to_have_attribute("aria-label", f"kept {decided.kept}, rerouted {decided.rerouted}, dropped {decided.dropped}")
        assert decided.kept + decided.rerouted + decided.dropped == decided.pairs
        assert ledger_cell(page, row, "dropped") == f"{100 * trace.share(DROPPED):.1f}%"
        assert ledger_cell(page, row, "slowest") == f"{trace.straggler():.2f}"
        listed = ", ".join(str(n) for n in decided.rank_tokens(trace.ep_size))
        assert page.locator(f'tr[data-row="{row}"] .rbs').get_attribute("aria-label").startswith(f"{listed} tokens")
    for name, trace in (("Token count", comparison.same_time), ("MACS", comparison.policy)):
        queue = reading.queues(trace.layers[layer], trace.policy, trace.tokens.visual_T)
        for expert in range(trace.num_experts):
            label = page.locator(f'.ex[data-expert="{expert}"]').get_attribute("aria-label")
            assert f"{name} is routed {queue.routed_N[expert]}, keeps {queue.kept_N[expert]}, takes in {queue.taken_N[expert]}, reroutes {queue.away_N[expert]}, drops {queue.dropped_N[expert]}," in label


def test_a_recorded_example_is_on_the_screen_before_anything_is_pressed(page, examples):
    recorded = examples[0].load()
    expect(page.locator(".badge")).to_contain_text("Recorded trace")
    expect(page.locator("#status")).to_contain_text("Recorded run of all four policies.")
    expect(page.locator("#prompt textarea")).to_have_value("How many circles?")
    assert_shows(page, recorded, pressed_layer(page))
    assert page.locator(".pc").count() == int(recorded.policy.tokens.visual_T.sum())


def test_a_photograph_and_a_prompt_run_and_the_page_agrees_with_the_library(page, engine):
    upload(page, PHOTO)
    page.locator("#prompt textarea").fill(PROMPT)
    set_gamma(page, 0.75)
    page.locator("#run").click()
    expect(page.locator(".badge")).to_contain_text("Live", timeout=120_000)
    expect(page.locator("#status")).to_contain_text("speed-up is modelled")
    expected = compare(engine, Request(PROMPT, open_image(PHOTO).image), preset("macs", gamma=0.75))
    layer = pressed_layer(page)
    assert_shows(page, expected, layer)
    for row in NAMES:
        trace = getattr(expected, row)
        assert page.locator(f'tr[data-row="{row}"] .ans b').inner_text().split() == (trace.answer.split() or ["no", "answer"])
        assert ledger_cell(page, row, "kl") == ("–" if trace.kl is None else f"{trace.kl:.3f}")

    # cells lie where the model saw the patches: a photograph of 451 × 300 has more columns than rows
    rows, columns = expected.policy.grids[0]
    assert columns > rows and page.locator(".pc").count() == rows * columns
    box, map_box = page.locator(".pc").nth(columns + 1).bounding_box(), page.locator(".wmap").bounding_box()
    assert box["width"] == pytest.approx(map_box["width"] / columns, abs=0.5)
    assert box["y"] - map_box["y"] == pytest.approx(map_box["height"] / rows, abs=0.5)

    # a slider schedules again from the recorded scores; the answers are the last run's, and the page says so
    set_gamma(page, 1.25)
    assert_shows(page, expected.plan(preset("macs", gamma=1.25)), layer)
    expect(page.locator("#status")).to_contain_text("Answers and KL are from γ 0.75, δ 1.0;")
    expect(page.locator(".badge")).to_contain_text("Settings changed")
    set_gamma(page, 0.75)
    expect(page.locator(".badge")).to_contain_text("Live")
    assert_shows(page, expected, layer)


def test_another_layer_and_the_other_baseline(page, examples):
    recorded = examples[0].load()
    other = (pressed_layer(page) + 1) % len(recorded.policy.layers)
    go_to_layer(page, other)
    assert_shows(page, recorded, other)
    page.locator("#beside label", has_text="same γ").click()
    expect(page.locator("#queues .rt").first).to_contain_text("γ 0.60")
    queue = reading.queues(recorded.same_gamma.layers[other], recorded.same_gamma.policy, recorded.same_gamma.tokens.visual_T)
    label = page.locator('.ex[data-expert="0"]').get_attribute("aria-label")
    assert f"Token count is routed {queue.routed_N[0]}, keeps {queue.kept_N[0]}, " in label


def test_settings_change_the_plan(page, examples):
    recorded = examples[0].load()
    page.locator(".more").click()
    page.locator("#set-overflow label", has_text="drop").nth(0).click()
    expect(page.locator('tr[data-row="policy"] th b')).to_have_text("MACS, no reroute")
    planned = recorded.plan(preset("macs_no_reroute", gamma=0.6))
    decided = planned.policy.layers[pressed_layer(page)]
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", f"kept {decided.kept}, rerouted 0, dropped {decided.dropped}")
    page.locator("#set-ep_size label", has_text="8").click()
    expect(page.locator(".rank")).to_have_count(8)
    page.locator("#reset").click()
    expect(page.locator(".rank")).to_have_count(4)
    expect(page.locator('tr[data-row="policy"] th b')).to_have_text("MACS")
    expect(page.locator(".badge")).to_contain_text("Recorded trace")


def test_a_patch_an_expert_and_a_rank_are_followed(page, examples):
    recorded = examples[0].load()
    layer = recorded.policy.layers[pressed_layer(page)]
    token = int(page.locator(".pc").nth(5).get_attribute("data-token"))
    page.locator(".pc").nth(5).click()
    row, column = recorded.policy.tokens.position_T2[token]
    expect(page.locator(".strip h2")).to_contain_text(f"Patch ({row}, {column})")
    expect(page.locator(".strip")).to_contain_text(f"Counts as {layer.decision.token_weight_T[token]:.2f} of a token")
    expect(page.locator(".plot.a .dot")).to_have_count(2)
    page.locator('.ex[data-expert="3"]').click()
    expect(page.locator(".strip h2")).to_contain_text("Expert 3")
    served = {int(e.get_attribute("data-token")) for e in page.locator(".pc.hit").all()}
    executed_T = (layer.decision.expert_TC == 3).any(1) & recorded.policy.tokens.visual_T
    assert served == set(executed_T.nonzero()[0].tolist())
    page.locator('.rank[data-rank="1"] .rh button').click()
    expect(page.locator(".strip h2")).to_contain_text("Rank 1")
    page.keyboard.press("Escape")
    expect(page.locator(".strip")).to_contain_text("Nothing selected.")


def test_a_text_only_run_works(page, engine):
    page.locator("#upload .icon-button").first.click()
    page.locator("#prompt textarea").fill("What is a cat?")
    page.locator("#run").click()
    expect(page.locator(".badge")).to_contain_text("text only", timeout=120_000)
    expect(page.locator("#weights")).to_contain_text("No image, nothing to weigh.")
    expected = compare(engine, Request("What is a cat?", None), preset("macs", gamma=0.6))
    assert_shows(page, expected, pressed_layer(page))


def test_bad_input_gives_one_sentence_and_the_last_run_stays(page, tmp_path):
    before = page.locator("#ledger table").inner_html()
    page.locator("#prompt textarea").fill("  ")
    page.locator("#run").click()
    assert_fault(page, "prompt", "Write a prompt first.")
    expect(page.locator("#status .error")).to_have_text("Not taken: correct the marked field.")
    page.locator("#prompt textarea").fill("What is this?")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"this is no image")
    upload(page, broken)
    page.locator("#run").click()
    assert_fault(page, "upload", "This file cannot be read as an image. Use PNG, JPEG, WEBP, GIF, BMP or TIFF.")
    expect(page.locator(".badge")).to_contain_text("showing the last complete run")
    assert page.locator("#ledger table").inner_html() == before
    expect(page.locator("#run")).to_be_enabled()


def test_stop_ends_a_run_and_keeps_the_page(page, engine, monkeypatch):
    run = type(engine).run

    def slow(self, request, policy, *, hooks, **options):
        def report(step):
            time.sleep(0.3)
            hooks.progress(step)

        return run(self, request, policy, hooks=Hooks(report, hooks.stop), **options)

    monkeypatch.setattr(type(engine), "run", slow)
    before = page.locator("#ledger table").inner_html()
    page.locator("#run").click()
    expect(page.locator("#stop")).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("policy 1 of 4", timeout=60_000)
    page.locator("#stop").click()
    expect(page.locator("#status")).to_contain_text("Stopped.", timeout=60_000)
    assert page.locator("#ledger table").inner_html() == before
    expect(page.locator("#run")).to_be_enabled()


def test_examples_can_be_opened(page, examples):
    page.locator(".exs button").nth(1).click()
    expect(page.locator("#prompt textarea")).to_have_value("Say hello.")
    expect(page.locator("#weights")).to_contain_text("No image, nothing to weigh.")
    assert_shows(page, examples[1].load(), pressed_layer(page))


def test_chinese_dark_and_phone(visit):
    page = visit(viewport=SIZES["phone"], locale="zh-CN", color_scheme="dark")
    expect(page.locator("h1")).to_have_text("MACS 工作台")
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    expect(page.locator("#run")).to_have_text("运行")
    expect(page.locator("#set-gamma label").first).to_contain_text("容量系数")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 22)"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("[data-send=language]").click()
    expect(page.locator("#run")).to_have_text("Run")
    page.locator("[data-theme-switch]").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
