"""The named entry points as MCP tools, where the extra ``mcp`` is installed."""

import ast
import asyncio

import httpx
import pytest

from macs.config import NAMED, preset
from macs.engine.base import Request
from macs.engine.compare import NAMES, compare

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed: pip install 'macs-workbench[mcp]'")


@pytest.fixture(scope="module")
def tools(workbench):
    return {tool["name"]: tool for tool in httpx.get(f"{workbench.address}/gradio_api/mcp/schema").json()}


def test_the_entry_points_are_the_only_tools(tools):
    assert set(tools) == {"compare", "schedule"}


@pytest.mark.parametrize("name", ["compare", "schedule"])
def test_a_tool_says_what_it_does_and_what_each_parameter_means(tools, name):
    tool = tools[name]
    starts = {"compare": "Run a prompt, with or without an image, under vanilla, a policy, and a baseline", "schedule": "Schedule a recorded trace again under another policy, without the model."}
    assert tool["description"].startswith(starts[name]) and "the straggler factor and the loads per expert" in tool["description"]
    parameters = tool["inputSchema"]["properties"]
    assert all(parameter["description"] for parameter in parameters.values())
    assert parameters["gamma"]["description"].startswith("Capacity factor") and parameters["policy"]["enum"] == list(NAMED)
    assert tool["inputSchema"]["required"] == [{"compare": "prompt", "schedule": "trace"}[name]]


def test_an_agent_gets_the_same_numbers(workbench):
    from mcp.client.session import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def call(arguments):
        async with streamable_http_client(f"{workbench.address}/gradio_api/mcp/") as (read, write, *_), ClientSession(read, write) as session:
            await session.initialize()
            return await session.call_tool("compare", arguments)

    result = asyncio.run(call({"prompt": "What animal is this?", "policy": "macs", "gamma": 0.7}))
    runs = ast.literal_eval(result.content[0].text)  # gradio hands a document over as Python prints it
    expected = compare(workbench.engine, Request("What animal is this?", None), preset("macs", gamma=0.7))
    for name in NAMES:
        assert [layer["dropped"] for layer in runs[name]["layers"]] == [layer.dropped for layer in getattr(expected, name).layers]
