"""Routing records of vLLM and SGLang, written here in their published layouts, become traces that say what they lack."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macs.__main__ import main
from macs.config import preset
from macs.trace import KEPT, PADDING, UNSCORED
from macs.trace_file import load_trace
from macs.trace_import import LACKS, trace_of
from macs.trace_records import NO_RECORD, read_record
from macs.view import export, handlers, session, shown
from macs.view.settings import values_of
from macs.view.words import Words
from tests.markup import read
from tests.test_trace import same, saved

PROMPT, GENERATED, LAYERS, EXPERTS, TOP_K = 9, 4, 3, 16, 3
ROWS = PROMPT + GENERATED - 1  # the last generated token is never fed back


def routing(tokens=ROWS, layers=LAYERS, top_k=TOP_K, seed=0):
    """Skewed distinct experts for each token and layer, [T, L, K]."""
    scores = np.random.default_rng(seed).normal(size=(tokens, layers, EXPERTS)) + np.linspace(0, 2, EXPERTS)
    return np.argsort(-scores, 2)[:, :, :top_k]


IDS = routing()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return base64.b64encode(buffer.getvalue()).decode()


def int32(array):
    return base64.b64encode(np.ascontiguousarray(array, "<i4").tobytes()).decode()


def vllm(**changes):
    choice = {"index": 0, "text": " three", "token_ids": None, "routed_experts": npy(IDS.astype(np.uint8)), "finish_reason": "length"}
    usage = {"prompt_tokens": PROMPT, "completion_tokens": GENERATED, "total_tokens": PROMPT + GENERATED}
    return {"object": "text_completion", "model": "org/moe", "choices": [choice], "usage": usage} | changes


def vllm_0_21():
    split = {"prompt_routed_experts": IDS[:PROMPT].tolist()}
    return vllm(choices=[{"index": 0, "message": {"role": "assistant", "content": "three"}, "routed_experts": IDS[PROMPT:].tolist()}]) | split


def sglang(**meta):
    meta = {"prompt_tokens": PROMPT, "completion_tokens": GENERATED, "routed_experts": int32(IDS)} | meta
    return {"text": "three", "meta_info": meta}


def sglang_chat():
    return vllm(choices=[{"index": 0, "message": {"content": "three"}, "sgl_ext": {"routed_experts": int32(IDS)}}])


def dump(ids_TLK=IDS[:PROMPT], physical=None, **more):
    """The recorder's file: eight slots whatever top-k is, layer 0 without experts, a decode pass beside the prefill."""
    ids_LTK = np.full((LAYERS + 1, len(ids_TLK), 8), -1, np.int32)
    ids_LTK[1:, :, :TOP_K] = ids_TLK.transpose(1, 0, 2)

    def one(number, ids, mode):
        tokens = {"input_ids": list(range(100, 100 + ids.shape[1])), "positions": list(range(ids.shape[1])), "extend_seq_lens": [ids.shape[1]]}
        counts = torch.zeros(LAYERS + 1, EXPERTS, dtype=torch.int32)
        return {"forward_pass_id": number, "rank": 0, "gatherer_key": "primary", "forward_mode": mode, "topk_ids_of_layer": torch.from_numpy(ids),
                "misc_objects": [], "global_physical_count": counts, **tokens}  # fmt: skip

    places = torch.arange(EXPERTS).repeat(LAYERS + 1, 1) if physical is None else physical
    return {"records": [one(7, ids_LTK, 1), one(8, ids_LTK[:, :1], 2)], "last_physical_to_logical_map": places} | more


def write(content, folder):
    file = folder / ("record.pt" if isinstance(content, dict) and "records" in content else "record.json")
    if file.suffix == ".pt":
        torch.save(content, file)
    else:
        file.write_text(json.dumps(content))
    return file


