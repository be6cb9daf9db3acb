"""The check before loading: published sizes against sums made here, small checkpoints against their files, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from macs.__main__ import main
from macs.engine.check_command import count, report, size
from macs.engine.families_command import table
from macs.model import preflight as module
from macs.model.families import FAMILIES
from macs.model.preflight import preflight
from tests.checkpoints import CHECKPOINTS

PUBLISHED = Path(__file__).parent / "data" / "published"


def linear(inputs, outputs, bias=True):
    return inputs * outputs + bias * outputs


def experts_of(text):
    """Routed experts: gate, up and down of each, in every layer that is not dense."""
    layers = text["num_hidden_layers"] - text.get("first_k_dense_replace", 0)
    return layers * text.get("num_experts", text.get("n_routed_experts")) * 3 * text["hidden_size"] * text["moe_intermediate_size"]


def qwen3_text(text):
    """Qwen3-MoE: grouped attention with normed queries and keys, a router, two norms a layer; embedding and head apart."""
    width, head = text["hidden_size"], text["head_dim"]
    attention = width * head * (2 * text["num_attention_heads"] + 2 * text["num_key_value_heads"]) + 2 * head
    layer = attention + width * text["num_experts"] + 2 * width
    return text["num_hidden_layers"] * layer + 2 * text["vocab_size"] * width + width + experts_of(text)


def qwen3_vl(config):
    vision, text = config["vision_config"], config["text_config"]
    width, wide = vision["hidden_size"], 4 * vision["hidden_size"]
    block = linear(width, 3 * width) + linear(width, width) + linear(width, vision["intermediate_size"]) + linear(vision["intermediate_size"], width) + 4 * width
    patch = linear(3 * 2 * 16 * 16, width) + vision["num_position_embeddings"] * width
    merger = linear(wide, wide) + linear(wide, vision["out_hidden_size"])
    mergers = merger + 2 * width + len(vision["deepstack_visual_indexes"]) * (merger + 2 * wide)  # the first norms before merging
    return vision["depth"] * block + patch + mergers + qwen3_text(text)


def internvl(config):
    vision, text = config["vision_config"], config["text_config"]
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    block = 4 * linear(width, width) + linear(width, inner) + linear(inner, width) + 4 * width + 2 * width  # norms, layer scales
    patches = (448 // 14) ** 2 + 1
    embedding = linear(3 * 14 * 14, width) + width + patches * width  # and the class token
    projector = 2 * 4 * width + linear(4 * width, text["hidden_size"]) + linear(text["hidden_size"], text["hidden_size"])
    return vision["num_hidden_layers"] * block + embedding + projector + qwen3_text(text)


def kimi_vl(config):
    vision, text = config["vision_config"], config["text_config"]
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    block = linear(width, 3 * width) + linear(width, width) + linear(width, inner) + linear(inner, width) + 4 * width
    tower = vision["num_hidden_layers"] * block + linear(3 * 14 * 14, width) + 64 * 64 * width + 2 * width
    wide, hidden = 4 * width, text["hidden_size"]
    projector = 2 * width + linear(wide, wide) + linear(wide, hidden)
    heads, latent = text["num_attention_heads"], text["kv_lora_rank"]
    key = text["qk_nope_head_dim"] + text["qk_rope_head_dim"]
    attention = hidden * heads * key + hidden * (latent + text["qk_rope_head_dim"]) + latent
    attention += latent * heads * (text["qk_nope_head_dim"] + text["v_head_dim"]) + heads * text["v_head_dim"] * hidden
    sparse = text["num_hidden_layers"] - 1
    shared = 3 * hidden * text["n_shared_experts"] * text["moe_intermediate_size"]
    layers = text["num_hidden_layers"] * (attention + 2 * hidden) + sparse * (shared + hidden * text["n_routed_experts"]) + 3 * hidden * text["intermediate_size"]
    return tower + projector + layers + 2 * text["vocab_size"] * hidden + hidden + experts_of(text)


@pytest.fixture(scope="module", params=[("Qwen3-VL-30B-A3B-Instruct", qwen3_vl, 31.1), ("InternVL3_5-30B-A3B-HF", internvl, 30.8), ("Kimi-VL-A3B-Instruct", kimi_vl, 16.4)], ids=lambda p: p[0])
def paper(request):
    """One of the paper's three models: its config alone, the sum of its matrices, and the billions its publisher names."""
    name, formula, billions = request.param
    config = json.loads((PUBLISHED / name / "config.json").read_text())
    return name, config, formula(config), billions, preflight(str(PUBLISHED / name))


def test_the_papers_models_have_their_published_sizes(paper):
    _, config, total, billions, found = paper
    assert found.parameters == total and found.expert_parameters == experts_of(config["text_config"])
    assert found.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    top_k, experts = config["text_config"]["num_experts_per_tok"], found.experts
    assert found.active_parameters == total - found.expert_parameters + found.expert_parameters * top_k // experts
    assert 2.7e9 < found.active_parameters < 4e9 and found.dtype == "bfloat16" and found.known


