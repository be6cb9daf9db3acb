"""What the page's regions say is what the traces hold; every text exists in both languages; foreign text is escaped."""

import base64
import csv
import io
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest
from PIL import Image

from macs.config import Policy, preset
from macs.engine.base import Request
from macs.engine.compare import NAMES, Comparison, compare
from macs.trace import DROPPED, KEPT, REROUTED
from macs.trace_file import save_trace
from macs.view import curves, difference, export, findings, gantt, heat, layers, ledger, maps, method, picker, queues, reading, selection, session, settings, shown, tokens, trade
from macs.view.markup import esc
from macs.view.picture import pictures
from macs.view.words import LANGUAGES, Words, best_language, table
from tests.fake_engine import FakeEngine
from tests.made import made_picture, made_trace
from tests.markup import one, read

PHOTO = Path(__file__).parent / "data" / "cat.jpg"
EN, ZH = Words("en"), Words("zh")


@pytest.fixture(scope="module")
def content() -> shown.Shown:
    run = compare(FakeEngine(), Request("What animal is this?", Image.open(PHOTO)), preset("macs", gamma=0.6))
    return shown.open_run(run, "recorded")


@pytest.fixture(scope="module", params=["macs", "macs_no_reroute", "expanded_drop", "token_drop", "vanilla"])
def any_policy(request) -> shown.Shown:
    run = compare(FakeEngine(), Request("Which?", Image.open(PHOTO)), preset(request.param, gamma=0.7), baseline="expanded_drop")
    return shown.open_run(run, "live", seconds=1.0)


def cell(markup: str, row: str, column: str) -> str:
    part = markup.split(f'<tr data-row="{row}"')[1].split("</tr>")[0]
    return one(f"<tr{part}</tr>", data_col=column).text


# ---- readings


def test_queues_add_up_to_the_trace(any_policy):
    for trace in (any_policy.base, any_policy.policy):
        for layer in trace.layers:
            q = reading.queues(layer, trace.policy, trace.tokens.visual_T)
            assert (q.kept_N + q.away_N + q.dropped_N == q.routed_N).all()
            assert (q.kept_N + q.taken_N == q.executed_N).all()
            assert (q.kept_N.sum(), q.away_N.sum(), q.dropped_N.sum()) == (layer.kept, layer.rerouted, layer.dropped)
            assert sum(n for *_, n in q.flows) == layer.rerouted
            load_N = layer.decision.tokens_after_N if trace.policy.load == "tokens" else layer.decision.effective_after_N
            np.testing.assert_allclose(q.load_kept_N + q.load_taken_N, load_N, atol=1e-5)


def test_pairs_stand_in_the_order_of_admission(content):
    for trace in (content.base, content.policy):
        layer = trace.layers[content.layer]
        read_pairs = reading.pairs(layer, trace.policy)
        capacity_P = layer.decision.capacity_N[read_pairs.origin_P]
        kept_P = read_pairs.running_P <= capacity_P + 1e-5
        assert ((read_pairs.status_P == KEPT) == kept_P).all()  # a prefix of each queue fits, the rest is turned away
        assert len(read_pairs.token_P) == layer.pairs


def test_bricks_fill_their_bar_without_gaps(content):
    trace, layer = content.policy, content.layers[2]
    read_pairs, q = reading.pairs(layer, trace.policy), reading.queues(layer, trace.policy, trace.tokens.visual_T)
    for status, load_N in ((KEPT, q.load_kept_N), (REROUTED, q.load_away_N), (DROPPED, q.load_dropped_N)):
        for e in range(layer.num_experts):
            own_P = (read_pairs.origin_P == e) & (read_pairs.status_P == status)
            if own_P.any():
                last = np.nonzero(own_P)[0][-1]
                assert read_pairs.before_P[last] + read_pairs.load_P[last] == pytest.approx(load_N[e])


# ---- regions


def test_findings_name_the_slowest_rank_and_its_fullest_expert(content):
    vanilla = content.layers[0]
    tokens_G = vanilla.rank_tokens(4, before=True)
    rank = int(tokens_G.argmax())
    experts = vanilla.decision.tokens_before_N[rank * 4 : rank * 4 + 4]
    text = findings.overloaded(content, EN)
    ratio = tokens_G[rank] / (vanilla.pairs / 4)
    assert text.startswith(f"<b>Rank {rank} holds layer {content.number} back</b>: {tokens_G[rank]} of {vanilla.pairs} pairs, {ratio:.2f}× the mean.")
    assert text.endswith(f"Expert {rank * 4 + experts.argmax()} alone is routed {experts.max()}.")


def test_findings_count_what_the_policy_did(content):
    layer = content.layers[2]
    text = findings.done(content, EN)
    assert f"<b>Keeps {layer.kept}, reroutes {layer.rerouted}, drops {layer.dropped}</b> of {layer.pairs}" in text
    assert f"with {layer.rank_tokens(4).max()} tokens" in text


