"""The embedded model's world: scenes, questions, splits, packing, and the shipped model."""

import copy
import json
import random

import numpy as np
import pytest
import torch

from macs.demo import held_out
from macs.demo.build import PATCH, build_model
from macs.demo.canvas import CELL
from macs.demo.evaluate import answers, interval, load
from macs.demo.packing import HELD_OUT, IGNORED, SLOT, TRAINING, VALIDATION, Mix, Packer, draw_batch, patches_of
from macs.demo.questions import ask_scene, ask_without_image
from macs.demo.scenes import KINDS, draw_scene, grid_of
from macs.demo.vocabulary import ASSETS, CLASS_ID, CLASSES, COLOUR_ID, FAMILIES, MIDDLE, OBJECT_NAMES

MODEL = ASSETS / "demo_model"


@pytest.fixture(scope="session")
def shipped():
    """The shipped model and processor; read only."""
    torch.set_num_threads(1)
    return load(MODEL)


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_is_one_scene(kind):
    first, second = draw_scene(11, kind), draw_scene(11, kind)
    assert first.image.tobytes() == second.image.tobytes()
    assert first.things == second.things and np.array_equal(first.cells, second.cells)
    assert first.image.tobytes() != draw_scene(12, kind).image.tobytes()


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="none of things, signs, chart"):
        draw_scene(1, "photo")


def test_questions_are_the_same_for_the_same_seed_and_all_different():
    scene = draw_scene(3, "things")
    asked = ask_scene(random.Random(5), scene, 10)
    assert asked == ask_scene(random.Random(5), draw_scene(3, "things"), 10)
    assert len({q.prompt for q in asked}) == len(asked)


def test_every_family_is_asked():
    rng, families = random.Random(0), set()
    for seed in range(40):
        for kind in KINDS:
            families |= {q.family for q in ask_scene(rng, draw_scene(seed, kind, "small"), 10)}
    assert families | {q.family for q in ask_without_image(rng, 5)} == set(FAMILIES)


def test_aspect_ratios_reach_from_one_to_two_to_two_to_one():
    ratios = [s.image.width / s.image.height for s in (draw_scene(i, "things") for i in range(120))]
    assert min(ratios) <= 0.55 and max(ratios) >= 1.8 and 0.48 <= min(ratios) and max(ratios) <= 2.05


def test_splits_never_meet():
    ranges = sorted((HELD_OUT, VALIDATION, TRAINING))
    assert all(first < last for first, last in ranges)
    assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:]))
    seeds = [asked.seed for asked in held_out.read_held_out()]
    assert all(HELD_OUT[0] <= seed < HELD_OUT[1] for seed in seeds)


def test_counted_things_are_the_things_drawn():
    rng, seen = random.Random(0), 0
    for seed in range(60):
        scene = draw_scene(seed, "things")
        for q in ask_scene(rng, scene, 8, "counting"):
            if q.prompt.startswith("Count the things"):
                assert int(q.answer) == len(scene.items)
                seen += 1
    assert seen > 5


def test_mask_and_labels_mark_the_cells_under_things():
    found = 0
    for seed in range(30):
        scene = draw_scene(seed, "things")
        mask, (classes, colours, number, down, across) = scene.object_mask, scene.labels
        assert mask.shape == scene.grid == classes.shape
        assert np.array_equal(mask, classes > 0) and np.array_equal(mask, scene.mask_on(scene.grid))
        assert 0 < (number == MIDDLE).sum() <= len(scene.items)
        assert (down[0] == down[0, 0]).all() and down[0, 0] < down[-1, 0] and across[0, 0] < across[0, -1] <= 9
        for thing in scene.items:
            x, y = thing.centre
            cell = classes[int(y / CELL), int(x / CELL)]
            if thing.name in OBJECT_NAMES and thing.box[2] - thing.box[0] > 2 * CELL:
                assert cell == CLASS_ID[thing.name]
                found += 1
            elif thing.name in ("square", "circle") and thing.box[2] - thing.box[0] > 2 * CELL:
                assert cell == CLASS_ID[thing.name] and colours[int(y / CELL), int(x / CELL)] == COLOUR_ID[thing.colour]
                found += 1
    assert found > 10


def test_letters_in_signs_are_labelled_in_order():
    scene = next(s for s in (draw_scene(i, "signs") for i in range(50)) if s.lines and len(s.lines[0].text) > 3)
    glyphs = [t for t in scene.things if t.kind == "glyph"][: len(scene.lines[0].text)]
    assert "".join(t.name for t in glyphs) == scene.lines[0].text
    assert [t.number for t in glyphs] == list(range(len(glyphs)))
    assert all(a.box[0] < b.box[0] for a, b in zip(glyphs, glyphs[1:]))


