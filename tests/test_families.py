"""Every supported family from a folder written as its published checkpoint, loaded by the code that loads a real one."""

import json

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from macs.config import preset
from macs.core import DROPPED, KEPT
from macs.engine.base import Request
from macs.engine.launch import RankGroup
from macs.engine.local import LocalEngine
from macs.engine.ranks import RanksEngine
from macs.eval.calibrate import Example, calibrate
from macs.model import apply, encode, load
from macs.model.anatomy import dissect
from macs.model.families import FAMILIES
from macs.model.load import read_config, without_weights
from macs.view import maps, selection
from macs.view.export import around
from macs.view.shown import open_run
from macs.view.words import Words
from tests import rank_jobs, tiny
from tests.checkpoints import CHECKPOINTS
from tests.hooked import experts_as, logits, poisoned_memory, watch
from tests.rank_fixtures import one_thread_a_rank  # noqa: F401

SIZE = (100, 60)
SUPPORTED = [name for name, family in FAMILIES.items() if not family.unusable]


class Made:
    """One family's checkpoint on disk, the model whose weights are in it, and what the loading code made of the folder."""

    def __init__(self, name, folder):
        self.is_, self.folder = CHECKPOINTS[name], folder
        self.written = self.is_.write(folder)
        self.loaded = load(folder)
        self.model = self.loaded.model
        self.batch = encode(self.loaded, "What is it?", tiny.picture(*SIZE))

    def run(self, policy="vanilla", **fields):
        with apply(self.model, policy, processor=self.loaded.processor, inputs=self.batch, **fields) as recording:
            return logits(self.model, self.batch), recording.trace


@pytest.fixture(scope="module", params=CHECKPOINTS)
def made(request, tmp_path_factory):
    return Made(request.param, tmp_path_factory.mktemp("family") / request.param)


@pytest.fixture(scope="module")
def group():
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


def test_every_supported_family_has_a_checkpoint_here():
    assert sorted({checkpoint.family for checkpoint in CHECKPOINTS.values()}) == sorted(SUPPORTED)


def test_every_published_weight_arrives_where_it_belongs(made):
    ours, theirs = made.model.state_dict(), made.written.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_anatomy_is_known_from_the_config_alone(made):
    blank = without_weights(read_config(str(made.folder)))
    assert all(parameter.device.type == "meta" for parameter in blank.parameters())
    anatomy = dissect(blank)
    assert [layer.index for layer in anatomy.layers] == [layer.index for layer in made.loaded.anatomy.layers] == list(made.is_.layers)
    assert (anatomy.family.name, anatomy.num_experts, anatomy.top_k, anatomy.image_token) == (made.is_.family, tiny.EXPERTS, tiny.TOP_K, tiny.IMAGE)


def test_visual_tokens_pictures_and_cells_are_those_counted_from_the_picture(made):
    _, trace = made.run()
    tokens, ids = trace.tokens, made.batch["input_ids"][0].numpy()
    assert np.array_equal(tokens.visual_T, ids == tiny.IMAGE) and tokens.valid_T.all()
    start = int(tokens.visual_T.argmax())
    if made.is_.cells is None:
        assert tokens.visual_T.sum() == made.is_.queries and np.isnan(tokens.cell_T4).all() and made.loaded.notices
        return
    expected = []
    for rows, columns, (x0, y0, x1, y1) in made.is_.cells(*SIZE):
        width, height = (x1 - x0) / columns, (y1 - y0) / rows
        for row in range(rows):
            expected += [[x0 + c * width, y0 + row * height, x0 + (c + 1) * width, y0 + (row + 1) * height] for c in range(columns)]
    assert tokens.visual_T[start : start + len(expected)].all() and tokens.visual_T.sum() == len(expected)
    np.testing.assert_allclose(tokens.cell_T4[tokens.visual_T], np.clip(expected, 0, 1), atol=1e-6)