def test_findings_give_gain_and_cost(content):
    before = [layer.rank_tokens(4).max() for layer in content.now.vanilla.layers]
    after = [layer.rank_tokens(4).max() for layer in content.policy.layers]
    text = findings.gain_and_cost(content, EN)
    assert f"This layer {before[content.layer] / after[content.layer]:.2f}× faster, all layers together {sum(before) / sum(after):.2f}× faster" in text
    assert f"In the same time, token count drops {content.layers[1].dropped}." in text
    assert "modelled" in text


def test_a_baseline_that_took_another_time_is_not_called_the_same(content):
    slow = content.run.same_time.reschedule(preset("token_drop", gamma=4.0))
    off = replace(content, now=replace(content.now, same_time=slow))
    assert content.same_time == "met" and off.same_time == "near"
    text = findings.gain_and_cost(off, EN)
    assert "In the same time" not in text and f"takes {slow.straggler():.2f}× the mean, not {content.policy.straggler():.2f}×" in text
    assert f"takes {slow.straggler():.2f}×" in trade.sentence(off, EN)


def least_gamma(trace, target: float) -> float:
    """The least hundredth at which token drop is as slow as ``target`` on the trace's own routing."""
    for gamma in np.arange(1, 801) / 100:
        slow = []
        for layer in trace.layers:
            routed_N = np.bincount(layer.expert_TK.flatten(), minlength=16)
            slow.append(np.minimum(routed_N, np.ceil(gamma * layer.pairs / 16 - 1e-9)).reshape(4, 4).sum(1).max() / (layer.pairs / 4))
        if np.mean(slow) >= target - 1e-9:
            return gamma


def test_equal_time_is_set_from_the_baselines_own_run(content):
    other = compare(FakeEngine(), Request("Another prompt here", Image.open(PHOTO)), preset("macs", gamma=0.6)).vanilla
    ran = other.reschedule(preset("token_drop", gamma=2.0))  # its routers saw other hidden states, and it took another time
    run = replace(content.run, same_time=replace(ran, answer="two"))
    near = replace(content, run=run, now=run)
    gamma = least_gamma(other, content.run.policy.straggler())
    assert near.same_time == "near" and f"Equal time: token count at γ {gamma:.2f}" in trade.render(near, EN)
    set_ = shown.equalized(near)
    assert set_.now.same_time.policy.gamma == pytest.approx(gamma) and set_.same_time == "met" and set_.beside == "same_time"
    assert f"Equal time is set: token count at γ {gamma:.2f}" in trade.render(set_, EN)
    markup = ledger.render(set_, EN)
    assert markup.count('class="from"') == 1 and "from γ 2.00, δ 1.0" in markup.split('data-row="same_time"')[1]  # the one answer that waits
    assert set_.now.policy.layers[0].decision.status_TC.tolist() == run.policy.layers[0].decision.status_TC.tolist()


def test_where_equal_time_cannot_be_set_the_page_says_so(content):
    policy = content.run.policy.policy
    fixed = shown.plan(content, policy, "vanilla", 4)
    slow = fixed.now.same_time.straggler()
    assert f"Equal time cannot be set: vanilla drops nothing and has no γ; it always takes {slow:.2f}× the mean." in trade.render(fixed, EN)
    assert "vanilla has no γ: it takes" in trade.sentence(fixed, EN) and "has no γ" in ledger.render(fixed, EN)
    never = replace(content, now=replace(content.now, same_time_reached=False, planned=True))
    assert "Equal time cannot be set: no γ up to 8 makes token count this slow" in trade.render(never, EN)


@pytest.mark.parametrize(("ours", "theirs", "vanilla", "key"), [("a", "a", "a", "still"), ("a", "a", "b", "Both answer"), ("a", "b", "a", "answers “a”")])
def test_findings_compare_the_answers(content, ours, theirs, vanilla, key):
    run = replace(
        content.run,
        policy=replace(content.run.policy, answer=ours),
        same_time=replace(content.run.same_time, answer=theirs),
        vanilla=replace(content.run.vanilla, answer=vanilla),
    )
    assert key in findings.answers(replace(content, run=run, now=run), EN)


def test_ledger_rows_hold_the_traces_numbers(any_policy):
    markup = ledger.render(any_policy, EN)
    for row in NAMES:
        trace = getattr(any_policy.now, row)
        layer = trace.layers[any_policy.layer]
        assert cell(markup, row, "dropped") == f"{100 * trace.share(DROPPED):.1f}%"
        assert cell(markup, row, "slowest") == f"{trace.straggler():.2f}"
        assert cell(markup, row, "kl") == ("–" if trace.kl is None else f"{trace.kl:.3f}")
        part = markup.split(f'<tr data-row="{row}"')[1].split("</tr>")[0]
        assert f'aria-label="kept {layer.kept}, rerouted {layer.rerouted}, dropped {layer.dropped}"' in part
        assert layer.kept + layer.rerouted + layer.dropped == layer.pairs
        listed = ", ".join(str(n) for n in layer.rank_tokens(trace.ep_size))
        assert f'aria-label="{listed} tokens on ranks 0 to 3"' in part