SHAPED = {"layers": LAYERS, "top_k": TOP_K}
PUBLISHED = {
    "vllm": (vllm, {}),
    "vllm 0.21": (vllm_0_21, {}),
    "sglang": (sglang, SHAPED),
    "sglang batch": (lambda: [sglang(routed_experts=int32(IDS[::-1])), sglang()], SHAPED | {"choice": 1}),
    "sglang chat": (sglang_chat, SHAPED),
    "sglang dump": (dump, {}),
}


@pytest.fixture(params=PUBLISHED)
def trace(request, tmp_path):
    made, options = PUBLISHED[request.param]
    return trace_of(read_record(write(made(), tmp_path), **options), experts=EXPERTS, ep_size=4, name="named")


def test_the_prompts_experts_are_those_of_the_record_in_every_layout(trace):
    assert len(trace.layers) == LAYERS and (trace.num_experts, trace.top_k, trace.ep_size) == (EXPERTS, TOP_K, 4)
    assert trace.tokens.valid_T.sum() == PROMPT and trace.lacks == LACKS and not trace.scored
    for i, layer in enumerate(trace.layers):
        assert np.array_equal(layer.expert_TK, IDS[:PROMPT, i]) and (layer.kept, layer.dropped) == (PROMPT * TOP_K, 0)


def test_loads_and_stragglers_are_counted_from_the_ids(trace):
    for i, layer in enumerate(trace.layers):
        counts = [sum(int((IDS[t, i] == e).sum()) for t in range(PROMPT)) for e in range(EXPERTS)]
        ranks = [sum(counts[4 * g : 4 * g + 4]) for g in range(4)]
        assert layer.decision.tokens_before_N.tolist() == layer.decision.tokens_after_N.tolist() == counts
        assert layer.straggler(4) == pytest.approx(max(ranks) / (PROMPT * TOP_K / 4)) and layer.rank_tokens(4).tolist() == ranks
        assert layer.expert_straggler() == pytest.approx(max(counts) / (PROMPT * TOP_K / EXPERTS))


def test_what_the_record_lacks_is_nan_and_survives_the_file(trace):
    for layer in trace.layers:
        assert np.isnan(layer.scores_TN).all() and np.isnan(layer.weight_TK).all() and np.isnan(layer.decision.token_weight_T).all()
    assert same(load_trace(io.BytesIO(saved(trace))), trace)


def test_the_file_does_not_grow_with_scores_that_are_not_there(tmp_path):
    trace = trace_of(read_record(write(vllm(), tmp_path)), experts=65536)
    assert len(saved(trace)) < 200_000 and load_trace(io.BytesIO(saved(trace))).num_experts == 65536


def test_only_the_number_of_ranks_can_change(trace):
    assert trace.reschedule(trace.policy, ep_size=8).straggler() >= trace.straggler()
    for policy in (preset("macs"), preset("token_drop"), trace.policy.with_(gamma=0.5)):
        with pytest.raises(ValueError, match=UNSCORED):
            trace.reschedule(policy)


@pytest.mark.parametrize("made, options, model, answer", [(vllm, {}, "org/moe", "three"), (vllm_0_21, {}, "org/moe", "three"), (sglang, SHAPED, "named", "three")])
def test_model_and_answer_are_the_records(made, options, model, answer, tmp_path):
    trace = trace_of(read_record(write(made(), tmp_path), **options), experts=EXPERTS, name="named")
    assert (trace.about["model"], trace.answer) == (model, answer) and trace.about["source"] == ("SGLang" if made is sglang else "vLLM")


def test_token_ids_are_kept_where_the_record_has_them(tmp_path):
    ids = list(range(50, 50 + PROMPT))
    assert trace_of(read_record(write(vllm(prompt_token_ids=ids), tmp_path)), experts=EXPERTS).tokens.text_T[:2] == ("#50", "#51")
    assert trace_of(read_record(write(dump(), tmp_path))).tokens.id_T.tolist() == list(range(100, 100 + PROMPT))
    assert trace_of(read_record(write(vllm(), tmp_path)), experts=EXPERTS).tokens.text_T[:2] == ("[0]", "[1]")


