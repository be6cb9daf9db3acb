"""Loading, encoding, and where visual tokens lie: against counts made here from the ids and the picture."""

import json
import types

import numpy as np
import pytest
import torch
import transformers as hf

from macs.model import apply, encode, load, read_calibration
from macs.model.families import FAMILIES
from macs.model.layout import lay_out, token_texts
from macs.model.router import read_router
from macs.model.views import views_of
from tests import tiny

PLACES = types.SimpleNamespace(visual_tokens=(tiny.IMAGE, tiny.VIDEO), image_token=tiny.IMAGE, video_token=tiny.VIDEO, merge_size=2, family=FAMILIES["qwen3_vl_moe"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tiny.qwen(), tmp_path_factory.mktemp("model") / "tiny-qwen")


@pytest.fixture(scope="module")
def loaded(folder):
    return load(folder)


# --- where tokens lie


def laid_out(rows, grids):
    ids_BS = np.array(rows)
    return lay_out(ids_BS, ids_BS != 256, PLACES, grids)


def test_spans_come_from_ids_and_grids_and_cells_are_row_major():
    rows = [[256, 256, 65, *[tiny.IMAGE] * 6, 66], [*[tiny.IMAGE] * 2, 65, *[tiny.IMAGE] * 4, 66, 67, 68]]
    tokens = laid_out(rows, {tiny.IMAGE: [(2, 3), (1, 2), (2, 2)]})
    assert tokens.image_T.tolist() == [-1] * 3 + [0] * 6 + [-1] + [1] * 2 + [-1] + [2] * 4 + [-1] * 3
    assert tokens.valid_T.tolist() == [False] * 2 + [True] * 18 and tokens.sequence_T.tolist() == [0] * 10 + [1] * 10
    assert tokens.position_T2[3:9].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    np.testing.assert_allclose(tokens.cell_T4[8], [2 / 3, 1 / 2, 1, 1])
    assert np.isnan(tokens.cell_T4[~tokens.visual_T]).all() and (tokens.position_T2[~tokens.visual_T] == -1).all()


def test_images_side_by_side_and_at_a_rows_end_stay_apart():
    tokens = laid_out([[65, *[tiny.IMAGE] * 5], [*[tiny.IMAGE] * 4, 65, 66]], {tiny.IMAGE: [(1, 2), (1, 3), (2, 2)]})
    assert tokens.image_T.tolist() == [-1, 0, 0, 1, 1, 1, 2, 2, 2, 2, -1, -1]
    unknown = laid_out([[65, *[tiny.IMAGE] * 5], [*[tiny.IMAGE] * 4, 65, 66]], {})
    assert unknown.image_T.tolist() == [-1, 0, 0, 0, 0, 0, 1, 1, 1, 1, -1, -1] and np.isnan(unknown.cell_T4).all()
    at_the_end = laid_out([[65, tiny.IMAGE], [65, 66], [tiny.IMAGE, 66]], {})
    assert at_the_end.image_T.tolist() == [-1, 0, -1, -1, 1, -1]


def test_an_image_token_under_the_mask_is_no_visual_token():
    ids_BS = np.array([[tiny.IMAGE, tiny.IMAGE, 65, tiny.IMAGE, tiny.IMAGE]])
    tokens = lay_out(ids_BS, np.array([[False, False, True, True, True]]), PLACES, {tiny.IMAGE: [(1, 2)]})
    assert tokens.image_T.tolist() == [-1, -1, -1, 0, 0] and tokens.visual_T.sum() == 2


def test_a_videos_frames_are_images_of_their_own():
    inputs = {"image_grid_thw": torch.tensor([[1, 4, 4]]), "video_grid_thw": torch.tensor([[2, 2, 4]])}
    row = [tiny.VIDEO] * 2 + [65] + [tiny.IMAGE] * 4 + [66] + [tiny.VIDEO] * 2
    tokens = laid_out([row], views_of(inputs, PLACES))
    assert tokens.image_T.tolist() == [0, 0, -1, 1, 1, 1, 1, -1, 2, 2]


@pytest.mark.parametrize("grids", [[(2, 3)], [(2, 2)], [(1, 4), (1, 2)], [], [(1, 5), (1, 5)]])
def test_grids_that_do_not_add_up_are_refused(grids):
    with pytest.raises(ValueError, match="same batch|the batch that the model is given"):
        laid_out([[65, *[tiny.IMAGE] * 5, 66]], {tiny.IMAGE: grids})


# --- encoding


def visual_span(ids):
    where = [i for i, token in enumerate(ids) if token == tiny.IMAGE]
    assert where == list(range(where[0], where[0] + len(where)))
    return where[0], len(where)


def test_an_ordinary_prompt_is_encoded_as_the_chat_template_does(loaded):
    messages = [{"role": "user", "content": [{"type": "image", "image": tiny.picture()}, {"type": "text", "text": "How many cats, 猫?"}]}]
    expected = loaded.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
    batch = encode(loaded, "How many cats, 猫?", tiny.picture())
    assert sorted(batch) == sorted(expected) and all(torch.equal(batch[name], expected[name]) for name in batch)


def test_grids_are_found_when_generate_hides_them(loaded):
    """generate encodes images before the model's forward and keeps the grids: the vision tower's call shows them."""
    with apply(loaded.model, "macs", processor=loaded.processor) as run:
        for size, grid in (((96, 48), (3, 6)), ((32, 64), (4, 2))):
            loaded.model.generate(**encode(loaded, "What?", tiny.picture(*size)), max_new_tokens=2, do_sample=False)
            assert run.trace.grids == (grid,)


def test_a_large_picture_is_scaled_to_the_limit_and_more_tokens_than_that_are_refused(loaded):
    batch = encode(loaded, "Big?", tiny.picture(1200, 900))
    assert 380 < visual_span(batch["input_ids"][0].tolist())[1] <= loaded.max_visual_tokens == 400
    few = types.SimpleNamespace(**{name: getattr(loaded, name) for name in ("processor", "model", "anatomy", "max_prompt_tokens")}, max_visual_tokens=20)
    with pytest.raises(ValueError, match="makes 24 visual tokens; at most 20 run here"):
        encode(few, "Small?", tiny.picture(100, 60))


def test_tokens_read_as_text_and_half_characters_as_bytes():
    tokenizer = tiny.processor().tokenizer
    ids = np.array(tokenizer("a é<|im_end|>")["input_ids"])
    assert token_texts(ids, tokenizer) == ("a", " ", "<0xC3>", "<0xA9>", "<|im_end|>")


# --- loading


def test_a_loaded_model_says_what_it_is(loaded, folder):
    assert (loaded.num_layers, loaded.num_experts, loaded.top_k, loaded.image_token_id) == (2, tiny.EXPERTS, tiny.TOP_K, tiny.IMAGE)
    assert loaded.name == "tiny-qwen" and loaded.folder == folder and not loaded.model.training and loaded.notices == ()
    assert read_calibration(loaded) is None
    assert load(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def dense_config(folder):
    return tiny.qwen(dense=(0, 1, 2)).config.save_pretrained(folder)


def text_only(folder):
    hf.Qwen3MoeConfig(num_hidden_layers=1, vocab_size=8, hidden_size=8, num_experts=4).save_pretrained(folder)


def unknown(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "nothing_anyone_knows"}))