def test_ledger_speedup_is_the_mean_over_layers_of_the_ratio_of_slowest_ranks(content):
    ratios = [a.rank_tokens(4).max() / b.rank_tokens(4).max() for a, b in zip(content.now.vanilla.layers, content.policy.layers)]
    assert cell(ledger.render(content, EN), "policy", "speedup") == f"{np.mean(ratios):.2f}×"


def test_changed_words_of_an_answer_are_marked():
    assert ledger.mark_changes("two red balloons", "two blue balloons") == "two <mark>blue</mark> balloons"
    assert ledger.mark_changes("three", "three") == "three"


def test_a_plan_says_from_which_settings_the_answers_are(content):
    planned = shown.plan(content, preset("macs", gamma=0.9), "token_drop", 4)
    assert planned.stale and "from γ 0.60, δ 1.0" in ledger.render(planned, EN)
    assert "Press Run for the answers." in findings.answers(planned, EN)
    assert not shown.plan(planned, content.policy.policy, "token_drop", 4).stale  # back at the run's settings it is the run


@pytest.mark.parametrize("source", ["first", "layer", "embedding"])
def test_the_embedded_model_says_whether_entropy_finds_its_objects(content, source):
    study = json.loads(maps.ENTROPY_STUDY.read_text(encoding="utf-8"))
    name = {"first": study["first"], "layer": f"layer {content.number}"}.get(source, source)
    found = study["sources"][name]
    trace = replace(content.policy, about={"model": "demo_model"}, policy=replace(content.policy.policy, entropy_source=source))
    key = "proxy_inverted" if found["high"] < 0.5 else "proxy_fair" if found["low"] > 0.5 else "proxy_chance"
    for words in (EN, ZH):
        note = maps.proxy_note(trace, content.number, words)
        assert note == words(key, a=f"{found['auroc']:.2f}", s=words(f"c_entropy_source_{source}"), n=found["images"])
        assert esc(note) in maps.weights(replace(content, now=replace(content.now, policy=trace)), words)
    assert maps.proxy_note(replace(trace, about={"model": "another"}), content.number, EN) == ""


def test_weight_cells_lie_where_the_model_saw_the_patches(content):
    trace = content.policy
    cells = [e for e in read(maps.weights(content, EN)) if e.has("pc")]
    tokens = np.nonzero(trace.tokens.visual_T)[0]
    assert [int(c.attrs["data-token"]) for c in cells] == tokens.tolist()
    for c, t in zip(cells, tokens):
        style = dict(pair.split(":") for pair in c.attrs["style"].split(";"))
        x0, y0, x1, y1 = trace.tokens.cell_T4[t]
        assert [float(style[k]) for k in ("--x", "--y", "--cw", "--ch")] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=1e-4)
        assert float(style["--w"]) == pytest.approx(trace.layers[content.layer].decision.token_weight_T[t], abs=1e-3)


def test_loss_maps_draw_every_lost_pair_of_a_patch_once(content):
    markup = maps.losses(content, EN)
    halves = markup.split('<div data-trace="policy">')
    for half, trace in zip(halves, (content.base, content.policy)):
        layer = trace.layers[content.layer]
        visual_T = trace.tokens.visual_T
        strips = [e for e in read(half.split('class="cells"')[1].split(">", 1)[1].split("</div>")[0])]
        for kind, status in (("pat-d", DROPPED), ("pat-i", REROUTED)):
            assert sum(e.has(kind) for e in strips) == int((layer.decision.status_TC[visual_T] == status).sum())
        assert f"<b>{layer.dropped}</b> dropped" in half


def test_queue_columns_say_their_numbers(any_policy):
    markup = queues.render(any_policy, EN)
    upper, lower = (reading.queues(t.layers[any_policy.layer], t.policy, t.tokens.visual_T) for t in (any_policy.base, any_policy.policy))
    for e in range(16):
        label = one(markup, data_expert=str(e)).attrs["aria-label"]
        for q in (upper, lower):
            assert f"is routed {q.routed_N[e]}, keeps {q.kept_N[e]}, takes in {q.taken_N[e]}, reroutes {q.away_N[e]}, drops {q.dropped_N[e]}" in label