@pytest.mark.parametrize(
    "text",
    [
        "What does the top line say?",
        "KQTX 0123456789",
        "Grüße, 漢字 🙂 and \t tabs\n\nlines",
        "<div>\\u0000</div>",
        " a  b ",
    ],
)
def test_tokenizer_gives_any_text_back(shipped, text):
    tokenizer = shipped[1].tokenizer
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_capitals_and_digits_stay_single_tokens(shipped):
    assert shipped[1].tokenizer.tokenize("KXQ407") == list("KXQ407")


@pytest.mark.parametrize("size", [(224, 224), (640, 480), (90, 60), (1600, 800), (333, 1000), (31, 47)])
def test_any_picture_gets_60_to_144_visual_tokens(shipped, size):
    from PIL import Image

    processor = shipped[1]
    grid = processor.image_processor(Image.new("RGB", size), return_tensors="pt")["image_grid_thw"][0]
    rows, columns = int(grid[1]) // 2, int(grid[2]) // 2
    assert 60 <= rows * columns <= 144
    assert (rows, columns) == grid_of(size)


def test_patches_are_those_of_the_image_processor(shipped):
    scene = draw_scene(5, "signs", grid=(9, 12))
    image = scene.image.resize((12 * CELL, 9 * CELL))
    wanted = shipped[1].image_processor(image, return_tensors="pt")["pixel_values"]
    assert torch.allclose(torch.from_numpy(patches_of(image, (9, 12))), wanted, atol=1e-5)
    assert wanted.shape == (9 * 12 * 4, 3 * 2 * PATCH * PATCH)


def test_packed_questions_get_the_logits_of_single_questions(shipped):
    """A branch sees its image and itself only: its hidden state is that of the question asked alone."""
    from macs.demo.attention import use_packed_attention

    processor = shipped[1]
    model = build_model(copy.deepcopy(shipped[0].config), 0).float().eval()
    scene = draw_scene(7, "things", grid=(8, 9))
    image = scene.image = scene.image.resize((9 * CELL, 8 * CELL))
    asked, packer = ask_scene(random.Random(1), scene, 4), Packer(processor.tokenizer)
    shared = packer.shared_length(72)
    batch = packer.collate([packer.pack(asked, scene.grid, shared, 3)], [scene], shared)
    prompts = [[{"type": "image", "image": image}, {"type": "text", "text": q.prompt}] for q in asked]
    alone = [
        model(**processor.apply_chat_template([{"role": "user", "content": p}], tokenize=True, add_generation_prompt=True,
                                              return_dict=True, return_tensors="pt")).logits[0, -1]
        for p in prompts
    ]  # fmt: skip
    use_packed_attention(model)
    assert shipped[0].config.text_config._attn_implementation != "packed_branches"
    names = ("input_ids", "attention_mask", "shared_valid", "position_ids", "pixel_values", "image_grid_thw")
    hidden = model.model(**{n: batch[n] for n in names}).last_hidden_state.flatten(0, 1)
    for number, wanted in enumerate(alone):
        at = batch["answer_at"][(batch["answer_question"] == number).nonzero()[0, 0]]
        assert torch.allclose(model.lm_head(hidden[at]), wanted, atol=1e-4)


