"""Policies: presets, validation, copies and round trips."""

import json
import math
from dataclasses import FrozenInstanceError

import pytest

from macs.config import ABLATIONS, CHOICES, PRESETS, RANGES, Policy, check_ep_size, checked_number, policy_from_dict, preset

AXES = ("load", "capacity", "overflow", "priority")


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("vanilla", ("tokens", "static", "none", "score")),
        ("token_drop", ("tokens", "static", "drop", "score")),
        ("expanded_drop", ("tokens", "static", "expand", "score")),
        ("macs_no_reroute", ("entropy", "modality", "drop", "weighted_score")),
        ("macs", ("entropy", "modality", "reroute", "weighted_score")),
    ],
)
def test_presets_are_those_of_the_papers(name: str, axes: tuple) -> None:
    policy = preset(name)
    assert tuple(getattr(policy, axis) for axis in AXES) == axes
    assert policy.preset == name == policy.with_(gamma=0.3, delta=2.0).preset
    assert set(PRESETS) == {"vanilla", "token_drop", "expanded_drop", "macs_no_reroute", "macs"}


def test_any_ablation_is_a_policy() -> None:
    for load in CHOICES["load"]:
        for capacity in CHOICES["capacity"]:
            for overflow in CHOICES["overflow"]:
                policy = preset("macs", load=load, capacity=capacity, overflow=overflow)
                assert policy.preset in (*PRESETS, *ABLATIONS, "custom")
    assert preset("macs", load="tokens").preset == "macs_no_entropy" and preset("macs", capacity="static").preset == "macs_static"
    assert preset("macs", load="tokens", capacity="static").preset == "custom"


def test_a_policy_cannot_be_changed_and_copies_are_checked() -> None:
    policy = preset("macs")
    with pytest.raises(FrozenInstanceError):
        policy.gamma = 2.0
    assert policy.with_(gamma=2).gamma == 2.0 and policy.gamma == 1.0
    with pytest.raises(ValueError, match="gamma is -1"):
        policy.with_(gamma=-1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_policy_survives_json(name: str) -> None:
    policy = preset(name, gamma=0.7, min_affinity=0.2, normalize="batch", phase="all")
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["", "Tokens", "no such thing", None, 1, True, ["tokens"]])
def test_a_bad_choice_is_refused_with_the_good_ones(name: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        Policy(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}; use one of {', '.join(CHOICES[name])}."


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 1e308, "1", "abc", None, True, [1.0]])
def test_d02_a_number_out_of_range_is_refused_with_its_range(name: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        Policy(**{name: value})
    low, high = RANGES[name]
    assert str(caught.value) == f"{name} is {value!r}; use a number from {low:g} to {high:g}."


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_a_range_are_in_it_and_become_floats(name: str) -> None:
    for value in RANGES[name]:
        checked = getattr(Policy(**{name: value}), name)
        assert checked == value and isinstance(checked, float)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="policy is 'mac'; use one of vanilla, token_drop"):
        preset("mac")
    for make in (lambda: preset("macs", gama=1.0), lambda: policy_from_dict({"gama": 1.0}), lambda: preset("macs").with_(gama=1.0)):
        with pytest.raises(ValueError, match="A policy has no field 'gama'; it has capacity"):
            make()


@pytest.mark.parametrize("ep_size", [0, -1, 3, 4, 12, 2.0, True, None, "2"])
def test_c04_a_rank_count_that_does_not_divide_is_refused_with_those_that_do(ep_size: object) -> None:
    with pytest.raises(ValueError) as caught:
        check_ep_size(ep_size, 6 if ep_size != 3 else 8)
    assert f"ep_size is {ep_size!r}, which does not divide" in str(caught.value)
    assert str(caught.value).endswith("use one of 1, 2, 4, 8." if ep_size == 3 else "use one of 1, 2, 3, 6.")


def test_a_rank_count_that_divides_is_returned() -> None:
    assert [check_ep_size(g, 6) for g in (1, 2, 3, 6)] == [1, 2, 3, 6]


def test_checked_number_names_the_value() -> None:
    assert checked_number("margin", 0, 0.0, 0.5) == 0.0
    with pytest.raises(ValueError, match="margin is 0.6; use a number from 0 to 0.5."):
        checked_number("margin", 0.6, 0.0, 0.5)