def test_heat_is_load_over_capacity(content):
    markup = heat.render(content, EN).split("<h3>MACS</h3>")[1]
    numbers = []
    for kind, cells in zip(("expert", "rank"), heat.read(content.policy)):
        drawn = [e for e in read(markup) if f"data-cell-{kind}" in e.attrs]
        assert len(drawn) == cells.ratio_LX.size
        for e, ratio, turned in zip(drawn, cells.ratio_LX.flatten(), cells.turned_LX.flatten()):
            assert e.has("ho") == (ratio > 1 + 1e-6)
            assert f"load {ratio:.2f}× " in e.text and f"{turned} pairs turned away" in e.text  # its tooltip
        numbers.append([str(n) for n in cells.turned_LX.flatten() if n])
    assert [e.text for e in read(markup) if e.has("hv")] == sum(numbers, [])


def test_a_rank_is_loaded_with_what_it_was_asked_once(content):
    """Rerouting stays on the rank: its load is what the router asked of its experts, over the sum of their capacities."""
    ranks = heat.read(content.policy)[1]
    for layer, ratio_G, turned_G in zip(content.policy.layers, ranks.ratio_LX, ranks.turned_LX):
        asked_G, capacity_G = (x.reshape(4, 4).sum(1) for x in (layer.decision.effective_before_N, layer.decision.capacity_N))
        assert ratio_G == pytest.approx(asked_G / capacity_G, abs=1e-5)
        assert turned_G.sum() == layer.rerouted + layer.dropped


def test_picker_has_a_button_per_layer(content):
    buttons = [e for e in read(picker.render(content, EN)) if e.has("ly")]
    assert [b.attrs["aria-pressed"] for b in buttons].index("true") == content.layer
    for button, a, b in zip(buttons, content.now.vanilla.layers, content.policy.layers):
        assert f"{a.straggler(4):.2f} of the mean" in button.attrs["aria-label"] and f"{b.straggler(4):.2f} under MACS" in button.attrs["aria-label"]


# ---- selection


def test_default_focus_is_the_heaviest_token_that_lost_a_pair(content):
    layer = content.layers[2]
    lost_T = (layer.decision.status_TC == DROPPED).any(1) & content.policy.tokens.visual_T
    assert content.focus == ("token", int(np.argmax(np.where(lost_T, layer.decision.token_weight_T, -1))))


def test_a_token_is_followed_through_every_layer(content):
    token = content.focus[1]
    markup = selection.render(content, EN)
    cells = [e for e in read(markup) if e.tag == "td"]
    expected = []
    for trace in (content.base, content.policy):
        for slot in range(2):
            for layer in trace.layers:
                status, origin = layer.decision.status_TC[token, slot], layer.expert_TK[token, slot]
                expected.append({KEPT: f"{origin}", DROPPED: f"{origin} ✕", REROUTED: f"{origin}→{layer.decision.expert_TC[token, slot]}"}[status])
    assert [c.text for c in cells] == expected


def test_a_slot_may_hold_another_expert_in_each_run(content):
    """The baseline's run has routers of its own: its slot is told with its own expert and queue."""
    token = content.focus[1]
    other = compare(FakeEngine(), Request("Another prompt", Image.open(PHOTO)), preset("macs", gamma=0.6)).same_time
    mixed = replace(content, now=replace(content.now, same_time=other))
    texts = [one(selection.render(mixed, EN), class_="who").text]
    base, own = other.layers[content.layer], content.layers[2]
    for slot in range(2):
        e, f = base.expert_TK[token, slot], own.expert_TK[token, slot]
        if e != f:
            queue = int((own.expert_TK[own.decision.status_TC[:, :2] != 3] == f).sum())
            assert any(f"Token count: expert {e}, " in t and f"MACS: expert {f}, " in t and f" of {queue}, " in t for t in texts)
            break
    else:
        pytest.fail("both runs chose the same experts; take another prompt")


def test_a_tokens_marks_are_its_pairs(content):
    token, layer = content.focus[1], content.layers[2]
    marks = json.loads(one(selection.render(content, EN), class_="strip").attrs["data-marks"])
    own = {(e, "b") for e in layer.expert_TK[token].tolist()}
    moved = {(int(e), "b") for e, s in zip(layer.decision.expert_TC[token], layer.decision.status_TC[token]) if s == REROUTED}
    assert {(e, p) for e, p, _ in marks["dots"] if p == "b"} == own | moved
    top = queues.panel(content.policy, content.layer, EN).top
    assert all(0 <= y <= top for _, p, y in marks["dots"] if p == "b")


def test_an_experts_marks_are_the_tokens_it_serves_and_turned_away(content):
    layer = content.layers[2]
    expert = int(np.argmax(layer.decision.tokens_before_N))
    marks = json.loads(one(selection.render(replace(content, focus=("expert", expert)), EN), class_="strip").attrs["data-marks"])
    assert marks["tokens"] == np.nonzero((layer.decision.expert_TC == expert).any(1))[0].tolist()
    turned_TK = (layer.expert_TK == expert) & (layer.decision.status_TC != KEPT)
    assert marks["turned"] == np.nonzero(turned_TK.any(1))[0].tolist()