def damaged(folder):
    (folder / "config.json").write_text("{")


def config_alone(folder):
    tiny.qwen().config.save_pretrained(folder)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda folder: None, "no config.json"),
        (dense_config, "no mixture-of-experts layer"),
        (text_only, "does not take images and text"),
        (unknown, "not a model that transformers knows"),
        (damaged, "not a model that transformers knows"),
        (config_alone, "no weights"),
    ],
)
def test_a_folder_that_cannot_run_is_refused_in_one_sentence(tmp_path, make, said):
    make(tmp_path)
    with pytest.raises(ValueError, match=said) as error:
        load(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path.parent) not in str(error.value)


def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(tmp_path):
    for name in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        with pytest.raises(ValueError, match="There is no model folder"):
            load(name)


# --- reading a router


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "given"])
@pytest.mark.parametrize("normalizes, factor", [(True, 1.0), (True, 2.5), (False, 1.0)])
def test_the_router_is_read_from_its_weights(dtype, scoring, normalizes, factor):
    first_TN = torch.randn(40, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    scores_TN = {"softmax": first_TN.float().softmax(-1), "sigmoid": first_TN.float().sigmoid(), "given": first_TN.float().softmax(-1)}[scoring]
    weight_TK, expert_TK = scores_TN.topk(4)
    weight_TK = (weight_TK / weight_TK.sum(1, keepdim=True) if normalizes else weight_TK) * factor
    given_TN = scores_TN if scoring == "given" else first_TN
    reading = read_router(given_TN, weight_TK.to(dtype), expert_TK, torch.ones(40, dtype=torch.bool))
    assert (reading.scoring, reading.normalizes) == (scoring, normalizes)
    with pytest.raises(ValueError, match="not proportional"):
        read_router(given_TN, weight_TK.to(dtype), expert_TK, torch.ones(40, dtype=torch.bool), declared="softmax" if scoring != "softmax" else "sigmoid")
