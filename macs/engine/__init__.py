"""Engines: run a model under policies and return traces; the same interface whether experts are placed or split."""