def test_bytes_per_rank_are_whole_weights_and_a_share_of_the_experts(paper):
    _, config, total, _, found = paper
    experts = experts_of(config["text_config"])
    assert found.rank_bytes == {g: 2 * (total - experts) + 2 * experts // g for g in (2, 4, 8)} and found.refused == {}
    assert found.process_bytes == 2 * total and found.files is None


def test_ranks_that_do_not_divide_are_refused_with_the_reason(paper):
    name, *_, found = paper
    odd = preflight(str(PUBLISHED / name), (3, 5))
    assert odd.rank_bytes == {} and odd.refused == {g: f"{found.experts} experts do not divide by {g}" for g in (3, 5)}


def test_the_command_prints_the_report_and_the_same_as_json(paper, capsys):
    name, _, total, _, found = paper
    assert main(["check", "--model", str(PUBLISHED / name)]) == 0
    out = capsys.readouterr().out
    assert f"{total / 1e9:.2f} B" in out and "config alone" in out and all(f"{g} ranks" in out and size(found.rank_bytes[g]) in out for g in (2, 4, 8))
    assert main(["check", "--model", str(PUBLISHED / name), "--json", "--ranks", "2", "3"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["parameters"] == total and list(read["rank_bytes"]) == ["2"] and list(read["refused"]) == ["3"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_small_checkpoint_is_counted_as_its_files_hold_it(name, tmp_path, capsys, monkeypatch):
    made = CHECKPOINTS[name]
    model = made.write(tmp_path / name)
    weights = tmp_path / name / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(b"\0" * len(data))  # nothing but its size may be looked at
    found = preflight(str(tmp_path / name))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.layers == (len(made.layers), 3) and (found.experts, found.top_k) == (8, 3)
    assert found.expert_parameters == len(made.layers) * 8 * 3 * 64 * 40
    assert found.files == module.Files(1, len(data)) and found.dtype == "float32" and found.process_bytes == 4 * found.parameters
    assert found.family == FAMILIES[made.family].title and set(found.rank_bytes) == {2, 4, 8}
    assert found.supports["run"] == found.supports["ranks"] == found.supports["calibration"] == "yes"
    assert (found.supports["overlay"] == "yes") == (made.cells is not None)
    assert main(["check", "--model", str(tmp_path / name)]) == 0
    assert count(found.parameters) in capsys.readouterr().out


@pytest.fixture
def small(tmp_path):
    CHECKPOINTS["qwen3-vl"].write(tmp_path / "small")
    return tmp_path / "small"


def test_what_fits_is_read_from_the_gpus_here(small, monkeypatch):
    memory = [10**9, 900_000]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (0, memory[i]))
    found = preflight(str(small))
    assert found.process_bytes > 900_000 > found.rank_bytes[4]
    assert found.fits == {1: True, 2: found.rank_bytes[2] < 900_000, 4: False, 8: False}
    text = report(found)
    assert "GPU 0 1.0 GB, GPU 1 0.90 MB" in text and "fits on 1 GPU here" in text and "does not fit on 4 GPUs here" in text


def test_a_quantised_checkpoint_runs_in_one_process_only(small):
    config = json.loads((small / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (small / "config.json").write_text(json.dumps(config))
    found = preflight(str(small))
    assert found.quantised == "fp8" and found.rank_bytes == {} and set(found.refused) == {2, 4, 8}
    assert found.process_bytes == (small / "model.safetensors").stat().st_size and "fp8" in found.supports["ranks"]
    with pytest.raises(ValueError, match="quantised .fp8.*use --ranks 1"):
        from macs.model import check_ranks

        check_ranks(small, 2)


def test_an_index_names_its_files_and_those_that_are_missing(small, capsys):
    (small / "model.safetensors").rename(small / "model-00001-of-00002.safetensors")
    index = {"metadata": {"total_size": 123456789}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (small / module.INDEX).write_text(json.dumps(index))
    assert preflight(str(small)).files == module.Files(2, 123456789, ("model-00002-of-00002.safetensors",))
    assert main(["check", "--model", str(small)]) == 0 and "1 of them missing" in capsys.readouterr().out
    (small / module.INDEX).write_text("{")
    assert main(["check", "--model", str(small)]) == 2 and "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, said", [(["--ranks", "0"], "ranks is 0"), (["--model", "./nowhere"], "no model folder")])
def test_bad_input_ends_with_one_sentence(arguments, said, capsys):
    assert main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_readmes_table_is_what_the_command_prints(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert main(["families"]) == 0 and capsys.readouterr().out.strip() == table()
    assert table() in readme
    for family in FAMILIES.values():
        assert family.title in table() and (family.unusable or family.published in table())