def test_a_rank_says_what_it_executes(content):
    text = one(selection.render(replace(content, focus=("rank", 2)), EN), class_="who").text
    base, own = content.layers[1].rank_tokens(4)[2], content.layers[2].rank_tokens(4)[2]
    assert "Holds experts 8 to 11." in text and f"executes {base} with token count, {own} with MACS" in text


# ---- whole page


@pytest.mark.parametrize("words", [EN, ZH], ids=LANGUAGES)
def test_every_region_is_well_formed_under_every_policy_and_focus(any_policy, words):
    for focus in (None, any_policy.focus, ("expert", 0), ("rank", 1), ("token", 0)):
        for layer in (0, 5):
            for markup in session.render(replace(any_policy, focus=focus, layer=layer), words).values():
                read(markup)


@pytest.mark.parametrize("ep_size", [1, 2, 16])
def test_every_number_of_ranks_is_shown(content, ep_size):
    planned = shown.plan(content, preset("macs", gamma=0.6), "token_drop", ep_size)
    cards = [e for e in read(queues.render(planned, EN)) if e.has("rank")]
    assert len(cards) == ep_size
    session.render(planned, EN)


def test_a_text_only_run_has_empty_maps_and_the_rest():
    run = compare(FakeEngine(), Request("No picture here"), preset("macs", gamma=0.6))
    regions = session.render(shown.open_run(run, "live"), EN)
    assert "No image, nothing to weigh." in regions["weights"] and "No image, nothing to weigh." in regions["losses"]
    assert "No image: a text-only run, every token counts 1." in regions["status"] and "text only" in regions["header"]
    assert [e for e in read(regions["queues"]) if e.has("ex")]


def test_foreign_text_never_becomes_markup():
    evil = '<img src=x onerror="alert(1)"> & \'"'
    run = compare(FakeEngine(), Request(evil, Image.open(PHOTO)), preset("macs", gamma=0.6))
    spoilt = {n: replace(getattr(run, n), answer=evil, about={"model": evil}) for n in NAMES}
    content = shown.open_run(replace(run, **spoilt), "live")
    word = int(np.nonzero(~content.policy.tokens.visual_T)[0][0])
    for focus in (content.focus, ("token", word)):
        for name, markup in session.render(replace(content, focus=focus), EN).items():
            assert "<img src=x" not in markup and "onerror=\"alert" not in markup, name
            read(markup)


def test_the_picture_keeps_its_proportions_and_stays_small():
    buffer = io.BytesIO()
    Image.open(PHOTO).resize((880, 300)).save(buffer, "PNG")
    run = compare(FakeEngine(), Request("x", Image.open(PHOTO)), preset("macs"))
    (picture,) = pictures(replace(run.policy, images=(buffer.getvalue(),)))
    assert (picture.width, picture.height) == (880, 300)
    assert picture.uri.startswith("data:image/jpeg;base64,") and len(picture.uri) < 200_000


# ---- words and settings


def test_both_languages_have_every_text_with_the_same_values():
    for key, texts in table().items():
        names = [{name for _, name, _, _ in string.Formatter().parse(texts[lang]) if name} for lang in LANGUAGES]
        assert names[0] == names[1], key
        assert all(texts[lang].strip() for lang in LANGUAGES), key


def test_every_text_is_used_and_every_key_used_exists():
    source = "".join(p.read_text() for p in (Path(session.__file__).parent).glob("*.py"))
    built = re.compile("^(p|in|c|bd|st|row|cost|err|phase|set|m|heat|res|lab)_")  # keys put together in code
    unused = [key for key in table() if f'"{key}"' not in source and f"'{key}'" not in source and not built.match(key)]
    assert not unused
    assert not [key for key in re.findall(r"""words(?:\.html)?\(["'](\w+)["']""", source) if key not in table()]


@pytest.mark.parametrize(("header", "lang"), [("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-GB,en", "en"), ("de,zh;q=0.5", "zh"), ("fr", "en"), ("", "en")])
def test_the_browser_chooses_the_language(header, lang):
    assert best_language(header) == lang


def test_an_engines_sentence_is_said_in_the_pages_language():
    assert ZH.sentence("Write a prompt first.") == "请先填写提示词。"
    assert ZH.sentence("This image makes 2000 visual tokens; at most 1024 run here. Use a smaller one.") == "该图像产生 2000 个视觉词元，此处最多 1024 个。请换小一些的图像。"
    assert ZH.sentence("Something else.") == "Something else."


