"""Entropy of a token's feature vector and the load weight made of it (MACS §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from macs.config import Policy
from macs.core.chance import chance
from macs.core.checks import INTEGERS, kind_of

NORMALIZE = ("image", "batch")


def feature_entropy(features_TD: Tensor) -> Tensor:
    """Return H_T = -sum p ln p in nats, p = softmax(features_TD), in [0, ln D] (§3.2); NaN features give NaN.

    Half precisions are widened to float32. ``entr`` takes 0 ln 0 as 0, so a one-hot distribution has H = 0.
    """
    if features_TD.ndim != 2 or not features_TD.is_floating_point():
        raise ValueError(f"features_TD is {kind_of(features_TD)}; pass floating features [tokens, width].")
    wide = torch.promote_types(features_TD.dtype, torch.float32)
    p_TD = torch.softmax(features_TD, dim=-1, dtype=wide)
    return torch.special.entr(p_TD).sum(-1).clamp_min(0.0)


def policy_weights(policy: Policy, entropy_T: Tensor, image_T: Tensor) -> Tensor:
    """Return w_T as ``policy`` weighs tokens; see `token_weights` for shapes and what is raised (§3.2)."""
    if policy.entropy_order == "shuffled":
        entropy_T = shuffled(entropy_T, image_T, policy.seed)
    return token_weights(entropy_T, image_T, delta=policy.delta, eps=policy.eps, normalize=policy.normalize)


def shuffled(entropy_T: Tensor, image_T: Tensor, seed: int) -> Tensor:
    """Return the entropies dealt anew among the visual tokens of each image, by lot; those of other tokens stay."""
    lot_T = chance(torch.where(image_T >= 0, entropy_T.double(), 0.0), seed)
    own_T = torch.sort(image_T, stable=True).indices
    drawn_T = torch.argsort(lot_T, stable=True)
    drawn_T = drawn_T[torch.sort(image_T[drawn_T], stable=True).indices]  # by image, and within one by lot
    dealt_T = torch.empty_like(entropy_T).index_copy_(0, own_T, entropy_T[drawn_T])
    return torch.where(image_T >= 0, dealt_T, entropy_T)


def token_weights(entropy_T: Tensor, image_T: Tensor, *, delta: float, eps: float = 1e-6, normalize: str = "image") -> Tensor:
    """Return w_T in [0, 1], the load weight of each token, in the entropy's precision, float32 at least (§3.2).

    ``image_T`` numbers the image of each visual token; -1 marks text and padding, whose weight is 1 and whose
    entropy is not looked at. w = sigmoid(-delta * H~), H~ = (H - mean) / (std + eps) with the mean and population
    deviation over the tokens of one image, or over all visual tokens with ``normalize="batch"``.
    Raises ValueError on a bad shape or choice and, on a CPU, on a visual token whose entropy is not finite.
    """
    visual_T = _checked_visual(entropy_T, image_T, normalize)
    wide = torch.promote_types(entropy_T.dtype, torch.float32)
    if len(entropy_T) == 0:
        return entropy_T.to(wide)
    group_T = image_T if normalize == "image" else torch.where(visual_T, 0, -1)
    count = int(group_T.max()) + 1  # makes the host wait for an accelerator: once a forward, or as often as H is taken
    member_IT = group_T == torch.arange(count, device=group_T.device)[:, None]
    entropy64_T = torch.where(visual_T, entropy_T.double(), 0.0)

    def of_group(value_I: Tensor) -> Tensor:
        return torch.where(member_IT, value_I[:, None], 0.0).sum(0)

    def mean_I(value_T: Tensor) -> Tensor:
        return torch.where(member_IT, value_T, 0.0).sum(1) / member_IT.sum(1).clamp_min(1)

    # Measured from the group's least entropy, equal entropies are exactly 0, and so are their mean and deviation.
    least_I = torch.where(member_IT, entropy64_T, torch.inf).amin(1)
    above_T = torch.where(visual_T, entropy64_T - of_group(least_I), 0.0)
    centred_T = above_T - of_group(mean_I(above_T))
    deviation_T = of_group(mean_I(centred_T.square()).sqrt())
    weight_T = torch.sigmoid(-delta * centred_T / (deviation_T + eps))
    return torch.where(visual_T, weight_T, 1.0).to(wide)


def _checked_visual(entropy_T: Tensor, image_T: Tensor, normalize: str) -> Tensor:
    if normalize not in NORMALIZE:
        raise ValueError(f"normalize is {normalize!r}; use one of {', '.join(NORMALIZE)}.")
    if entropy_T.ndim != 1 or not entropy_T.is_floating_point():
        raise ValueError(f"entropy_T is {kind_of(entropy_T)}; pass one floating entropy per token.")
    if image_T.shape != entropy_T.shape or image_T.dtype not in INTEGERS:
        raise ValueError(f"image_T is {kind_of(image_T)}; pass one image number per token, {len(entropy_T)} in all.")
    visual_T = image_T >= 0
    if entropy_T.device.type == "cpu" and not torch.isfinite(entropy_T[visual_T]).all():
        token = int(torch.nonzero(visual_T & ~torch.isfinite(entropy_T))[0, 0])
        raise ValueError(f"The entropy of visual token {token} is {float(entropy_T[token])}; its features must be finite.")
    return visual_T