def test_batches_are_reproducible_and_parts_differ(shipped):
    packer = Packer(shipped[1].tokenizer)
    mix = Mix(images=2, text_packs=1, slots=2)
    first, again = (draw_batch(packer, mix, TRAINING, 4) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    parts = [draw_batch(packer, mix, TRAINING, 4, part, 2) for part in (0, 1)]
    assert parts[0]["input_ids"].shape == parts[1]["input_ids"].shape
    assert not torch.equal(parts[0]["pixel_values"], parts[1]["pixel_values"])
    assert first["input_ids"].shape[1] == first["shared_valid"].shape[1] + mix.slots * SLOT
    assert (first["answer_id"] != IGNORED).all() and first["dense"].max() < len(CLASSES)


def test_model_is_six_to_twelve_million_parameters_in_shards_under_ten_megabytes(shipped):
    assert 6e6 <= sum(p.numel() for p in shipped[0].parameters()) <= 12e6
    assert type(shipped[0]).__name__ == "Qwen3VLMoeForConditionalGeneration"
    assert type(shipped[1]).__name__ == "Qwen3VLProcessor"
    assert shipped[0].dtype == torch.bfloat16
    assert all(file.stat().st_size < 10_000_000 for file in MODEL.iterdir())


def test_expert_weights_lie_on_disk_as_published_checkpoints_store_them(shipped):
    from safetensors import safe_open

    text = shipped[0].config.text_config
    name = "model.language_model.layers.0.mlp.experts."
    index = json.loads((MODEL / "model.safetensors.index.json").read_text())["weight_map"]
    wanted = {
        "gate_up_proj": (text.hidden_size, 2 * text.moe_intermediate_size),
        "down_proj": (text.moe_intermediate_size, text.hidden_size),
    }
    for leaf, shape in wanted.items():
        with safe_open(MODEL / index[name + leaf], "pt") as file:
            assert tuple(file.get_tensor(name + leaf).shape) == (text.num_experts, *shape)
    assert len({text.hidden_size, text.moe_intermediate_size, 2 * text.moe_intermediate_size}) == 3


def test_sizes_split_over_ranks(shipped):
    text = shipped[0].config.text_config
    assert text.num_experts % 8 == 0
    assert text.num_attention_heads % 4 == 0 and text.num_key_value_heads % 4 == 0


def test_trained_model_answers_held_out_questions(shipped):
    """A floor well under the measured accuracy: it fails for untrained, damaged or wrongly loaded weights."""
    asked = [a for a in held_out.read_held_out() if a.seed % 20 == 7]
    right = 0
    for with_image in (True, False):
        chosen = [a for a in asked if (a.image is not None) == with_image]
        right += sum(a.answer == text for a, text in zip(chosen, answers(*shipped, chosen)))
    assert len(asked) > 40 and right / len(asked) > 0.5


def test_answers_in_a_batch_are_those_of_single_questions(shipped):
    asked = [a for a in held_out.read_held_out() if a.family == "attributes"][:6]
    together = answers(*shipped, asked, batch=6)
    assert sum(a == b for a, b in zip(together, answers(*shipped, asked, batch=1))) >= 5


def test_missing_model_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        load(tmp_path)


def test_changed_held_out_file_is_refused(tmp_path):
    path = tmp_path / "held_out.zip"
    held_out.write_held_out(path, per_family=1)
    assert [a.family for a in held_out.read_held_out(path)] == list(FAMILIES)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="checksum"):
        held_out.read_held_out(path)


def test_held_out_file_is_what_its_seeds_draw():
    asked = held_out.read_held_out()
    assert len(asked) == 6 * held_out.PER_FAMILY
    for a in asked[:: len(asked) // 23]:
        question, image = held_out.draw_question(a.family, a.seed)
        assert (question.prompt, question.answer) == (a.prompt, a.answer)
        assert (image is None) == (a.image is None) and (image is None or image.size == a.image.size)


def test_interval_holds_the_share():
    low, high = interval(170, 200)
    assert 0.79 < low < 0.85 < high < 0.90
    assert interval(200, 200)[1] == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [{"device": "cuda", "processes": 2}, {"images": 25, "processes": 2}])
def test_bad_training_settings_are_one_sentence(tmp_path, bad):
    from macs.demo.train import Settings, train

    with pytest.raises(ValueError, match="give "):
        train(Settings(**bad), tmp_path)


def test_schedule_warms_up_holds_and_decays():
    from macs.demo.train import Settings, rate_at

    settings = Settings(steps=1000, warmup=100, decay=200, rate=1.0)
    assert rate_at(settings, 0) == pytest.approx(0.01)
    assert rate_at(settings, 500) == 1.0
    assert rate_at(settings, 900) == pytest.approx(0.5)
    assert rate_at(settings, 1000) == pytest.approx(0.02)


def test_orthogonal_makes_singular_values_near_one():
    from macs.demo.optimizer import orthogonal

    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 40, 24)))
    assert values.shape == (3, 24) and 0.5 < values.min() and values.max() < 1.4


def test_training_goes_on_from_its_checkpoint_and_exports(tmp_path):
    from macs.demo.train import Settings, export, train

    run, out = tmp_path / "run", tmp_path / "out" / "model"
    small = {"images": 2, "slots": 1, "lessons": 1, "processes": 1, "rate": 1e-4}
    train(Settings(steps=2, **small), run, MODEL)
    train(Settings(steps=3, **small), run)
    assert export(run, out) == 3
    lines = [json.loads(line) for line in (out.parent / "demo_training" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "settings" in line] == [0, 2]
    assert load(out)[0].dtype == torch.bfloat16
