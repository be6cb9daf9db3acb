"""The page as a workbench, in a real browser: links, downloads, selection, keyboard, queue, programs.

Runs on made-up router scores decided by the real scheduler; ``test_page`` has the embedded model, ``test_looks`` every
language, theme and width.
"""

import csv
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from gradio_client import Client, handle_file
from PIL import Image
from playwright.sync_api import expect

from macs.config import policy_from_dict, preset
from macs.engine.base import Request
from macs.engine.compare import NAMES, compare
from macs.engine.intake import open_image
from macs.trace_file import load_trace, save_trace
from macs.view import curves, export, gantt, heat, shown, trade
from macs.view.words import Words
from tests.browser import PHOTO, assert_fault, download, pressed_layer, set_gamma, set_slider, tab
from tests.made import made_picture, made_trace

EN = Words("en")


@pytest.fixture(scope="module")
def engine(workbench):
    return workbench.engine


@pytest.fixture(scope="module")
def examples(workbench):
    return workbench.examples


@pytest.fixture(scope="module")
def address(workbench):
    return workbench.address


@pytest.fixture(scope="module")
def content(workbench):
    return workbench.content


def test_a_link_restores_example_settings_and_view(visit, examples):
    page = visit("?example=detail&gamma=0.9&delta=2.0&layer=1&beside=same_gamma&focus=expert-5")
    expect(page.locator("#prompt textarea")).to_have_value("What colour are its eyes?")
    planned = examples[1].load().plan(preset("macs", gamma=0.9, delta=2.0))
    layer = planned.policy.layers[1]
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", f"kept {layer.kept}, rerouted {layer.rerouted}, dropped {layer.dropped}")
    expect(page.locator(".strip h2")).to_contain_text("Expert 5")
    expect(page.locator("#set-gamma input[type=number]")).to_have_value("0.9")
    tab(page, "export")
    link = page.locator("[data-take=link]").get_attribute("data-link")
    again = visit(link)
    expect(again.locator(".strip h2")).to_contain_text("Expert 5")
    assert again.locator("#ledger").inner_text() == page.locator("#ledger").inner_text()


def test_a_cell_of_the_map_leads_to_its_layer_and_expert(visit, content):
    page = visit()
    cells = heat.read(content.policy)[0]
    cell = page.locator('#heat .fig').nth(1).locator('[data-cell-layer="3"] [data-cell-expert="7"]')
    assert f"load {cells.ratio_LX[3, 7]:.2f}× capacity, {cells.turned_LX[3, 7]} pairs turned away" in cell.locator("title").text_content()
    cell.click()
    expect(page.locator(".strip h2")).to_contain_text("Expert 7")
    assert pressed_layer(page) == 3
    expect(page.locator('.ex[data-expert="7"]')).to_have_class("ex sel")


def test_a_barrier_block_leads_to_its_layer(visit):
    page = visit()
    page.locator("#gantt .hit-area").nth(1).click()
    expect(page.locator('.ly[data-value="1"]')).to_have_attribute("aria-pressed", "true")


def test_a_word_is_followed_like_a_patch(visit, content):
    page = visit()
    chip = page.locator(".tok button").nth(2)
    token = int(chip.get_attribute("data-token"))
    chip.click()
    expect(page.locator(".strip h2")).to_contain_text("Token")
    expect(page.locator(".strip")).to_contain_text("A text token counts 1.")
    chosen = {str(e) for e in content.layers[2].expert_TK[token]}
    assert chosen <= {e.get_attribute("data-expert") for e in page.locator(".ex.touch").all()}


def test_an_expert_veils_the_patches_it_does_not_serve(visit, content):
    page = visit()
    page.locator('.ex[data-expert="3"]').click()
    expect(page.locator("#page.picking")).to_have_count(1)
    layer, visual_T = content.layers[2], content.policy.tokens.visual_T
    turned_T = ((layer.expert_TK == 3) & (layer.decision.status_TC != 0)).any(1) & visual_T
    assert page.locator(".pc.gone").count() == int(turned_T.sum())