def test_all_cells_of_a_picture_cover_it_once_and_places_are_as_cells_lie(made):
    _, trace = made.run()
    tokens = trace.tokens
    if made.is_.cells is None:
        return
    assert set(tokens.image_T[tokens.visual_T]) == set(range(len(trace.grids)))
    for image, (rows, columns) in enumerate(trace.grids):
        of_image = tokens.image_T == image
        x0, y0, x1, y1 = tokens.cell_T4[of_image].T
        assert of_image.sum() == rows * columns == len({tuple(place) for place in tokens.position_T2[of_image]})
        assert ((x1 - x0) * (y1 - y0)).sum() == pytest.approx(1, abs=1e-5)
        order = np.lexsort((x0, y0))
        assert (tokens.position_T2[of_image][order] == [[r, c] for r in range(rows) for c in range(columns)]).all()


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_vanilla_is_bit_identical_to_the_untouched_model(made, implementation):
    with experts_as(made.model, implementation):
        before = logits(made.model, made.batch)
        during, trace = made.run(ep_size=2)
        assert torch.equal(during, before) and torch.equal(logits(made.model, made.batch), before)
    count = made.batch["input_ids"].numel() * tiny.TOP_K
    assert tuple(layer.layer for layer in trace.layers) == made.is_.layers
    assert all(layer.kept == layer.pairs == count for layer in trace.layers)
    assert (trace.about["router_scoring"], trace.router_normalizes) == made.is_.reading


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_dropped_pairs_add_exactly_nothing_and_the_rest_their_share(made, implementation):
    """The experts' output is the sum over executed pairs, each expert asked alone, even when memory is full of NaN."""
    layer = dissect(made.model).layers[0]
    with experts_as(made.model, implementation), poisoned_memory():
        outputs, handle = watch(layer.experts, inputs=False)
        with apply(made.model, "token_drop", gamma=0.2, ep_size=2, inputs=made.batch) as run:
            inputs, last = watch(layer.experts, inputs=True)
            assert logits(made.model, made.batch).isfinite().all()
            handle.remove(), last.remove()
    hidden_TD, expert_TC, weight_TC = inputs[0]
    decision = run.trace.layers[0].decision
    assert np.array_equal(decision.expert_TC, expert_TC.numpy())
    assert ((expert_TC == tiny.EXPERTS) == (weight_TC == 0)).all() and (decision.status_TC == DROPPED).any()
    lost_T = torch.from_numpy((decision.status_TC == DROPPED).all(1))
    assert lost_T.any() and (outputs[0][lost_T] == 0).all()
    kept_T = (~lost_T).nonzero().flatten()[:12].tolist()  # a dozen tokens tell
    for token in kept_T:
        slots = np.nonzero(decision.status_TC[token] == KEPT)[0]
        alone = sum(layer.experts(hidden_TD[token, None], expert_TC[token, s].view(1, 1), weight_TC[token, s].view(1, 1))[0] for s in slots)
        torch.testing.assert_close(outputs[0][token], alone, rtol=1e-4, atol=1e-4)


def test_macs_under_two_ranks_is_macs_in_one_process(made, group):
    split = RanksEngine(str(made.folder), 2, lambda: group)
    fields = {"gamma": 0.5}
    expected, trace = rank_jobs.run_model(made.model, dict(made.batch), "macs", fields, 2)
    assert sum(layer.dropped for layer in trace.layers) > 0
    for found, of_rank, times in split.group.call(rank_jobs.forward, dict(made.batch), "macs", fields):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for layer, other in zip(of_rank.layers, trace.layers, strict=True):
            assert np.array_equal(layer.decision.expert_TC, other.decision.expert_TC)
        assert len(times) == len(trace.layers)


def test_generation_and_a_prompt_without_a_picture(made):
    with apply(made.model, "macs", gamma=0.5, ep_size=4, processor=made.loaded.processor, inputs=made.batch) as run:
        answer = made.model.generate(**made.batch, max_new_tokens=3, do_sample=False, eos_token_id=-1)
    assert answer.shape[1] == made.batch["input_ids"].shape[1] + 3 and run.decode_steps == 2
    assert run.trace.tokens.visual_T.sum() == (made.batch["input_ids"] == tiny.IMAGE).sum()
    batch = encode(made.loaded, "Only words")
    with apply(made.model, "macs", gamma=0.5, inputs=batch) as run:
        logits(made.model, batch)
    assert not run.trace.tokens.visual_T.any() and run.trace.layers[0].decision.visual_ratio == 0


def test_a_run_on_the_page_shows_each_view_of_the_picture_or_says_that_there_is_none(made):
    """The engine keeps the picture once for every view, and no map is drawn of tokens that have no place."""
    engine = LocalEngine(str(made.folder), ep_size=2)
    trace = engine.run(Request("What is it?", tiny.picture(*SIZE), 2), preset("macs", gamma=0.5)).trace
    views = 2 if made.is_.cells and len(made.is_.cells(*SIZE)) > 1 else 1
    assert len(trace.images) == views and len(set(trace.images)) == 1
    content = open_run(around(trace), "live")
    page = maps.weights(content, Words("en")) + maps.losses(content, Words("en")) + selection.render(content, Words("en"))
    assert "nan" not in page.lower() and page.count('class="pc"') == (0 if made.is_.cells is None else trace.tokens.visual_T.sum())
    assert ("no map" in page) == (made.is_.cells is None)
    for notice in made.loaded.notices:
        assert Words("zh").sentence(notice) != notice
    engine.close()


