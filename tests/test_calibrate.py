"""Calibration: pairs counted as the router made them, groups by §3.3, one file that belongs to one set of weights."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from macs import model as model_package
from macs.__main__ import main
from macs.config import preset
from macs.engine.base import CALIBRATION_SET
from macs.eval.calibrate import Example, calibrate, drawn_examples, read_examples
from macs.model import apply, encode, load, read_calibration
from macs.model import calibration as files
from macs.model.anatomy import dissect
from tests import tiny


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(tiny.save(tiny.qwen(seed=3), tmp_path_factory.mktemp("calibrate") / "tiny"))


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    tiny.picture(64, 48).save(folder / "a.png")
    tiny.picture(96, 32, seed=1).save(folder / "b.png")
    entries = [{"prompt": "What is this?", "file": "a.png"}, {"prompt": "And this?", "file": "b.png", "answer": "b"}, {"prompt": "2 + 2", "family": "text"}]
    (folder / "examples.json").write_text(json.dumps(entries))
    return folder


@pytest.fixture(scope="module")
def made(loaded, examples):
    return calibrate(loaded, read_examples(examples), 0.1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_pairs_are_those_that_the_router_made(loaded, examples, made):
    counted = {index: {True: np.zeros(tiny.EXPERTS, int), False: np.zeros(tiny.EXPERTS, int)} for index in (0, 2)}
    for example in read_examples(examples):
        batch = encode(loaded, example.prompt, Image.open(example.file) if example.file else None)
        chosen = []
        handles = [layer.router.register_forward_hook(lambda *call: chosen.append(call[-1][2])) for layer in dissect(loaded.model).layers]
        with torch.no_grad():
            loaded.model(**batch)
        [handle.remove() for handle in handles]
        for index, expert_TK in zip((0, 2), chosen):
            for token, experts in zip(batch["input_ids"][0].tolist(), expert_TK.tolist()):
                for expert in experts:
                    counted[index][token == tiny.IMAGE][expert] += 1
    assert made.prompts == 3
    for index in (0, 2):
        assert made.visual_pairs[index] == tuple(counted[index][True]) and made.text_pairs[index] == tuple(counted[index][False])
        assert sum(made.visual_pairs[index]) == (12 + 12) * tiny.TOP_K


def test_groups_follow_the_margin(made):
    for index, groups_N in made.groups.items():
        visual_N = np.array(made.visual_pairs[index]) / sum(made.visual_pairs[index])
        text_N = np.array(made.text_pairs[index]) / sum(made.text_pairs[index])
        preference_N = visual_N / (visual_N + text_N)
        expected = np.where(preference_N >= 0.6, 1, np.where(preference_N <= 0.4, -1, 0))
        assert groups_N.tolist() == expected.tolist() and groups_N.dtype == torch.int8
    assert {1, -1} <= set(torch.cat(list(made.groups.values())).tolist())
    strict = dataclasses.replace(made, margin=0.5).groups
    assert all(int((strict[i] != 0).sum()) <= int((made.groups[i] != 0).sum()) for i in strict)


def test_the_file_comes_back_and_belongs_to_these_weights_alone(loaded, made, cache):
    assert read_calibration(loaded) is None
    path = files.calibration_path(loaded.folder, made.identity)
    assert path == loaded.folder / "macs_calibration.json"
    files.write_calibration(made, path)
    assert files.find_calibration(loaded.folder) == made
    assert {layer: groups.tolist() for layer, groups in read_calibration(loaded).items()} == {layer: groups.tolist() for layer, groups in made.groups.items()}
    weights = next(loaded.folder.glob("*.safetensors"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert files.find_calibration(loaded.folder) is None
    weights.write_bytes(whole)
    assert files.find_calibration(loaded.folder) == made
    path.write_text("{")
    with pytest.raises(ValueError, match="not a readable calibration"):
        read_calibration(loaded)
    path.unlink()


def test_a_folder_that_cannot_be_written_is_calibrated_in_the_users_cache(loaded, made, cache, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    path = files.calibration_path(loaded.folder, made.identity)
    assert path.is_relative_to(cache) and made.identity.startswith(path.stem)
    files.write_calibration(made, path)
    assert read_calibration(loaded).keys() == made.groups.keys()


def test_a_calibrated_run_is_marked_and_sizes_capacity_by_modality(loaded, made):
    batch = encode(loaded, "What?", tiny.picture())
    with torch.no_grad(), apply(loaded.model, "macs", rho=1.0, ep_size=2, modality=made.groups, inputs=batch) as run:
        loaded.model(**batch)
    trace = run.trace
    assert trace.calibrated and trace.reschedule(preset("macs", rho=1.0)).layers[0].decision.capacity_N.tolist() == trace.layers[0].decision.capacity_N.tolist()
    for layer in trace.layers:
        assert layer.modality_N.tolist() == made.groups[layer.layer].tolist()
        assert len(set(layer.decision.capacity_N)) == len(set(layer.modality_N))


def test_the_command_writes_beside_the_model_and_prints_every_layer(loaded, examples, cache, capsys):
    assert main(["calibrate", "--model", str(loaded.folder), "--examples", str(examples), "--margin", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "3 prompts, margin 0.1" in out and len(out.splitlines()) == 5
    found = files.find_calibration(loaded.folder)
    assert found.margin == 0.1 and found.prompts == 3
    (loaded.folder / "macs_calibration.json").unlink()


def test_json_lines_are_read_too(tmp_path):
    lines = tmp_path / "set.jsonl"
    lines.write_text('{"prompt": "a", "file": "x/a.png"}\n\n{"prompt": "b"}\n')
    assert read_examples(lines) == [Example("a", tmp_path / "x" / "a.png"), Example("b", None)]


def test_scenes_are_drawn_from_every_family_and_end_where_asked():
    drawn = list(drawn_examples(6))
    assert len(drawn) == 6 and sum(example.picture() is None for example in drawn) == 1
    assert [example.prompt for example in drawn_examples(6)] == [example.prompt for example in drawn]


@pytest.mark.parametrize(
    "content, arguments, said",
    [
        ('[{"prompt": "a"}]', ["--margin", "0.9"], "margin is 0.9"),
        ('[{"prompt": "a"}]', ["--margin", "nan"], "margin is nan"),
        ('[{"prompt": "a"}]', ["--scenes", "0"], "scenes is 0"),
        (None, [], "holds no examples.json"),
        ('[{"question": "a"}]', [], "not a list of"),
        ('{"prompt": "a"}', [], "not a list of"),
        ("[", [], "not a list of"),
        ("[]", [], "is empty"),
        ('[{"prompt": "a"}]', [], "no usable visual pairs"),
        ('[{"prompt": "a", "file": "gone.png"}]', [], "no such image file"),
    ],
)
def test_a_set_that_cannot_be_used_ends_with_one_sentence(loaded, tmp_path, cache, capsys, content, arguments, said):
    if content is not None:
        (tmp_path / "examples.json").write_text(content)
    assert main(["calibrate", "--model", str(loaded.folder), "--examples", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err and files.find_calibration(loaded.folder) is None


def test_a_changed_model_is_calibrated_again_wherever_it_changed(tmp_path, monkeypatch):
    """Size and samples tell: a byte of a small file anywhere near a sample, one of 64 stretches of a large one, the config, the hub's commit."""
    monkeypatch.setattr(files, "_SAMPLE", 8)
    monkeypatch.setattr(files, "_LARGE", 1000)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(24))
    (tmp_path / "large.safetensors").write_bytes(bytes(64 * 30))
    known = files.model_identity(tmp_path)
    for name, place in [("config.json", 1), ("model.safetensors", 0), ("model.safetensors", 13), ("model.safetensors", 23), *(("large.safetensors", i * (64 * 30 - 8) // 63) for i in range(64))]:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:place] + b"x" + whole[place + 1 :])
        assert files.model_identity(tmp_path) != known, (name, place)
        (tmp_path / name).write_bytes(whole)
    assert files.model_identity(tmp_path) == known
    snapshots = [tmp_path / "snapshots" / revision for revision in ("aaa", "bbb")]
    for folder in snapshots:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert len({files.model_identity(folder) for folder in snapshots}) == 2


def test_the_set_that_ships_has_both_modalities_and_two_languages():
    shipped = read_examples(CALIBRATION_SET)
    assert len(shipped) == 16 and sum(example.picture() is not None for example in shipped) == 10
    assert any("一" <= character <= "鿿" for example in shipped for character in example.prompt)
    assert len({example.prompt for example in shipped}) == 16


def test_the_command_takes_the_loading_flags_and_says_how_far_it_is(loaded, examples, cache, capsys, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(model_package, "load", lambda name, **options: given.append(options) or loaded)
    arguments = ["--examples", str(examples), "--out", str(tmp_path / "out.json"), "--dtype", "float32", "--device-map", "auto", "--trust-remote-code", "--device", "cpu"]
    assert main(["calibrate", "--model", str(loaded.folder), *arguments]) == 0
    assert given == [{"dtype": "float32", "device_map": "auto", "trust_remote_code": True, "device": "cpu"}]
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["1/3", "2/3", "3/3"]
    assert main(["calibrate", "--model", str(loaded.folder), *arguments[:4]]) == 0
    assert given[1] == {"dtype": "auto", "device_map": None, "trust_remote_code": False, "device": "cuda" if torch.cuda.is_available() else "cpu"}


def test_code_of_a_model_is_not_run_by_calibrating_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own_moe", "auto_map": {"AutoConfig": "own.OwnConfig"}}))
    (tmp_path / "own.py").write_text("raise SystemExit('the code ran')")
    assert main(["calibrate", "--model", str(tmp_path)]) == 2
    assert "not run without --trust-remote-code" in capsys.readouterr().err
