"""The mathematics of MACS on tensors: entropy weights, capacities, admission and rerouting."""

from macs.core.capacity import modality_groups
from macs.core.checks import check_values
from macs.core.entropy import feature_entropy, policy_weights, token_weights
from macs.core.schedule import DROPPED, EXPANDED, KEPT, PADDING, REROUTED, UNUSED, Assignment, priorities, schedule, schedule_layers

__all__ = [
    "DROPPED",
    "EXPANDED",
    "KEPT",
    "PADDING",
    "REROUTED",
    "UNUSED",
    "Assignment",
    "check_values",
    "feature_entropy",
    "modality_groups",
    "policy_weights",
    "priorities",
    "schedule",
    "schedule_layers",
    "token_weights",
]
