"""Kimi-VL's tokenizer from tiktoken's file, without its repository's code: the same ids as tiktoken gives with the published pattern."""

import random
import sys

import pytest
import tiktoken
from transformers import Kimi_K25Config

from macs.model import encode, load
from macs.model.published import Source, open_processor
from tests import tiny
from tests.checkpoints import CHECKPOINTS, KIMI_TEMPLATE, KimiVLProcessor, tiktoken_files

# As tokenization_moonshot.py of Kimi-VL-A3B-Instruct has it.
PATTERN = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
WORDS = ("中文", "混合", " 中", "文E", "English", " Pascal", "'s", "123", "北京市", "The")  # " 中" and "文E" cross a border of the pattern
ALPHABET = "中文混合English The's 北京市123 \n\t。，!aZéßのカ한국 ' 中 Pascal"


def vocabulary():
    """All bytes, then each word grown byte by byte, as merges make it."""
    tokens = [bytes([b]) for b in range(256)]
    for word in map(str.encode, WORDS):
        tokens += [word[:i] for i in range(2, len(word) + 1) if word[:i] not in tokens]
    return tokens


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The tokenizer as macs loads it, and tiktoken's own on the same vocabulary."""
    folder = tmp_path_factory.mktemp("kimi")
    tokens = vocabulary()
    base = len(tokens)
    special = {"[BOS]": base, "[EOS]": base + 1, "<|im_end|>": base + 2, "<|im_user|>": base + 3, "<|media_pad|>": base + 21, "[PAD]": base + 255}
    KimiVLProcessor().save_pretrained(folder)
    tiktoken_files(folder, tokens, special, eos_token="[EOS]", chat_template=KIMI_TEMPLATE)
    tokenizer = open_processor(str(folder), Source(Kimi_K25Config(), None, "kimi_vl"), local=True).tokenizer
    return tokenizer, tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks={token: i for i, token in enumerate(tokens)}, special_tokens=special)


def test_ids_are_those_of_the_published_code_in_chinese_and_mixed_text(made):
    tokenizer, original = made
    draw = random.Random(0)
    for _ in range(1500):
        text = "".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 30)))
        assert tokenizer.encode(text, add_special_tokens=False) == original.encode(text), text
        assert tokenizer.decode(original.encode(text), clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize(
    "text, parts",
    [("中文English混合", ["中文", "English", "混合"]), ("汉字abc", ["汉字", "abc"]), ("北京市 Pascal", ["北京市", " Pascal"]), ("a 中文12345", ["a", " ", "中文", "123", "45"])],
)
def test_chinese_stands_apart_from_the_words_around_it(made, text, parts):
    split = made[0].backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in split] == parts


def test_control_tokens_have_the_ids_that_the_repository_gives_them(made):
    tokenizer, original = made
    for name in ("<|media_pad|>", "<|im_end|>", "[BOS]", "[PAD]"):
        assert tokenizer.convert_tokens_to_ids(name) == original.encode_single_token(name) and tokenizer.encode(name) == [original.encode_single_token(name)]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (original.encode_single_token("[EOS]"), original.encode_single_token("[PAD]"))


def test_a_changed_vocabulary_is_read_again(tmp_path):
    """tiktoken keeps copies by path; a folder whose file was replaced must not get the old one."""
    KimiVLProcessor().save_pretrained(tmp_path)
    source = Source(Kimi_K25Config(), None, "kimi_vl")
    before = open_processor(str(tmp_path), source, local=True).tokenizer.encode("ab", add_special_tokens=False)
    tiktoken_files(tmp_path, [bytes([255 - b]) for b in range(256)], {"[PAD]": 256, "[BOS]": 257, "<|media_pad|>": 261})
    assert open_processor(str(tmp_path), source, local=True).tokenizer.encode("ab", add_special_tokens=False) == [255 - i for i in before]


def test_without_tiktoken_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    CHECKPOINTS["kimi-vl"].write(tmp_path / "kimi")
    monkeypatch.setitem(sys.modules, "tiktoken.load", None)
    with pytest.raises(ValueError, match="pip install tiktoken"):
        load(tmp_path / "kimi")


def test_a_chinese_prompt_with_a_picture_runs_through_the_whole_loading(tmp_path):
    CHECKPOINTS["kimi-vl"].write(tmp_path / "kimi")
    loaded = load(tmp_path / "kimi")
    ids = encode(loaded, "图里有什么？", tiny.picture(100, 60))["input_ids"][0].tolist()
    assert ids.count(tiny.IMAGE) == 3 * 4
    assert loaded.processor.tokenizer.decode([i for i in ids if i < 256]).count("图里有什么？") == 1
