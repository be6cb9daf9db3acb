"""Calls to the page's programs as bytes on the wire, so that a test can send what no client would."""

import json
from typing import Any

import httpx

DEFAULTS = ("What is this?", None, "macs", 1.0, 1.0, 0.5, 4, "token_drop", 1)  # /compare's parameters, in order
NAMES = ("prompt", "image", "policy", "gamma", "delta", "rho", "ep_size", "baseline", "max_new_tokens")


def call(address: str, name: str, body: bytes) -> tuple[str, Any]:
    """Return ("complete", outputs) or ("error", what the caller is told) of one call."""
    asked = httpx.post(f"{address}/gradio_api/call/{name}", content=body, headers={"content-type": "application/json"})
    assert asked.status_code == 200, asked.text
    with httpx.stream("GET", f"{address}/gradio_api/call/{name}/{asked.json()['event_id']}", timeout=60) as answer:
        blocks = "".join(answer.iter_text()).strip().split("\n\n")
    event, data = blocks[-1].split("\n", 1)
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def compare(address: str, **written: str) -> tuple[str, Any]:
    """Call /compare with its defaults but for parameters given as JSON text, which may be what ``json.dumps`` refuses."""
    values = [written.get(name, json.dumps(value)) for name, value in zip(NAMES, DEFAULTS)]
    return call(address, "compare", f'{{"data": [{", ".join(values)}]}}'.encode())
