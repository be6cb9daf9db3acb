"""Entropy, load weights and the experts' modality (§3.2, §3.3)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macs.core import feature_entropy, modality_groups, token_weights
from tests import reference

numbers = st.floats(-50, 50, allow_nan=False, width=32)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=8))
def test_entropy_is_that_of_the_reference_and_within_its_range(features: list) -> None:
    entropy_T = feature_entropy(torch.tensor(features, dtype=torch.float64))
    torch.testing.assert_close(entropy_T, torch.tensor([reference.entropy(z) for z in features], dtype=torch.float64))
    single_T = feature_entropy(torch.tensor(features))
    assert single_T.dtype == torch.float32 and (single_T >= 0).all() and (single_T <= math.log(5) + 1e-6).all()


@pytest.mark.parametrize("normalize", ["image", "batch"])
@pytest.mark.parametrize("delta", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("entropies", [[0.7], [0.1, 0.1, 0.1], [0.0, 0.0]])
def test_c25_one_visual_token_or_equal_entropies_weigh_exactly_half(entropies: list, delta: float, normalize: str) -> None:
    for dtype in (torch.float32, torch.float64):
        entropy_T, image_T = torch.tensor([9.0, *entropies], dtype=dtype), torch.tensor([-1] + [0] * len(entropies))
        w_T = token_weights(entropy_T, image_T, delta=delta, eps=1e-12, normalize=normalize)
        assert w_T.tolist() == [1.0] + [0.5] * len(entropies)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.floats(0, 8, width=32), st.integers(-1, 2)), min_size=1, max_size=12),
    st.sampled_from((0.0, 0.5, 1.0, 2.0)),
    st.sampled_from(("image", "batch")),
)
def test_weights_are_those_of_the_reference(tokens: list, delta: float, normalize: str) -> None:
    entropies, images = zip(*tokens)
    settings_ = {"delta": delta, "eps": 1e-6, "normalize": normalize}
    expected = reference.token_weights(entropies, images, **settings_)
    got = token_weights(torch.tensor(entropies, dtype=torch.float64), torch.tensor(images), **settings_)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_low_entropy_weighs_more_and_a_numbering_with_gaps_is_fine() -> None:
    w_T = token_weights(torch.tensor([1.0, 2.0, 3.0, 1.0, 5.0]), torch.tensor([4, 4, 4, 9, 9]), delta=1.0)
    assert w_T[0] > w_T[1] == 0.5 > w_T[2] and w_T[3] > 0.5 > w_T[4]


def test_text_and_empty_batches() -> None:
    text_T = torch.full((3,), -1)
    assert token_weights(torch.full((3,), torch.nan), text_T, delta=1.0).tolist() == [1.0, 1.0, 1.0]
    for normalize in ("image", "batch"):
        assert token_weights(torch.empty(0), torch.empty(0, dtype=torch.int64), delta=1.0, normalize=normalize).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((torch.tensor([1.0, torch.nan]), torch.tensor([0, 0])), "entropy of visual token 1 is nan"),
        ((torch.tensor([1.0, 2.0]), torch.tensor([0])), "one image number per token, 2 in all"),
        ((torch.tensor([1, 2]), torch.tensor([0, 0])), "one floating entropy per token"),
        ((torch.tensor([1.0]), torch.tensor([0.0])), "one image number per token"),
    ],
)
def test_bad_entropies_and_images_are_refused(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        token_weights(*arguments, delta=1.0)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="normalize is 'page'"):
        token_weights(torch.ones(1), torch.zeros(1, dtype=torch.int64), delta=1.0, normalize="page")
    with pytest.raises(ValueError, match="features_TD is torch.float32 of shape"):
        feature_entropy(torch.ones(3))


def test_modality_of_experts() -> None:
    visual, text = torch.tensor([70, 50, 30, 0, 0, 350]), torch.tensor([30, 50, 70, 0, 10, 340])  # 500 of each
    assert modality_groups(visual, text, margin=0.2).tolist() == [1, 0, -1, 0, -1, 0]
    assert modality_groups(visual, text, margin=0.5).tolist() == [0, 0, 0, 0, -1, 0]
    assert modality_groups(visual, text, margin=0.21).tolist() == [0, 0, 0, 0, -1, 0]


def test_modality_compares_shares_and_not_counts() -> None:
    assert modality_groups(torch.tensor([900, 100]), torch.tensor([5, 5])).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("visual", "text", "margin", "sentence"),
    [
        ([0, 0], [1, 2], 0.2, "no usable visual pairs"),
        ([1, 2], [0, 0], 0.2, "no usable text pairs"),
        ([1, -2], [1, 1], 0.2, "no usable visual pairs"),
        ([1, 2], [1], 0.2, "one count per expert"),
        ([1, 2], [1, 1], 0.6, "margin is 0.6"),
        ([1, 2], [1, 1], float("nan"), "margin is nan"),
    ],
)
def test_calibration_that_cannot_be_used_is_refused(visual: list, text: list, margin: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        modality_groups(torch.tensor(visual), torch.tensor(text), margin)