def test_rows_that_no_router_filled_are_left_out_and_said(tmp_path):
    """Dense layers have a row of zeros in both engines' buffers, tokens whose routing was not kept too."""
    padded = np.zeros((ROWS, LAYERS + 2, TOP_K), np.uint8)
    padded[:, 1 : LAYERS + 1] = IDS
    padded[4] = 0
    trace = trace_of(read_record(write(vllm(choices=[{"text": "", "routed_experts": npy(padded)}]), tmp_path)), experts=EXPERTS)
    assert [layer.layer for layer in trace.layers] == [1, 2, 3] and np.flatnonzero(~trace.tokens.valid_T).tolist() == [4]
    assert (trace.layers[0].decision.status_TC[4] == PADDING).all() and (trace.layers[0].decision.status_TC[5] == KEPT).all()
    assert trace.layers[0].pairs == (PROMPT - 1) * TOP_K and trace.about["notices"] == ["Tokens without recorded routing, left out: 1."]


def test_physical_experts_of_a_dump_are_read_as_logical_ones(tmp_path):
    """Two redundant copies and a permutation: physical p holds logical (p + 3) mod 16 in every layer."""
    places = torch.tensor([(p + 3) % EXPERTS for p in range(EXPERTS + 2)]).repeat(LAYERS + 1, 1)
    trace = trace_of(read_record(write(dump((IDS[:PROMPT] - 3) % EXPERTS, places), tmp_path)))
    assert trace.num_experts == EXPERTS and all(np.array_equal(layer.expert_TK, IDS[:PROMPT, i]) for i, layer in enumerate(trace.layers))
    assert "ranks here hold them by their ids" in trace.about["notices"][1]


def test_a_pass_of_a_dump_can_be_chosen(tmp_path):
    file = write(dump(), tmp_path)
    assert len(trace_of(read_record(file)).tokens) == PROMPT and len(trace_of(read_record(file, forward_pass=8)).tokens) == 1
    with pytest.raises(ValueError, match="pass is 9, which this dump does not hold; it has 7 to 8"):
        read_record(file, forward_pass=9)


# --- the page


@pytest.fixture
def content(tmp_path):
    trace = trace_of(read_record(write(vllm(), tmp_path)), experts=EXPERTS, ep_size=4)
    (tmp_path / "run.npz").write_bytes(saved(trace))
    return shown.open_run(export.opened(tmp_path / "run.npz"), "file")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_shows_loads_and_turns_off_what_needs_scores(content, lang):
    words, focused = Words(lang), [content, *(replace(content, focus=focus) for focus in (("token", 2), ("expert", 15), ("rank", 3)))]
    for at in focused:
        regions = session.render(at, words)
        for name, markup in regions.items():
            assert "nan" not in "".join(e.text for e in read(markup)).lower() and ">nan" not in markup.lower(), name
    assert words("unscored_map") in regions["weights"] and words("unscored_map") in regions["losses"] and regions["trade"] == ""
    assert regions["ledger"].count("<tr data-row") == 1 and regions["findings"].count("<h3>") == 1
    assert "vLLM" in regions["status"] and words("unscored_token") in session.render(focused[1], words)["selection"]
    assert regions["heat"].count('class="h') > 2 * LAYERS * EXPERTS
    slowest = content.layers[0].rank_tokens(4)
    assert f"<b>{slowest.max()}</b>" in regions["ledger"]


def test_a_control_that_needs_scores_says_so_and_leaves_the_page_as_it_was(content):
    tab = session.Session(content)
    values = values_of(*shown.settings_of(content.now))
    assert handlers.adjust(tab, values) is not None and tab.status.kind == "ready"
    for change in ({"gamma": 0.5}, {"overflow": "drop"}, {"baseline": "expanded_drop"}):
        handlers.adjust(tab, values | change)
        assert tab.status == handlers.Status("error", UNSCORED) and tab.shown.now is content.now
    assert Words("zh").sentence(UNSCORED) != UNSCORED and handlers.draw_curves(tab) == {}
    handlers.adjust(tab, values | {"ep_size": 8})
    assert tab.shown.policy.ep_size == 8 and tab.status.kind == "ready" and not tab.shown.stale


