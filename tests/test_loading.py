"""How a model is loaded: over devices, in another type, and never with code of its own unless that was asked for at the start."""

import inspect
import json

import pytest
import torch
import transformers

import app
from macs.engine.base import Request
from macs.engine.start import start
from macs.model import load
from tests.checkpoints import CHECKPOINTS

CODE = """
from pathlib import Path

Path({marker!r}).touch()
from transformers import Qwen3VLMoeConfig
class OwnConfig(Qwen3VLMoeConfig):
    model_type = "own_moe"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading") / "small"
    CHECKPOINTS["qwen3-vl"].write(folder)
    return folder


def test_a_device_map_reaches_accelerate_and_loads_the_same_weights(folder, monkeypatch):
    given, real = [], transformers.modeling_utils._get_device_map
    monkeypatch.setattr(transformers.modeling_utils, "_get_device_map", lambda model, device_map, *rest: given.append(device_map) or real(model, device_map, *rest))
    plain, mapped = (load(folder, device_map=device_map).model for device_map in (None, "auto"))
    ours, theirs = plain.state_dict(), mapped.state_dict()
    assert given == ["auto"] and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_type_is_the_checkpoints_unless_another_is_asked_for(folder):
    assert load(folder).model.dtype == torch.float32 and load(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_device_map_and_ranks_exclude_each_other(folder):
    with pytest.raises(ValueError, match="device_map is 'auto', but 2 ranks"):
        start(str(folder), ranks=2, device_map="auto")


@pytest.fixture
def own(folder, tmp_path):
    """A folder whose config names code that comes with it, and a file that appears when that code runs."""
    marker = tmp_path / "code ran"
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own_moe", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(CODE.format(marker=str(marker)))
    return tmp_path, marker


def test_code_of_a_model_is_not_run_and_the_way_out_is_named(own):
    folder, marker = own
    with pytest.raises(ValueError, match="not run without --trust-remote-code"):
        load(folder)
    assert not marker.exists()


def test_code_of_a_model_is_run_when_it_was_asked_for(own, monkeypatch, tmp_path):
    folder, marker = own
    with pytest.raises(ValueError, match="does not take images and text"):  # this code brings a config and no model
        load(folder, trust_remote_code=True)
    assert marker.exists()


def test_only_the_flag_at_the_start_can_ask_for_it():
    assert app.parse([]).trust_remote_code is False and app.parse(["--trust-remote-code"]).trust_remote_code is True
    assert "trust" not in " ".join(Request.__dataclass_fields__)
    for module in (app.Path(app.__file__).parent / "macs" / "view").glob("*.py"):
        assert "trust_remote_code" not in module.read_text(), module.name
    assert inspect.signature(load).parameters["trust_remote_code"].default is False