def test_controls_and_policy_are_the_same_thing():
    policy = preset("macs", gamma=0.8, delta=2.0, rho=0.3, capacity_basis="effective", entropy_source="layer", min_affinity=0.5)
    values = settings.values_of(policy, "token_drop", 4)
    assert settings.policy_of(values) == policy and values["preset"] == "macs"
    assert {f.name for f in settings.FIELDS} - set(settings.OUTSIDE) == set(Policy.__dataclass_fields__)
    for field in settings.FIELDS:
        assert EN(field.word) and ZH(field.word)
        if field.name not in ("delta", "gamma"):
            assert EN(f"{field.word}_i") and ZH(f"{field.word}_i")
        for words in (EN, ZH):
            field.choices(words)


# ---- two policies side by side


def test_any_two_policies_stand_side_by_side_on_one_scale(content):
    for own, base in (("random_drop", "macs"), ("macs_static", "macs_no_entropy"), ("macs_shuffled", "vanilla"), ("expanded_drop", "lowest_weight_drop")):
        values = settings.values_of(preset(own, gamma=0.6), base, 4)
        planned = shown.plan(content, settings.policy_of(values), base, 4)
        assert (planned.policy.policy.preset, planned.base.policy.preset) == (own, base)
        for words in (EN, ZH):
            for markup in session.render(planned, words).values():
                read(markup)
            assert esc(words.policy(own)) in ledger.render(planned, words) and esc(words.policy(base)) in ledger.render(planned, words)


def test_a_baseline_takes_every_setting_that_its_name_leaves_open(content):
    policy = preset("macs", gamma=0.7, delta=2.0, rho=1.0, capacity_basis="effective", seed=3)
    planned = shown.plan(content, policy, "macs_shuffled", 4)
    assert planned.now.same_gamma.policy == preset("macs_shuffled", gamma=0.7, delta=2.0, rho=1.0, capacity_basis="effective", seed=3)
    assert shown.plan(content, policy, "token_drop", 4).now.same_gamma.policy.capacity_basis == "tokens"


def test_pairs_of_both_runs_are_matched_by_token_and_expert(content):
    """Two runs with other routers: only pairs that both made can change fate, wherever their slots are."""
    other = compare(FakeEngine(), Request("Another prompt here", Image.open(PHOTO)), preset("macs", gamma=0.6)).same_time
    mixed = replace(content, now=replace(content.now, same_time=other))
    a, b = other.layers[content.layer], content.layers[2]

    def ends(layer):
        return {(t, int(e)): int(s) for t in range(len(layer.expert_TK)) for e, s in zip(layer.expert_TK[t], layer.decision.status_TC[t])}

    base, own = ends(a), ends(b)
    both = base.keys() & own.keys()
    pairs = difference.changed(mixed)
    assert len(pairs.token_P) == len(both) < len(base) and pairs.base_alone == len(base) - len(both)
    assert pairs.table.tolist() == [[sum((base[p], own[p]) == (x, y) for p in both) for y in difference.FATES] for x in difference.FATES]
    assert f"{pairs.base_alone} more pairs" in difference.render(mixed, EN)


@pytest.mark.parametrize("name", ["random_drop", "lowest_weight_drop"])
def test_a_queue_stands_in_the_order_in_which_a_control_admits(name):
    trace = made_trace(preset(name, gamma=0.6))
    for layer in trace.layers:
        read_pairs = reading.pairs(layer, trace.policy)
        fits_P = read_pairs.running_P <= layer.decision.capacity_N[read_pairs.origin_P] + 1e-5
        assert ((read_pairs.status_P == KEPT) == fits_P).all() and not fits_P.all()


# ---- figures, tabs and what can be taken along


def test_curves_are_the_schedules_at_each_gamma(content):
    drawn = curves.curves(content)
    for curve, at in ((drawn.policy, lambda g: preset("macs", gamma=g)), (drawn.base, lambda g: preset("token_drop", gamma=g))):
        i = len(curve.gamma) // 2
        planned = (content.run.policy if curve is drawn.policy else content.run.same_time).reschedule(at(float(curve.gamma[i])))
        assert curve.straggler[i] == pytest.approx(planned.straggler())
        assert curve.dropped[i] == pytest.approx(planned.share(DROPPED))
        assert curve.moved[i] == pytest.approx(planned.share(DROPPED) + planned.share(REROUTED))
    assert drawn.fit(content) and drawn.fit(shown.plan(content, preset("macs", gamma=2.0), "token_drop", 4))
    assert not drawn.fit(shown.plan(content, preset("macs", gamma=0.6, delta=2.0), "token_drop", 4))
    assert curves.curves(content, cancelled=lambda: True) is None


def test_the_time_line_says_what_each_drops(content):
    now = content.now
    text = trade.sentence(content, EN)
    assert text.startswith(f"MACS drops {100 * now.policy.share(DROPPED):.1f}% at {now.policy.straggler():.2f}× the mean.")
    assert f"(γ {now.same_time.policy.gamma:.2f}) drops {100 * now.same_time.share(DROPPED):.1f}%" in text
    for drawn in (None, curves.curves(content)):
        read(trade.render(content, EN, drawn))


