"""How experts are told to leave out pairs that a policy dropped."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import Iterator

from torch import nn

_lock = threading.Lock()
_users: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = weakref.WeakKeyDictionary()


@contextmanager
def skipping_dropped(experts: nn.Module) -> Iterator[None]:
    """Let the experts skip id N while anyone needs it; without this flag one process computes such rows from garbage."""
    if not hasattr(experts, "_is_expert_parallel"):  # an experts class with only its own loop, which skips id N anyway
        yield
        return
    with _lock:
        users, before = _users.get(experts, (0, experts._is_expert_parallel))
        _users[experts] = (users + 1, before)
        experts._is_expert_parallel = True
    try:
        yield
    finally:
        with _lock:
            users, before = _users.pop(experts)
            if users > 1:
                _users[experts] = (users - 1, before)
            else:
                experts._is_expert_parallel = before