def test_every_layer_is_calibrated(made):
    pictures = [Example("What is it?", drawn=tiny.picture(*SIZE)), Example("Only words")]
    found = calibrate(made.loaded, pictures, 0.2)
    visual = int((made.batch["input_ids"] == tiny.IMAGE).sum())
    assert tuple(found.groups) == made.is_.layers
    assert all(sum(pairs) == visual * tiny.TOP_K for pairs in found.visual_pairs.values())


# --- the vision tower sees what a cell covers


def bright(batch, name):
    """Mean value of the pixels behind each visual token."""
    values = batch["pixel_values"]
    if name == "internvl":  # [tiles, 3, 32, 32], 8 pixels a token
        return values.mean(1).unfold(1, 8, 8).unfold(2, 8, 8).mean((-1, -2)).flatten()
    if name == "gemma-4":  # [1, patches, 48] at image_position_ids, 3 × 3 patches a token
        place, light = batch["image_position_ids"][0] // 3, values[0].mean(-1)
        real, columns = place[:, 0] >= 0, int(place[:, 0].max()) + 1
        return torch.stack([light[real & (place[:, 1] * columns + place[:, 0] == t)].mean() for t in range(columns * (int(place[:, 1].max()) + 1))])
    rows, columns = (batch["image_grid_thw"][0, 1:] // 2).tolist()  # kimi: patches row by row, 2 × 2 a token
    light = values.flatten(1).mean(1).view(rows, 2, columns, 2)
    return light.mean((1, 3)).flatten()


@pytest.mark.parametrize("name", ["internvl", "kimi-vl", "gemma-4"])
def test_the_brightest_token_is_the_one_whose_cell_holds_the_bright_spot(name, tmp_path):
    made = Made(name, tmp_path / name)
    picture = np.zeros((60, 100, 3), np.uint8)
    picture[48:56, 30:36] = 255
    batch = encode(made.loaded, "Where?", Image.fromarray(picture))
    with apply(made.model, "vanilla", processor=made.loaded.processor, inputs=batch) as run:
        logits(made.model, batch)
    tokens = run.trace.tokens
    light = bright(batch, name).numpy()
    assert len(light) == tokens.visual_T.sum()
    first = tokens.image_T[tokens.visual_T] == 0
    x0, y0, x1, y1 = tokens.cell_T4[tokens.visual_T][first][light[first].argmax()]
    assert x0 <= 0.33 <= x1 and y0 <= 52 / 60 <= y1


# --- families that are not here


@pytest.mark.parametrize("config, said", [(hf.Llama4Config, "no pair can be dropped"), (hf.Ernie4_5_VLMoeConfig, "separate experts.*not supported")])
def test_families_that_cannot_be_scheduled_say_why_before_a_weight_is_read(config, said, tmp_path):
    config().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a weight file")
    with pytest.raises(ValueError, match=said):
        load(tmp_path)


def llava(**text):
    text = tiny._TEXT | {"model_type": "qwen3_moe", "num_experts": tiny.EXPERTS, "num_experts_per_tok": tiny.TOP_K} | text
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    return hf.LlavaConfig(text_config=text, vision_config=vision, image_token_index=tiny.IMAGE, vision_feature_layer=-1)


def test_an_unknown_family_that_follows_the_common_calls_works():
    model = tiny._randomised(hf.LlavaForConditionalGeneration(llava()), 5)
    assert model.config.model_type not in FAMILIES
    ids = torch.tensor([[70, 71, *[tiny.IMAGE] * 16, 72, 73]])
    batch = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
    with apply(model, "vanilla", ep_size=2) as run:
        during = logits(model, batch)
    assert torch.equal(during, logits(model, batch)) and run.trace.tokens.visual_T.sum() == 16
    assert run.trace.about["router_scoring"] == "softmax" and np.isnan(run.trace.tokens.cell_T4).all()


@pytest.mark.parametrize(
    "text, said",
    [({"model_type": "qwen3", "num_experts": None}, "no module named 'experts'"), ({"mlp_only_layers": [0, 1, 2]}, "no module named 'experts'")],
)
def test_an_unknown_family_without_them_fails_before_a_weight_is_read(text, said, tmp_path):
    config = llava(**text)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "model.safetensors").write_bytes(b"not a weight file")
    with pytest.raises(ValueError, match=said):
        load(tmp_path)