def test_waiting_is_the_share_of_rank_time_behind_the_slowest(content):
    time_LG = gantt.durations(content.policy, measured=False)
    layers = content.policy.layers
    assert (time_LG == [layer.rank_tokens(4) for layer in layers]).all()
    idle = sum(layer.rank_tokens(4).max() * 4 - layer.rank_tokens(4).sum() for layer in layers)
    assert gantt.waiting(time_LG) == pytest.approx(idle / sum(layer.rank_tokens(4).max() * 4 for layer in layers))
    assert f"{100 * gantt.waiting(time_LG):.0f}% with MACS" in gantt.render(content, EN)


def test_measured_times_are_shown_where_every_rank_was_clocked(content):
    def clocked(trace, factor):
        layers = tuple(replace(x, seconds={"experts": np.array([1.0, 2.0, 3.0, 4.0]) * factor / 1e3}) for x in trace.layers)
        return replace(trace, layers=layers)

    run = replace(content.run, **{n: clocked(getattr(content.run, n), 2.0 if n == "vanilla" else 1.0) for n in NAMES})
    measured = shown.open_run(run, "live", seconds=1.0, measured=True)
    assert "48.0 ms" in gantt.render(measured, EN) and "2.00× measured" in ledger.render(measured, EN)  # 6 layers of 8 ms
    assert "measured" in session.render(measured, EN)["header"]
    planned = shown.plan(measured, preset("macs", gamma=0.9), "token_drop", 4)  # nobody clocked this one
    assert "tokens executed, summed" in gantt.render(planned, EN) and "× measured" not in ledger.render(planned, EN)


def test_every_text_token_stands_with_the_fates_of_its_slots(content):
    trace, layer = content.policy, content.layers[2]
    markup = tokens.render(content, EN)
    chips = [e for e in read(markup) if e.tag == "button"]
    text_T = np.nonzero(~trace.tokens.visual_T & trace.tokens.valid_T)[0]
    assert [int(c.attrs["data-token"]) for c in chips] == text_T.tolist()
    names = {KEPT: "kept", DROPPED: "dropped", REROUTED: "rerouted"}
    for chip, t in zip(chips, text_T):
        assert chip.attrs["aria-label"].endswith(", ".join(names[s] for s in layer.decision.status_TC[t].tolist()))
    assert f"{int(trace.tokens.visual_T.sum())} image patches" in markup


def test_the_layer_table_holds_straggler_and_shares(content):
    for i, (v, b, p) in enumerate(zip(content.now.vanilla.layers, content.base.layers, content.policy.layers)):
        row = layers.rowdata(content, i)
        assert row[:3] == [v.straggler(4), b.straggler(4), p.straggler(4)]
        assert row[4:6] == [b.dropped / b.pairs, p.dropped / p.pairs]
        assert row[8:] == [b.lost_every_expert(), p.lost_every_expert()]
    assert len([e for e in read(layers.render(content, EN)) if "data-layer" in e.attrs]) == len(content.policy.layers)


def test_formulas_have_this_inputs_numbers_put_in(content):
    layer = content.layers[2]
    text = method.render(content, EN)
    capacity = 0.6 * layer.pairs / 16
    assert f"0.6 · {layer.pairs // 2} · 2 / 16 = {capacity:.2f}" in text
    assert f"= {layer.decision.visual_ratio:.3f}" in text
    assert f"{layer.rank_tokens(4).max()} / ({layer.pairs}/4) = {layer.straggler(4):.2f}" in text


def test_the_pair_table_has_every_pair_of_both_policies(content):
    rows = list(csv.DictReader(io.StringIO(export.pairs_csv(content))))
    assert len(rows) == 2 * sum(layer.pairs for layer in content.policy.layers)
    layer = content.layers[2]
    own = [r for r in rows if r["policy"] == "macs" and int(r["layer"]) == layer.layer]
    assert sum(r["status"] == "dropped" for r in own) == layer.dropped
    executed = np.bincount([int(r["executed_by"]) for r in own if r["executed_by"]], minlength=16)
    assert (executed == layer.decision.tokens_after_N).all()


def test_a_token_that_looks_like_a_formula_stays_text(content):
    texts = tuple("=1+1" if not v else "" for v in content.policy.tokens.visual_T)
    trace = replace(content.policy, tokens=replace(content.policy.tokens, text_T=texts))
    odd = replace(content, now=replace(content.now, policy=trace, same_time=trace))
    assert all(r["text"] in ("", "'=1+1") for r in csv.DictReader(io.StringIO(export.pairs_csv(odd))))


