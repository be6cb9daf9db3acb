"""The named entry points for programs, and tools for agents where the extra ``mcp`` is installed: comparing and rescheduling, without the page.

Their docstrings are what a program or an agent reads of them; gradio takes the parameters' part from "Args:".
"""

from __future__ import annotations

import threading
from typing import Any, Callable

import gradio as gr

from macs.config import NAMED, Policy, preset
from macs.engine.base import Engine, EngineFailure, Request
from macs.engine.compare import NAMES, Comparison
from macs.engine.compare import compare as run_all
from macs.engine.intake import open_image
from macs.engine.run_command import document
from macs.trace_file import load_trace
from macs.view.job import Line
from macs.view.page_fields import NameInput, NumberInput, PictureInput
from macs.view.settings import BASELINE, DEFAULT_LENGTH, answer_length, within_reach


def add_api(engine: Engine, line: Line) -> None:
    """Add the endpoints /compare and /schedule to the page that is being built; their parameters are unseen components."""
    with gr.Group(visible=False):
        policy = NameInput(list(NAMED), value="macs", label="policy")
        gamma, delta, rho = (NumberInput(value, label=name) for name, value in (("gamma", 1.0), ("delta", 1.0), ("rho", 0.5)))
        ep_size = NumberInput(engine.info.ep_size, precision=0, label="ep_size")
        _add_compare(engine, line, [policy, gamma, delta, rho, ep_size])
        _add_schedule([policy, gamma, delta, rho, ep_size])


def _add_compare(engine: Engine, line: Line, settings: list[gr.components.Component]) -> None:
    prompt, image = gr.Textbox(label="prompt"), PictureInput(type="filepath", image_mode=None, label="image")
    baseline = NameInput(list(NAMED), value=BASELINE, label="baseline")
    length = NumberInput(DEFAULT_LENGTH, precision=0, label="max_new_tokens")

    def compare(
        prompt: str,
        image: str | None = None,  # None makes it optional for clients; the other defaults are the components' values
        policy: str = "macs",
        gamma: float = 1.0,
        delta: float = 1.0,
        rho: float = 0.5,
        ep_size: int = engine.info.ep_size,
        baseline: str = BASELINE,
        max_new_tokens: int = DEFAULT_LENGTH,
    ) -> dict[str, Any]:
        """Run a prompt, with or without an image, under vanilla, a policy, and a baseline at the same gamma and at the same time.

        Args:
            prompt: The question or instruction.
            image: The picture it is about; none for text alone.
            policy: vanilla, token_drop, expanded_drop, macs_no_reroute, macs, an ablation of MACS or a control.
            gamma: Capacity factor, from 0.25 to 2.5: less room per expert below 1.
            delta: Entropy sensitivity, from 0 to 4.
            rho: Adaptation strength, from 0 to 2.
            ep_size: Ranks over which the experts are placed; divides their number.
            baseline: What the policy is compared with, one of the same names.
            max_new_tokens: Longest answer, from 1 to 512 tokens.

        Returns:
            One document per run (vanilla, same_gamma, same_time, policy): answer, kl from vanilla in nats, seconds, and per layer
            the pairs kept, rerouted and dropped, the straggler factor and the loads per expert.
        """
        try:
            request = _request(prompt, image, max_new_tokens)
            chosen = _policy(policy, gamma=gamma, delta=delta, rho=rho)
            result = _in_line(line, lambda: run_all(engine, request, chosen, baseline=baseline, ep_size=_whole(ep_size)))
        except (ValueError, EngineFailure) as error:
            raise gr.Error(str(error), print_exception=False) from None
        return {name: document(trace) | {"kl": trace.kl} for name in NAMES for trace in [getattr(result, name)]}

    inputs = [prompt, image, *settings, baseline, length]
    gr.Button("compare").click(compare, inputs, gr.JSON(), api_name="compare", concurrency_limit=None)


def _in_line(line: Line, work: Callable[[], Comparison]) -> Comparison:
    ticket = line.join()
    try:
        line.wait(ticket, threading.Event())
        return work()
    finally:
        line.leave(ticket)


def _request(prompt: str, image: str | None, length: int) -> Request:
    if not (prompt or "").strip():
        raise ValueError("Write a prompt first.")
    length = answer_length(length)
    return Request(prompt, open_image(image).image if image else None, length)


def _policy(name: Any, **numbers: Any) -> Policy:
    """Return a preset with numbers that the page's own sliders reach."""
    return preset(name, **{field: within_reach(field, value) for field, value in numbers.items()})


def _whole(ep_size: Any) -> Any:
    """Return 4.0, as some programs write a 4, as 4; anything else as it is, for the engine to judge."""
    return int(ep_size) if isinstance(ep_size, float) and ep_size in range(2**16) else ep_size


def _add_schedule(settings: list[gr.components.Component]) -> None:
    trace_file = gr.File(type="filepath", label="trace")

    def schedule(trace: str, policy: str, gamma: float, delta: float, rho: float, ep_size: int) -> dict[str, Any]:
        """Schedule a recorded trace again under another policy, without the model.

        Args:
            trace: A trace file (.npz) that the page or the command line wrote.
            policy: vanilla, token_drop, expanded_drop, macs_no_reroute, macs, an ablation of MACS or a control.
            gamma: Capacity factor, from 0.25 to 2.5: less room per expert below 1.
            delta: Entropy sensitivity, from 0 to 4.
            rho: Adaptation strength, from 0 to 2.
            ep_size: Ranks over which the experts are placed; divides their number.

        Returns:
            The document of a run: per layer the pairs kept, rerouted and dropped, the straggler factor and the loads per expert.
        """
        try:
            if not trace:
                raise ValueError("Choose a trace file first.")
            chosen = _policy(policy, gamma=gamma, delta=delta, rho=rho)
            return document(load_trace(trace).reschedule(chosen, ep_size=_whole(ep_size)))
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    gr.Button("schedule").click(schedule, [trace_file, *settings], gr.JSON(), api_name="schedule")