def test_the_keyboard_reaches_every_patch_and_expert(visit):
    page = visit()
    first = page.locator("#weights .pc").first
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    columns = round(1 / float(first.evaluate("e => getComputedStyle(e).getPropertyValue('--cw')")))
    assert page.evaluate("document.activeElement.dataset.token") == page.locator("#weights .pc").nth(columns + 1).get_attribute("data-token")
    page.keyboard.press("Enter")
    expect(page.locator(".strip h2")).to_contain_text("Patch (1, 1)")
    assert page.evaluate("document.activeElement.dataset.token") is not None, "focus survives the redraw"
    page.keyboard.press("Escape")
    expect(page.locator(".strip.none")).to_be_visible()
    page.locator(".ex").first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.expert") == "5"


def test_the_curves_follow_delta_and_the_time_line_follows_gamma(visit, content):
    page = visit()
    set_gamma(page, 1.0)
    planned = shown.plan(content, preset("macs", gamma=1.0), "token_drop", 4)
    expect(page.locator("#trade .fn").first).to_have_text(trade.sentence(planned, EN))
    expect(page.locator("#gantt .fn")).to_contain_text(f"{100 * gantt.waiting(gantt.durations(planned.policy, measured=False)):.0f}% with MACS")
    set_slider(page, "delta", 3)
    planned = shown.plan(content, preset("macs", gamma=1.0, delta=3.0), "token_drop", 4)
    point = f"γ {curves.GAMMAS[5]:.2f}: "
    drawn = curves.curves(planned).policy
    expect(page.locator("#trade .p2 title", has_text=point)).to_have_text(f"{point}{drawn.straggler[5]:.2f}, {100 * drawn.dropped[5]:.1f}%")


def test_what_is_downloaded_is_what_is_shown(visit, content, tmp_path):
    page = visit()
    set_gamma(page, 0.8)
    planned = content.run.plan(preset("macs", gamma=0.8))
    tab(page, "export")

    def taken(button: str) -> Path:
        return download(page, button, tmp_path)

    rows = list(csv.DictReader(io.StringIO(taken("#exp_pairs").read_text("utf-8-sig"))))
    own = [r for r in rows if r["policy"] == "macs"]
    assert sum(r["status"] == "dropped" for r in own) == sum(layer.dropped for layer in planned.policy.layers)
    assert policy_from_dict(json.loads(taken("#exp_set").read_text())["policy"]) == preset("macs", gamma=0.8)
    with zipfile.ZipFile(taken("#exp_trace")) as archive:
        assert {Path(n).stem for n in archive.namelist()} == set(NAMES)
        assert load_trace(io.BytesIO(archive.read("policy.npz"))).policy == content.run.policy.policy  # what ran, not the plan
    assert f"γ {0.8:.2f}" in taken("#exp_html").read_text("utf-8")
    assert taken("[data-take=svg]").read_text("utf-8").startswith("<svg")
    assert Image.open(taken("[data-take=png]")).size[0] == 840


def choose(page, file: Path) -> None:
    with page.expect_file_chooser() as waiting:
        page.locator("#open-trace").click()
    waiting.value.set_files(file)


def test_a_trace_file_is_opened(visit, content, tmp_path):
    page = visit()
    file = tmp_path / "mine.npz"
    save_trace(content.run.policy.reschedule(preset("macs", gamma=1.1)), file)
    tab(page, "export")
    choose(page, file)
    expect(page.locator(".badge")).to_contain_text("Trace file")
    expect(page.locator('tr[data-row="policy"] th small')).to_contain_text("γ 1.10")
    expect(page.locator("#set-gamma input[type=number]")).to_have_value("1.1")
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no trace")
    choose(page, bad)
    assert_fault(page, "open-trace", "This file is no trace; choose a file that the page or the command line wrote.")


