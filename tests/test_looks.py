"""Every part of the page in both languages, both themes, at 1400 and 390 pixels: its numbers are those of the same trace.

The expected numbers are worked out here from the trace's arrays. A full screenshot of each look is kept in
``artifacts/screenshots``.
"""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from macs.config import policy_from_dict, preset
from macs.trace import DROPPED, KEPT, REROUTED
from macs.view.page_texts import TABS
from macs.view.settings import FIELDS, OUTSIDE
from macs.view.words import LANGUAGES, Words
from tests.browser import SIZES, download, go_to_layer, pressed_layer, ready, set_gamma, set_slider, tab

SCREENSHOTS = Path(__file__).parents[1] / "artifacts" / "screenshots"
LOOKS = [(size, theme, lang) for size in SIZES for theme in ("light", "dark") for lang in LANGUAGES]
RANKS, TOP_K = 4, 2
ROWS = ("vanilla", "same_gamma", "same_time", "policy")


@pytest.fixture(scope="module")
def content(workbench):
    return workbench.content


@pytest.fixture(scope="module")
def opened(chromium, workbench):
    """One tab for each width."""
    pages, errors = {}, []
    for size, viewport in SIZES.items():
        page = pages[size] = chromium.new_context(viewport=viewport, locale="en-GB").new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(workbench.address)
        ready(page)
    yield pages
    for page in pages.values():
        page.context.close()
    assert not errors


@pytest.fixture(scope="module", params=LOOKS, ids="-".join)
def look(request, opened):
    """One of the eight looks, with the first example on the screen; reached as a reader reaches it, by the page's own switches."""
    size, theme, lang = request.param
    page, words = opened[size], Words(lang)
    if page.locator("header[data-lang]").get_attribute("data-lang") != lang:
        page.locator("[data-send=language]").click()
    if (theme == "dark") != page.evaluate("document.body.classList.contains('dark')"):
        page.locator("[data-theme-switch]").click()
    expect(page.locator("h1")).to_have_text(words("title"))
    page.locator(".exs button").first.click()
    expect(page.locator(".badge")).to_contain_text(words("bd_recorded", model="synthetic 9.7 M", place="").split("</b>")[0].removeprefix("<b>"))
    return SimpleNamespace(page=page, words=words, dark=theme == "dark", name="-".join(request.param))


def fates(trace, layer, expert=None):
    """The number of pairs kept, rerouted and dropped, of one expert's queue or of all."""
    chosen_TK = np.ones((len(trace.tokens), TOP_K), bool) if expert is None else layer.expert_TK == expert
    return [int(((layer.decision.status_TC[:, :TOP_K] == fate) & chosen_TK).sum()) for fate in (KEPT, REROUTED, DROPPED)]


def counted(trace, layer):
    """What a pair of each token counts."""
    return layer.decision.token_weight_T.astype(float) if trace.policy.load == "entropy" else np.ones(len(trace.tokens))


def executed(layer):
    return np.bincount(layer.decision.expert_TC.flatten(), minlength=17)[:16].reshape(RANKS, -1).sum(1)


def place(trace, layer, token, expert):
    """The token's place in an expert's queue, the queue's length, and by how much the queue up to it misses the room."""
    load_T = counted(trace, layer)
    queue = np.nonzero((layer.expert_TK == expert).any(1))[0]
    rank_T = layer.scores_TN[queue, expert].astype(float) * (load_T[queue] if trace.policy.load == "entropy" else 1)
    order = queue[np.argsort(-rank_T, kind="stable")]
    at = int(np.nonzero(order == token)[0][0])
    return at + 1, len(order), load_T[order][: at + 1].sum() - layer.decision.capacity_N[expert]


def fate_words(trace, layer, token, slot, missing, words):
    status = layer.decision.status_TC[token, slot]
    if status == REROUTED:
        return words("fate_moved", f=int(layer.decision.expert_TC[token, slot]))
    digits = 0 if trace.policy.load == "tokens" else 2
    return words("fate_kept") if status == KEPT else words("fate_dropped", x=f"{missing:.{digits}f}")


