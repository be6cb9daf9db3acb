"""The mathematics of MACS on tensors: entropy weights, capacities, admission and rerouting."""