def test_a_place_on_a_picture_of_many_patches_leads_to_its_patch(visit, tmp_path):
    page = visit()
    save_trace(made_picture(made_trace(preset("macs", gamma=0.6), rows=51, columns=50, layers=2)), tmp_path / "many.npz")
    tab(page, "export")
    choose(page, tmp_path / "many.npz")
    expect(page.locator(".places")).to_be_visible()
    box = page.locator(".places").bounding_box()
    page.locator(".places").click(position={"x": box["width"] * 20.5 / 50, "y": box["height"] * 10.5 / 51})
    expect(page.locator(".strip h2")).to_contain_text("Patch (10, 20)")
    page.locator(".places").press("ArrowRight")
    expect(page.locator(".strip h2")).to_contain_text("Patch (10, 21)")
    page.locator(".places").press("ArrowDown")
    expect(page.locator(".strip h2")).to_contain_text("Patch (11, 21)")
    ring, box = (page.locator(place).bounding_box() for place in ("#weights .ring", ".places"))
    assert ring["x"] - box["x"] == pytest.approx(box["width"] * 21 / 50, abs=1.5)
    page.locator('.ex[data-expert="3"]').click()
    expect(page.locator("#weights .veil")).to_have_count(1)


def test_the_button_sets_equal_time(visit, content, tmp_path):
    page = visit()
    run = replace(content.run, same_time=content.run.same_time.reschedule(preset("token_drop", gamma=2.0)))
    file = tmp_path / "slow.zip"
    file.write_bytes(export.traces(replace(content, run=run)))
    tab(page, "export")
    choose(page, file)
    expect(page.locator(".badge")).to_contain_text("Trace file")
    gamma = content.run.same_time.policy.gamma  # the same scores: the least that takes the policy's time
    expect(page.locator("#trade [data-send=equal]")).to_have_text(f"Equal time: token count at γ {gamma:.2f}")
    page.locator("#beside label", has_text="same γ").click()
    page.locator("#trade [data-send=equal]").click()
    row = page.locator('tr[data-row="same_time"]')
    expect(row.locator("th small")).to_have_text(f"same time, γ {gamma:.2f}")
    layer = content.run.same_time.layers[pressed_layer(page)]
    expect(row.locator(".stack")).to_have_attribute("aria-label", f"kept {layer.kept}, rerouted 0, dropped {layer.dropped}")
    expect(row.locator(".from")).to_have_text("from γ 2.00, δ 1.0")
    expect(page.locator("#beside label.selected")).to_have_text("same time")
    assert page.locator("#ledger .from").count() == 1 and page.locator("[data-send=equal]").count() == 0


def test_the_second_in_line_sees_its_place_and_the_first_can_stop(visit, engine):
    engine.pace = 0.4
    try:
        first, second = visit(), visit()
        first.locator("#run").click()
        expect(first.locator("#status")).to_contain_text("policy 1 of 4")
        second.locator("#run").click()
        expect(second.locator("#status")).to_contain_text("1 ahead in the queue")
        first.locator("#stop").click()
        expect(first.locator("#status")).to_contain_text("Stopped.")
        expect(second.locator("#status")).to_contain_text("policy 1 of 4")
        engine.pace = 0.0
        expect(second.locator(".badge")).to_contain_text("Live")
        expect(first.locator(".badge")).to_contain_text("Recorded trace")  # each tab keeps its own content
    finally:
        engine.pace = 0.0


def test_a_failing_engine_gives_one_sentence(visit, engine):
    page = visit()
    engine.fail = ValueError("This image makes 2000 visual tokens; at most 1024 run here. Use a smaller one.")
    try:
        page.locator("#run").click()
        assert_fault(page, "upload", f"{engine.fail} The page still shows the last complete run.")
        engine.fail = KeyError("bug")
        page.locator("#run").click()
        expect(page.locator("#status .error")).to_contain_text("The run failed in the model (KeyError).")
        expect(page.locator("#field-error")).to_have_count(0)
        expect(page.locator("#run")).to_be_enabled()
    finally:
        engine.fail = None


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("eps", "7", "eps 为 7；请用 1e-12 到 1 的数。"),
        ("seed", "-1", "seed 为 -1；请用 0 到 2147483647 的整数。"),
    ],
)
def test_a_setting_that_cannot_be_taken_is_said_at_its_field(visit, field, value, sentence):
    page = visit("?lang=zh")
    expect(page.locator("#run")).to_have_text("运行")
    before = page.locator("#ledger table").inner_html()
    page.locator(".more").click()
    box = page.locator(f"#set-{field} input")
    good = box.input_value()
    box.fill(value)
    box.press("Tab")
    assert_fault(page, f"set-{field}", sentence)
    assert page.locator("#ledger table").inner_html() == before and box.get_attribute("aria-invalid") == "true"
    box.fill(good)
    box.press("Tab")
    expect(page.locator("#field-error")).to_have_count(0)
    assert page.locator(".faulty, [aria-invalid=true]").count() == 0