def test_the_page_fits_the_screen_in_the_theme_asked_for(look):
    page = look.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 22)") == look.dark
    if look.name.startswith("phone"):  # one column there, in which a region without a place of its own would float to the top
        unplaced = "[...document.querySelectorAll('#left > *, #right > *:not(#controls), #controls > *')].filter((e) => getComputedStyle(e).order === '0').map((e) => e.id)"
        assert page.evaluate(unplaced) == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{look.name}.png", full_page=True)


def test_the_ledger_holds_the_four_runs(look, content):
    page, words = look.page, look.words
    assert pressed_layer(page) == content.layer
    vanilla = content.run.vanilla
    for row in ROWS:
        trace = getattr(content.run, row)
        layer = trace.layers[content.layer]
        kept, moved, dropped = fates(trace, layer)
        line = page.locator(f'tr[data-row="{row}"]')
        label = f"{words('kept')} {kept}, {words('rerouted')} {moved}, {words('dropped')} {dropped}"
        expect(line.locator(".stack")).to_have_attribute("aria-label", label)
        lost, pairs = (sum(n) for n in zip(*((fates(trace, x)[2], sum(fates(trace, x))) for x in trace.layers)))
        slowest = np.array([[executed(a).max(), executed(b).max()] for a, b in zip(vanilla.layers, trace.layers)])
        mean = [sum(fates(trace, x)) / RANKS for x in trace.layers]
        shown = [line.locator(f'[data-col="{column}"]').inner_text().split("\n")[-1] for column in ("dropped", "slowest", "speedup", "kl")]
        kl = "–" if trace.kl is None else f"{trace.kl:.3f}"
        assert shown == [f"{100 * lost / pairs:.1f}%", f"{np.mean(slowest[:, 1] / mean):.2f}", f"{np.mean(slowest[:, 0] / slowest[:, 1]):.2f}×", kl]
        assert line.locator(".ans b").inner_text() == trace.answer