def test_what_can_be_taken_along_holds_no_number_that_is_not_known(content, tmp_path):
    lines = export.pairs_csv(content).splitlines()
    assert lines[1].split(",")[-2:] == ["", ""] and len(lines) == 1 + 2 * LAYERS * PROMPT * TOP_K
    (tmp_path / "all.zip").write_bytes(export.traces(content))
    assert same(export.opened(tmp_path / "all.zip").policy, content.policy)
    space = {}
    (tmp_path / "policy.npz").write_bytes(saved(content.policy))
    exec(export.script(content).replace("policy.npz", str(tmp_path / "policy.npz")), space)
    assert space["layer"].layer == LAYERS - 1


# --- the command and what it refuses


def test_the_command_writes_a_trace_and_says_what_it_lacks(tmp_path, capsys):
    file, out = write(vllm(), tmp_path), tmp_path / "run.npz"
    assert main(["import", str(file), "--out", str(out), "--experts", "16", "--ep-size", "2"]) == 0
    text = capsys.readouterr().out
    assert "From vLLM: 9 tokens, 3 layers of 16 experts, top-3." in text and "Not known: scores, weights, entropies, modality" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    for i, row in enumerate(rows):
        counts = np.bincount(IDS[:PROMPT, i].ravel(), minlength=EXPERTS)
        assert [int(row[2]), int(row[4])] == [counts.max(), counts.reshape(2, -1).sum(1).max()]
    assert len(rows) == LAYERS and load_trace(out).ep_size == 2


def refused(content, said, tmp_path, capsys, *arguments):
    file = content if hasattr(content, "suffix") else write(content, tmp_path)
    assert main(["import", str(file), "--out", str(tmp_path / "x.npz"), *arguments]) == 2
    text = capsys.readouterr().err
    assert said in text and len(text.splitlines()) == 1 and not (tmp_path / "x.npz").exists()


def with_ids(value):
    return vllm(choices=[{"text": "", "routed_experts": value}])


BAD = [
    (with_ids("no base64!"), "not valid base64"),
    (with_ids("AAAA"), "give --layers"),
    (with_ids(npy(IDS)[:-40]), "it is damaged"),
    (with_ids(base64.b64encode(b"\x93NUMPY\x09\x00rubbish").decode()), "damaged .npy"),
    (with_ids(npy(np.array([[[{}]]], object))), "it is damaged"),
    (with_ids(npy(IDS.astype(np.float32))), "holds float32 values"),
    (with_ids(npy(IDS[:, 0])), "has the shape [12, 3]"),
    (with_ids(npy(IDS[:0])), "has the shape [0, 3, 3]"),
    (with_ids([[[1, 2], [3]]]), "unequal lists"),
    (with_ids([[[1.5, float("nan")]]]), "holds float64 values"),
    (with_ids([[[10**30]]]), "holds object values"),
    (with_ids(npy(IDS - 1)), "has expert -1"),
    (with_ids(npy(IDS + 1)), "but ids go from 0 to 15"),
    (with_ids(npy(IDS.transpose(0, 2, 1))), "one expert twice"),
    (with_ids(npy(np.zeros_like(IDS))), "no expert id at all"),
    (with_ids(npy(IDS[4:])), "ask for them from the first prompt token on"),
    (with_ids(None), "holds no routed_experts"),
    (vllm(usage=None), "the prompt has None tokens"),
    (vllm(usage={"prompt_tokens": -3}), "the prompt has -3 tokens"),
    (vllm(choices=[]), "holds no routed_experts"),
    (vllm(choices="x"), "no routing record"),
    ([], "the response has 0 answers"),
    (5, "holds no routed_experts"),
]  # fmt: skip