def test_a_number_beyond_a_slider_is_taken_as_its_end(visit, content):
    page = visit()
    set_slider(page, "gamma", 99)
    expect(page.locator('tr[data-row="policy"] th small')).to_contain_text("γ 2.50")
    expect(page.locator("#set-gamma input[type=number]")).to_have_value("2.5")
    planned = content.run.plan(preset("macs", gamma=2.5)).policy.layers[content.layer]
    label = f"kept {planned.kept}, rerouted {planned.rerouted}, dropped {planned.dropped}"
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", label)


def test_settings_moved_during_a_run_apply_to_its_result(visit, engine):
    page = visit()
    engine.pace = 0.2
    try:
        page.locator("#run").click()
        expect(page.locator("#status")).to_contain_text("policy 2 of 4")
        set_gamma(page, 1.2)
        engine.pace = 0.0
        expect(page.locator("#status")).to_contain_text("Answers and KL are from γ 0.60, δ 1.0;")
        expect(page.locator('tr[data-row="policy"] th small')).to_contain_text("γ 1.20")
    finally:
        engine.pace = 0.0


def test_programs_get_the_same_numbers(address, engine):
    client = Client(address, verbose=False)
    result = client.predict(prompt="What animal is this?", image=handle_file(PHOTO), policy="macs", gamma=0.7, api_name="/compare")
    expected = compare(engine, Request("What animal is this?", open_image(PHOTO).image), preset("macs", gamma=0.7))
    for name in NAMES:
        trace = getattr(expected, name)
        assert [x["dropped"] for x in result[name]["layers"]] == [layer.dropped for layer in trace.layers]
        assert result[name]["answer"] == trace.answer and result[name]["kl"] == trace.kl
    with pytest.raises(Exception, match="Write a prompt first."):
        client.predict(prompt=" ", api_name="/compare")


def test_programs_schedule_a_trace_again(address, content, tmp_path):
    save_trace(content.run.policy, tmp_path / "t.npz")
    result = Client(address, verbose=False).predict(trace=handle_file(tmp_path / "t.npz"), policy="token_drop", gamma=0.5, ep_size=8, api_name="/schedule")
    expected = content.run.policy.reschedule(preset("token_drop", gamma=0.5), ep_size=8)
    assert [x["straggler"] for x in result["layers"]] == [layer.straggler(8) for layer in expected.layers]


def test_only_named_entry_points_are_public(address):
    described = Client(address, verbose=False).view_api(return_format="dict")
    assert set(described["named_endpoints"]) == {"/compare", "/schedule"} and not described["unnamed_endpoints"]


def test_an_answer_that_comes_late_does_not_stay_on_the_page(visit, content):
    page = visit()
    late: list = []

    def hold_the_first(route):  # that answers for γ 1.2, until the second one is on the page
        answer = route.fetch()
        if late or "γ 1.20" not in answer.text():
            return route.fulfill(response=answer)
        late.append((route, answer))

    page.route("**/run/predict*", hold_the_first)
    set_slider(page, "gamma", 1.2)
    while not late:
        page.wait_for_timeout(50)
    page.locator('.ly[data-value="2"]').click()  # answered at once, from γ 1.2 and layer 2
    planned = content.run.plan(preset("macs", gamma=1.2)).policy.layers[2]
    label = f"kept {planned.kept}, rerouted {planned.rerouted}, dropped {planned.dropped}"
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", label)
    route, answer = late[0]
    route.fulfill(response=answer)  # now the answer from γ 1.2 and the old layer
    page.wait_for_timeout(1500)
    expect(page.locator('.ly[data-value="2"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", label)
