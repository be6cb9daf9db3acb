"""The embedded model's own world: drawn scenes, questions about them, training and evaluation.

Knows nothing of MACS: it imports nothing else of this package.
"""