def test_traces_taken_along_come_back(content, tmp_path):
    (tmp_path / "run.zip").write_bytes(export.traces(content))
    back = export.opened(tmp_path / "run.zip")
    for name in NAMES:
        before, after = getattr(content.run, name), getattr(back, name)
        assert after.policy == before.policy and after.answer == before.answer and after.kl == before.kl
        assert all((a.decision.expert_TC == b.decision.expert_TC).all() for a, b in zip(before.layers, after.layers))


def test_one_trace_opens_with_the_other_policies_scheduled_and_no_answers(content, tmp_path):
    save_trace(content.run.policy, tmp_path / "one.npz")
    back = export.opened(tmp_path / "one.npz")
    assert back.policy.answer and not back.vanilla.answer and back.same_time.kl is None
    assert back.same_time.straggler() >= back.policy.straggler() - 1e-9
    assert "no answer" in ledger.render(shown.open_run(back, "file"), EN)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="This file is no trace"):
        export.opened(tmp_path / "x.npz")


def test_the_script_is_python_and_holds_every_setting(content):
    source = export.script(content)
    compile(source, "script", "exec")
    namespace: dict = {}
    exec("from macs.config import Policy\n" + source[source.index("policy =") : source.index("result =")], namespace)
    assert namespace["policy"] == content.policy.policy
    assert repr(content.run.policy.prompt) in source


def test_a_link_restores_settings_and_view(content):
    moved = shown.plan(content, preset("macs", gamma=0.9, delta=2.0, entropy_source="layer"), "expanded_drop", 8)
    moved = replace(moved, layer=2, beside="same_gamma", focus=("expert", 3), example="scene")
    query = dict(parse_qsl(export.link(moved)[1:]))
    assert query["example"] == "scene" and query["layer"] == "2" and query["focus"] == "expert-3"
    values = export.settings_from(query, settings.values_of(*shown.settings_of(content.run)))
    assert (settings.policy_of(values), values["baseline"], values["ep_size"]) == shown.settings_of(moved.now)


def test_nonsense_in_a_link_is_left_out(content):
    values = settings.values_of(*shown.settings_of(content.run))
    assert export.settings_from({"gamma": "much", "load": "bricks", "ep_size": "-1", "what": "1"}, values) == values


def test_the_report_is_one_whole_file(content):
    markup = export.report(session.render(content, EN), "p{}", EN)
    read(markup.replace("<!doctype html>", ""))
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg", "", markup)


def test_a_large_map_is_a_picture():
    trace = made_trace(preset("macs"), rows=4, columns=4, layers=24, experts=128, ep_size=8)
    plain = made_trace(preset("vanilla"), rows=4, columns=4, layers=24, experts=128, ep_size=8)
    big = shown.open_run(Comparison(plain, trace, trace, trace, True), "file")
    markup = heat.render(big, EN)
    assert "data-cell-expert" not in markup and markup.count('data-cell-columns="128"') == 2 and len(markup) < 150_000
    read(markup)


def alpha(uri: str) -> np.ndarray:
    """The opacity of a mask, from 0 to 255."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split("base64,")[1]))).getchannel("A"))


def test_maps_of_many_patches_are_pictures():
    trace = made_picture(made_trace(preset("macs", gamma=0.6), rows=51, columns=50, layers=2))
    base = trace.reschedule(preset("token_drop", gamma=0.6))
    content = replace(shown.open_run(Comparison(base, base, base, trace, True), "file"), focus=("expert", 3))
    markup = maps.weights(content, EN)
    assert not [e for e in read(markup) if e.has("pc")] and len(markup) < 40_000
    layer, visual_T = content.layers[2], trace.tokens.visual_T
    opaque_YX = alpha(one(markup, class_="through w-high").attrs["style"])
    for t in np.nonzero(visual_T)[0][::97]:
        x0, y0, x1, y1 = trace.tokens.cell_T4[t]
        at = int((y0 + y1) / 2 * opaque_YX.shape[0]), int((x0 + x1) / 2 * opaque_YX.shape[1])
        assert opaque_YX[at] == round(255 * float(layer.decision.token_weight_T[t]))
    lost = "<div><div>" + maps.losses(content, EN).split('<div data-trace="policy">')[1]
    for kind, status in (("pat-d", DROPPED), ("pat-i", REROUTED)):
        strips = (layer.decision.status_TC[visual_T] == status).sum()
        assert (alpha(one(lost, class_=f"through {kind}").attrs["style"]) > 0).mean() == pytest.approx(strips / (2 * visual_T.sum()), abs=0.02)
    assert "data-token" not in lost
    veil, turned = json.loads(one(selection.render(content, EN), class_="strip").attrs["data-marks"])["veils"][0]
    gone_T = ((layer.expert_TK == 3) & (layer.decision.status_TC != KEPT)).any(1) & visual_T
    assert (alpha(turned) > 0).mean() == pytest.approx(gone_T.sum() / visual_T.sum(), abs=0.01)
    assert (alpha(veil) > 0).mean() > 0.5