@pytest.mark.parametrize("content, said", BAD, ids=[said for _, said in BAD])
def test_a_bad_response_ends_with_one_sentence(content, said, tmp_path, capsys):
    refused(content, said, tmp_path, capsys, "--experts", "16")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--experts", "-4"], "experts is -4"),
        (["--experts", "99999999"], "experts is 99999999"),
        ([], "does not say how many experts"),
        (["--experts", "16", "--ep-size", "3"], "does not divide 16 experts"),
        (["--experts", "16", "--choice", "2"], "choice is 2, but the response has 1 answers"),
    ],
)
def test_flags_that_do_not_fit_end_with_one_sentence(arguments, said, tmp_path, capsys):
    refused(vllm(), said, tmp_path, capsys, *arguments)


def test_the_shape_given_for_sglang_must_fit(tmp_path, capsys):
    refused(sglang(), "give --layers", tmp_path, capsys, "--experts", "16")
    refused(sglang(), "no whole number of tokens", tmp_path, capsys, "--experts", "16", "--layers", "5", "--top-k", "7")
    refused(sglang(), "check --layers and --top-k", tmp_path, capsys, "--experts", "16", "--layers", "1", "--top-k", "9")


class Trap:
    """Its pickle would touch a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_dump_that_is_none_ends_with_one_sentence(tmp_path, capsys):
    bad = [
        (dump(records=[]), "record with --expert-distribution-recorder-mode per_token"),
        (dump(records=[{"forward_pass_id": 0, "global_physical_count": torch.ones(2, 2)}]), "mode per_token"),
        (dump(physical=torch.ones(3, 16, dtype=torch.int64)), "do not fit together"),
        (dump(physical=torch.full((4, 16), -1)), "do not fit together"),
        (dump(physical=torch.arange(8).repeat(4, 1)), "but there are 8 experts"),
        (dump(last_physical_to_logical_map=None), "do not fit together"),
        (dump(records=["x"]), "mode per_token"),
    ]
    for content, said in bad:
        refused(content, said, tmp_path, capsys)


def test_no_pickle_of_a_dump_is_run(tmp_path, capsys):
    refused(dump(more=Trap(tmp_path / "ran")), NO_RECORD, tmp_path, capsys)
    assert not (tmp_path / "ran").exists()


def test_other_files_and_none_end_with_one_sentence(tmp_path, capsys, monkeypatch):
    file = tmp_path / "other"
    for content in (b"", b"\x00\xff", b"PK\x03\x04 cut", b"[" * 100_000, b'{"choices": '):
        file.write_bytes(content)
        refused(file, NO_RECORD, tmp_path, capsys)
    refused(tmp_path / "nowhere.json", "There is no file 'nowhere.json'", tmp_path, capsys)
    monkeypatch.setattr("macs.trace_records.MAX_BYTES", 100)
    refused(vllm(), "more than 100 bytes", tmp_path, capsys)


def test_a_dump_that_unpacks_to_too_much_is_not_unpacked(tmp_path, capsys, monkeypatch):
    file = write(dump(), tmp_path)
    monkeypatch.setattr("macs.trace_records.MAX_BYTES", file.stat().st_size)
    import zipfile

    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for item in archive.namelist():
            packed.writestr(item, archive.read(item) + bytes(50_000))
    refused(tmp_path / "packed.pt", "This dump unpacks to", tmp_path, capsys)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_a_file_holds_it_is_a_trace_or_one_sentence(tmp_path_factory, data):
    whole = [json.dumps(vllm()).encode(), json.dumps(sglang()).encode(), WHOLE_DUMP]
    content = bytearray(data.draw(st.sampled_from(whole)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file = tmp_path_factory.mktemp("fuzz") / "record"
    file.write_bytes(content)
    try:
        assert trace_of(read_record(file, **SHAPED), experts=EXPERTS).num_experts == EXPERTS
    except ValueError as error:
        assert "\n" not in str(error) and str(error)


def _whole_dump():
    buffer = io.BytesIO()
    torch.save(dump(), buffer)
    return buffer.getvalue()


WHOLE_DUMP = _whole_dump()
