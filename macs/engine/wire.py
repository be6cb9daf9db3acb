"""Messages between a caller and its ranks: plain pickles, so that tensors travel by value and no further socket is opened."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send(connection: Connection, message: Any) -> None:
    """Send one message; raises OSError if the other end is gone."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Return the next message; raises EOFError or OSError if the other end is gone."""
    return pickle.loads(connection.recv_bytes())
