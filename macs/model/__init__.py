"""What is known of transformers' MoE models: where routers and experts are, what their tokens show, how to load them."""

from macs.model.encode import encode
from macs.model.load import Loaded, check_ranks, count_experts, load, read_calibration
from macs.model.recording import Recording
from macs.model.seam import apply

__all__ = ["Loaded", "Recording", "apply", "check_ranks", "count_experts", "encode", "load", "read_calibration"]