def test_a_patch_tells_the_fate_of_its_pairs(look, content):
    page, words, trace = look.page, look.words, content.policy
    layer, visual_T = trace.layers[content.layer], trace.tokens.visual_T
    lost_T = (layer.decision.status_TC == DROPPED).any(1) & visual_T
    token = int(np.nonzero(lost_T)[0][len(np.nonzero(lost_T)[0]) // 2])
    page.locator(f'.pc[data-token="{token}"]').click()
    row, column = trace.tokens.position_T2[token]
    strip = page.locator(".strip")
    expect(strip.locator("h2")).to_contain_text(words("patch_t", r=row, c=column))
    text = strip.inner_text()

    entropy_T = trace.entropy_first_T[visual_T].astype(float)
    deviation = (trace.entropy_first_T[token] - entropy_T.mean()) / entropy_T.std()
    weight = 1 / (1 + np.exp(trace.policy.delta * deviation))
    side = words("below" if deviation < 0 else "above")
    assert words("counts_as", w=f"{weight:.2f}", h=f"{trace.entropy_first_T[token]:.2f}", z=f"{abs(deviation):.1f}", side=side) in text
    names = {"base": words.inside("token_drop"), "name": words.inside("macs")}
    both = [(own, own.layers[content.layer]) for own in (content.base, content.policy)]
    for slot in range(TOP_K):
        expert = int(layer.expert_TK[token, slot])
        read = [place(own, x, token, expert) for own, x in both]
        (i, n, _), (j, m, _) = read
        said = [fate_words(own, x, token, slot, missing, words) for (own, x), (_, _, missing) in zip(both, read)]
        if said[0] == said[1] == words("fate_kept"):
            assert f"{expert} ({layer.weight_TK[token, slot]:.2f})" in text
        else:
            line = words("fate_line", e=expert, i=words.ordinal(i), n=n, fa=said[0], j=words.ordinal(j), m=m, fb=said[1], **names)
            assert f"{words('slot_weight', s=slot, w=f'{layer.weight_TK[token, slot]:.2f}')} {line}" in text
    cells = []
    for own in (content.base, content.policy):
        for slot in range(TOP_K):
            for x in own.layers:
                origin, new = x.expert_TK[token, slot], x.decision.expert_TC[token, slot]
                cells.append({KEPT: f"{origin}", DROPPED: f"{origin} ✕", REROUTED: f"{origin}→{new}"}[x.decision.status_TC[token, slot]])
    assert strip.locator("td").all_inner_texts() == cells


def test_an_expert_lights_what_it_serves_and_marks_what_it_turned_away(look, content):
    page, words = look.page, look.words
    base, own = content.base.layers[content.layer], content.policy.layers[content.layer]
    visual_T = content.policy.tokens.visual_T
    expert = int(np.bincount(own.expert_TK.flatten()).argmax())
    page.locator(f'.ex[data-expert="{expert}"]').click()
    group = words({1: "visual", 0: "shared", -1: "text"}[int(own.modality_N[expert])])
    expect(page.locator(".strip h2")).to_contain_text(words("expert_t", e=expert, g=expert // 4, m=group))
    served_T = (own.decision.expert_TC == expert).any(1)
    turned_T = ((own.expert_TK == expert) & (own.decision.status_TC != KEPT)).any(1)
    for kind, expected_T in (("hit", served_T), ("gone", turned_T)):
        for patches, among_T in ((f".pc.{kind}", visual_T), (f".tok button.{kind}", ~visual_T)):
            found = page.locator(patches).evaluate_all("marked => marked.map((e) => Number(e.dataset.token))")
            assert found == np.nonzero(expected_T & among_T)[0].tolist()
    (a, _, b), (k, o, d) = (fates(trace, x, expert) for trace, x in ((content.base, base), (content.policy, own)))
    taken = int((own.decision.expert_TC == expert).sum()) - k
    routed, visual = int((own.expert_TK == expert).sum()), int((own.expert_TK[visual_T] == expert).sum())
    names = {"base": words.inside("token_drop"), "name": words.inside("macs")}
    assert words("expert_line", n=routed, v=visual, m=routed, u=visual, a=a, b=b, k=k, o=o, d=d, i=taken, **names) in page.locator(".strip").inner_text()
    label = page.locator(f'.ex[data-expert="{expert}"]').get_attribute("aria-label")
    capacity = f"{own.decision.capacity_N[expert]:.1f}"
    assert words("queue_alt_p", name="MACS", n=routed, k=k, i=taken, o=o, d=d, c=capacity) in label


def test_a_rank_tells_what_it_was_routed_and_executes(look, content):
    page, words, rank = look.page, look.words, 2
    vanilla, base, own = (trace.layers[content.layer] for trace in (content.run.vanilla, content.base, content.policy))
    page.locator(f'.rank[data-rank="{rank}"] .rh button').click()
    expect(page.locator(".strip h2")).to_contain_text(words("rank_t", g=rank))
    routed = int((vanilla.expert_TK // 4 == rank).sum())
    pairs = own.expert_TK.size
    lost = [[int(((x.expert_TK // 4 == rank) & (x.decision.status_TC == fate)).sum()) for fate in (DROPPED, REROUTED)] for x in (base, own)]
    numbers = {"a": 8, "b": 11, "n": routed, "tk": pairs, "x": f"{routed / (pairs / RANKS):.2f}", "p": executed(base)[rank], "q": executed(own)[rank]}
    names = {"base": words.inside("token_drop"), "name": words.inside("macs")}
    assert words("rank_line", **numbers, d=lost[0][0], f=lost[1][0], r=lost[1][1], **names) in page.locator(".strip").inner_text()
    table = [[str(executed(x)[rank]) for x in trace.layers] for trace in (content.run.vanilla, content.base, content.policy)]
    assert page.locator(".strip td b").all_inner_texts() == sum(table, [])


def test_every_cell_of_the_heatmaps_and_where_it_leads(look, content):
    page, words = look.page, look.words
    for index, trace in enumerate((content.base, content.policy)):
        cells = []
        for x in trace.layers:
            arrived_TK, load_T = x.decision.status_TC[:, :TOP_K] == REROUTED, counted(trace, x)
            for expert in range(16):
                asked = load_T[(x.expert_TK == expert).any(1)].sum() + load_T[(arrived_TK & (x.decision.expert_TC[:, :TOP_K] == expert)).any(1)].sum()
                _, moved, dropped = fates(trace, x, expert)
                cells.append(words("heat_expert", l=x.layer, e=expert, x=f"{asked / x.decision.capacity_N[expert]:.2f}", n=moved + dropped))
        assert page.locator("#heat .fig").nth(index).locator("[data-cell-expert] title").all_text_contents() == cells
        ranks = []
        for x in trace.layers:
            asked_N = np.array([counted(trace, x)[(x.expert_TK == expert).any(1)].sum() for expert in range(16)])
            ratio_G = asked_N.reshape(RANKS, -1).sum(1) / x.decision.capacity_N.reshape(RANKS, -1).sum(1)
            for rank, ratio in enumerate(ratio_G):
                turned = sum(sum(fates(trace, x, expert)[1:]) for expert in range(4 * rank, 4 * rank + 4))
                ranks.append(words("heat_rank", l=x.layer, e=rank, x=f"{ratio:.2f}", n=turned))
        assert page.locator("#heat .fig").nth(index).locator("[data-cell-rank] title").all_text_contents() == ranks
    other = (content.layer + 1) % 6
    page.locator("#heat .fig").nth(1).locator(f'[data-cell-layer="{other}"] [data-cell-expert="7"]').click()
    expect(page.locator(".strip h2")).to_contain_text(f"{words('expert')} 7")
    assert pressed_layer(page) == other
    page.locator("#heat .fig").nth(0).locator(f'[data-cell-layer="{content.layer}"] [data-cell-rank="1"]').click()
    expect(page.locator(".strip h2")).to_contain_text(words("rank_t", g=1))
    assert pressed_layer(page) == content.layer


def test_every_word_stands_with_the_fates_of_its_slots(look, content):
    page, words, trace = look.page, look.words, content.policy
    tab(page, "tokens")
    layer = trace.layers[content.layer]
    names = {KEPT: words("kept"), REROUTED: words("rerouted"), DROPPED: words("dropped")}
    text_T = np.nonzero(~trace.tokens.visual_T)[0]
    expected = [words("token_alt", t=trace.tokens.text_T[t], fates=", ".join(names[s] for s in layer.decision.status_TC[t])) for t in text_T]
    assert page.locator("#tokens .tok button").evaluate_all("chips => chips.map((e) => e.getAttribute('aria-label'))") == expected


def test_two_policies_side_by_side_tell_which_pairs_changed_fate(look, content):
    page, words = look.page, look.words
    tab(page, "sides")
    base, own = (trace.layers[content.layer] for trace in (content.base, content.policy))
    ends = [(int(a), int(b)) for a, b in zip(base.decision.status_TC.flatten(), own.decision.status_TC.flatten())]  # both chose the same experts
    fates_ = (KEPT, REROUTED, DROPPED)
    crossed = [str(sum(end == (a, b) for end in ends)) for a in fates_ for b in fates_]
    assert page.locator(".crossed td").all_inner_texts() == crossed
    gained, lost = (sum((end[0] == DROPPED, end[1] == DROPPED) == way for end in ends) for way in ((True, False), (False, True)))
    differ = sum(a != b for a, b in ends)
    names = {"base": words.inside("token_drop"), "name": words.inside("macs")}
    said = words("diff_line", n=len(ends), m=differ, a=gained, b=lost, c=differ - gained - lost, l=own.layer, **names)
    assert said in page.locator("#difference").inner_text()
    assert page.locator(".changes button").count() == min(differ, 40)
    kls = page.locator(".answers td.num").all_inner_texts()
    assert kls == ["–", f"{content.base.kl:.3f}", f"{content.policy.kl:.3f}"]
    inside = "([svg]) => [...svg.querySelectorAll('circle, path')].every((e) => { const b = e.getBBox(); return b.y > 0 && b.y + b.height < 240; })"
    assert page.locator("#difference .fig").evaluate_all(inside), "a mark lies outside its panel"
    titles = page.locator("#difference .fig title").all_text_contents()
    both = [pair for pair in zip(content.base.layers, content.policy.layers)]
    slow = [f"{executed(x).max() / (x.expert_TK.size / RANKS):.2f}" for pair in both for x in pair]
    assert titles == slow + [f"{100 * x.dropped / x.expert_TK.size:.1f}%" for pair in both for x in pair]


def test_the_layer_table_holds_both_policies_and_their_difference(look, content):
    page = look.page
    tab(page, "sides")
    for i, row in enumerate(page.locator("#layers tbody tr").all()):
        v, b, p = (trace.layers[i] for trace in (content.run.vanilla, content.base, content.policy))
        slow = [executed(x).max() / (x.expert_TK.size / RANKS) for x in (v, b, p)]
        drop = [100 * fates(trace, x)[2] / x.expert_TK.size for trace, x in ((content.base, b), (content.policy, p))]
        shown = row.locator("td").all_inner_texts()
        assert shown[:3] == [f"{x:.2f}" for x in slow]
        assert shown[4:6] == [f"{x:.1f}%" for x in drop]
        for text, difference in ((shown[3], slow[2] - slow[1]), (shown[6], drop[1] - drop[0])):
            assert float(text.replace("−", "-").strip("%+")) == pytest.approx(difference, abs=0.051)


def test_the_curve_has_the_current_point_and_the_same_time(look, content):
    page, run = look.page, content.run
    lost = {row: sum(fates(getattr(run, row), x)[2] for x in getattr(run, row).layers) / sum(x.expert_TK.size for x in run.vanilla.layers) for row in ROWS}
    slow = {row: np.mean([executed(x).max() / (x.expert_TK.size / RANKS) for x in getattr(run, row).layers]) for row in ROWS}

    def drop_time(gamma: float) -> float:  # token drop executes min(routed, capacity) of each expert
        routed = [np.bincount(x.expert_TK.flatten(), minlength=16) for x in run.vanilla.layers]
        capacity = [np.ceil(gamma * x.expert_TK.size / 16 - 1e-9) for x in run.vanilla.layers]
        return np.mean([np.minimum(n, c).reshape(RANKS, -1).sum(1).max() / (n.sum() / RANKS) for n, c in zip(routed, capacity)])

    gamma = next(g / 100 for g in range(1, 801) if drop_time(g / 100) >= slow["policy"] - 1e-9)
    names = {row: look.words.policy(preset_) for row, preset_ in (("policy", "macs"), ("same_time", "token_drop"), ("same_gamma", "token_drop"))}
    at = {"policy": 0.6, "same_gamma": 0.6, "same_time": gamma}
    titles = page.locator("#trade .fig title").all_text_contents()
    for row, name in names.items():
        assert f"{name} γ {at[row]:.2f}: {slow[row]:.2f}, {100 * lost[row]:.1f}%" in titles
    line = float(page.locator("#trade .eq").get_attribute("x1"))
    circle = page.locator("#trade circle", has_text=f"γ {gamma:.2f}: {slow['same_time']:.2f}").first
    left = float(page.locator("#trade circle", has_text=f"γ 0.60: {slow['same_gamma']:.2f}").first.get_attribute("cx"))
    pixels = (line - left) / (slow["policy"] - slow["same_gamma"])  # of one straggler factor
    assert float(circle.get_attribute("cx")) - line == pytest.approx(pixels * (slow["same_time"] - slow["policy"]), abs=0.1)


def test_every_formula_has_this_layers_numbers(look, content):
    page, words, trace = look.page, look.words, content.policy
    layer, visual_T = trace.layers[content.layer], trace.tokens.visual_T
    token = int(np.nonzero(visual_T)[0][5])
    page.locator(f'.pc[data-token="{token}"]').click()
    expect(page.locator(".strip h2")).to_contain_text(words("patch_t", r=0, c=5))
    tab(page, "method")
    expect(page.locator(".method .live").first).to_contain_text(f"H = {trace.entropy_first_T[token]:.3f} nats")
    live = page.locator(".method .live").all_inner_texts()
    entropy_T = trace.entropy_first_T.astype(float)
    deviation = (entropy_T[token] - entropy_T[visual_T].mean()) / entropy_T[visual_T].std()
    weight_T = np.where(visual_T, 1 / (1 + np.exp((entropy_T - entropy_T[visual_T].mean()) / entropy_T[visual_T].std())), 1)
    base, share = 0.6 * layer.expert_TK.size / 16, weight_T[visual_T].sum() / weight_T.sum()
    kept, moved, dropped = fates(trace, layer)
    slowest = [int(executed(t.layers[content.layer]).max()) for t in (content.run.vanilla, trace)]
    expected = (
        f"H = {entropy_T[token]:.3f} nats",
        f"= {weight_T[token]:.3f}",
        f"0.6 · {len(trace.tokens)} · 2 / 16 = {base:.2f}",
        f"{weight_T[visual_T].sum():.1f} / {weight_T.sum():.1f} = {share:.3f}",
        "; ".join(f"{words(w)} (m = {sign}): {base * (1 + 0.5 * m * (share - 0.5)):.2f}" for m, sign, w in ((1, "+1", "visual"), (0, "0", "shared"), (-1, "−1", "text"))),
        f"{kept} / {layer.expert_TK.size}",
        f"{moved} {words('rerouted')}, {dropped} {words('dropped')}",
        f"{slowest[1]} / ({layer.expert_TK.size}/4) = {slowest[1] / (layer.expert_TK.size / 4):.2f}",
        f"{slowest[0]} / {slowest[1]} = {slowest[0] / slowest[1]:.2f}",
        f"{trace.kl:.4f} nats",
    )
    assert len(live) == len(expected) and all(part in text for part, text in zip(expected, live)), list(zip(expected, live))
    assert f"· {abs(deviation):.2f})" in live[1] or f"· −{abs(deviation):.2f})" in live[1]


def test_every_setting_shows_its_value_and_meaning_and_moves_the_plan(look, content):
    page, words, values = look.page, look.words, content.policy.policy.to_dict()
    page.locator(".more").click()
    for field in FIELDS:
        control = page.locator(f"#set-{field.name}")
        assert " ".join(words(field.word).split()) in control.inner_text()
        if field.name not in ("delta", "gamma"):
            assert words(f"{field.word}_i") in control.inner_text()
        if field.kind == "menu":
            assert control.locator("input").input_value() == words.policy({"preset": "macs", "baseline": "token_drop"}[field.name])
        if field.name in OUTSIDE:
            continue
        if field.kind == "choice":
            assert control.locator("label.selected").inner_text().strip() == field.text(values[field.name], words)
        else:
            assert float(control.locator("input[type=number]").input_value()) == values[field.name]
        if field.kind == "slider":
            assert float(control.locator("input[type=range]").input_value()) == values[field.name]
    set_gamma(page, 0.9)
    set_slider(page, "delta", 2)
    set_slider(page, "rho", 1)
    planned = content.run.plan(preset("macs", gamma=0.9, delta=2.0, rho=1.0))
    kept, moved, dropped = fates(planned.policy, planned.policy.layers[content.layer])
    label = f"{words('kept')} {kept}, {words('rerouted')} {moved}, {words('dropped')} {dropped}"
    expect(page.locator('tr[data-row="policy"] .stack')).to_have_attribute("aria-label", label)
    expect(page.locator("#status")).to_contain_text("γ 0.60, δ 1.0")
    assert f"γ {planned.same_time.policy.gamma:.2f}" in page.locator('tr[data-row="same_time"] th').inner_text()
    page.locator("#reset").click()
    expect(page.locator("#set-rho input[type=number]")).to_have_value("0.5")
    expect(page.locator(".badge")).not_to_contain_text(words("bd_stale", place="").split("</b>")[0].removeprefix("<b>"))
    page.locator(".more").click()


def test_what_is_taken_along_is_what_is_shown(look, content, tmp_path):
    page = look.page
    tab(page, "export")
    rows = list(csv.DictReader(io.StringIO(download(page, "#exp_pairs", tmp_path).read_text("utf-8-sig"))))
    for trace in (content.base, content.policy):
        for x in trace.layers:
            own = [r["status"] for r in rows if r["policy"] == trace.policy.preset and int(r["layer"]) == x.layer]
            assert [own.count(name) for name in ("kept", "rerouted", "dropped")] == fates(trace, x)
    settings = json.loads(download(page, "#exp_set", tmp_path).read_text())
    assert policy_from_dict(settings["policy"]) == preset("macs", gamma=0.6)
    assert (settings["preset"], settings["baseline"], settings["ep_size"], settings["layer"]) == ("macs", "token_drop", RANKS, content.policy.layers[content.layer].layer)


def test_the_audit_finds_nothing_serious_on_any_tab(look):
    """axe-core over the whole page with an expert lit and the settings open, then over each tab."""
    page = look.page
    page.locator('.ex[data-expert="3"]').click()
    page.locator(".more").click()
    expect(page.locator("#page.picking")).to_have_count(1)
    serious(page)
    page.locator(".more").click()
    for key in TABS:
        tab(page, key.removeprefix("tab_"))
        serious(page, "#tabs")


def serious(page, context: str | None = None) -> None:
    found = [v for v in Axe().run(page, context).response["violations"] if v["impact"] in ("serious", "critical")]
    assert not found, [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
