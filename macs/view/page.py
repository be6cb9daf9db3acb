"""The page: its layout from top to bottom. What happens at each event is in ``handlers``; the wiring in ``page_events``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import gradio as gr
from starlette.middleware import Middleware

from macs.engine.base import Engine
from macs.view import curves, page_events, shown
from macs.view.examples import Example
from macs.view.job import Line
from macs.view.page_api import add_api
from macs.view.page_fields import PictureInput, build
from macs.view.page_guard import Guard
from macs.view.page_intake import Page
from macs.view.page_texts import TABS, beside_choices, beside_label, example_strip, found_line
from macs.view.session import Session, render
from macs.view.settings import FIELDS, PANEL, SLIDERS, divisors, values_of
from macs.view.words import LANGUAGES, Words

HERE = Path(__file__).parent
MAX_UPLOAD = "512mb"  # a trace of a large model; pictures are held to the intake's limit
MAX_SESSIONS = 200  # tabs whose runs are kept, the last ones used
KEEP_UPLOADS = 3600  # seconds; gradio then deletes uploaded files
SEND = ("layer", "focus", "cell", "place", "equal", "example", "language", "resync")  # events that page.js sends to Python


@dataclass
class Parts:
    """The components that events read and write."""

    session: gr.State
    bus: gr.HTML
    regions: dict[str, gr.HTML]
    controls: dict[str, gr.components.Component]  # by field name, in the order of FIELDS
    beside: gr.Radio
    picture: gr.Image
    prompt: gr.Textbox
    run: gr.Button
    stop: gr.Button
    examples: gr.HTML
    found: gr.HTML
    choose: gr.Button
    reset: gr.Button
    tabs: dict[str, gr.Tab]  # by the word of their title
    downloads: dict[str, gr.Button]  # by the word of their text
    trace_file: gr.UploadButton
    parcel: gr.DownloadButton  # unseen; what a download button made is fetched through it


def launch_options() -> dict[str, Any]:
    """Return what belongs to ``launch``: theme, style, script, limits, no server-side rendering."""
    fonts = [gr.themes.Font(name) for name in ("Inter", "Segoe UI", "system-ui", "sans-serif")]
    theme = gr.themes.Base(font=fonts, font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")])
    css, js = ((HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    tools = importlib.util.find_spec("mcp") is not None  # the endpoints are MCP tools too where that extra is installed
    limits = {"max_file_size": MAX_UPLOAD, "state_session_capacity": MAX_SESSIONS, "app_kwargs": {"middleware": [Middleware(Guard)]}}
    return {"theme": theme, "css": css, "js": js, "ssr_mode": False, "mcp_server": tools, **limits}


def build_page(engine: Engine, examples: Sequence[Example]) -> gr.Blocks:
    """Return the page over ``engine``, with the first example on the screen; raises ValueError if it cannot be read."""
    words = Words(LANGUAGES[0])
    first = shown.placed(shown.open_run(examples[0].load(), "recorded", example=examples[0].name), engine.info.ep_size)
    drawn = curves.curves(first)
    regions = render(first, words, curves=drawn)
    with Page(title=words("title"), delete_cache=(KEEP_UPLOADS, KEEP_UPLOADS), fill_width=True, analytics_enabled=False) as page:
        session = gr.State(Session(first, drawn, regions, engine.info.found))
        html = {name: gr.HTML(value, elem_id=name, apply_default_css=False, render=False) for name, value in regions.items()}
        values = values_of(*shown.settings_of(first.now))
        sizes = divisors(first.policy.num_experts)
        with gr.Column(elem_id="page"):
            bus = gr.HTML("", elem_id="bus", js_on_load=_bus_script())
            html["picture"].render()
            html["header"].render()
            with gr.Row(elem_id="main"):
                with gr.Column(elem_id="left"):
                    left = _input(examples, engine.info.found, html, words)
                with gr.Column(elem_id="right"):
                    controls, beside, choose, reset = _right(html, values, sizes, words)
            html["selection"].render()
            with gr.Row(elem_id="figures"):
                for name in ("trade", "gantt", "heat"):
                    html[name].render()
            tabs, downloads, trace_file, parcel = _tabs(html, words)
        parts = Parts(session, bus, html, controls, beside, **left, choose=choose, reset=reset, tabs=tabs, downloads=downloads, trace_file=trace_file, parcel=parcel)
        line = Line()
        page_events.wire(page, parts, engine, line, examples)
        add_api(engine, line)
    return page


def _bus_script() -> str:
    """Return the script that turns page.js's document events into gradio's."""
    return "\n".join(f"document.addEventListener('macs-{name}', (event) => trigger('{name}', event.detail));" for name in SEND)


def _input(examples: Sequence[Example], found: str, html: dict[str, gr.HTML], words: Words) -> dict[str, Any]:
    first = examples[0]
    with gr.Row(elem_id="input"):
        picture = PictureInput(
            value=first.picture,
            type="filepath",
            format="png",
            image_mode=None,
            sources=["upload", "clipboard"],
            height=112,
            elem_id="upload",
            label=words("image"),
            placeholder=words("drop_image"),
            buttons=[],
            interactive=True,
        )
        with gr.Column(elem_id="ask"):
            prompt = gr.Textbox(value=first.prompt, lines=2, max_lines=4, label=words("prompt"), elem_id="prompt", container=False)
            with gr.Row(elem_id="go"):
                run = gr.Button(words("run"), variant="primary", elem_id="run")
                stop = gr.Button(words("stop"), interactive=False, elem_id="stop")
    strip = gr.HTML(example_strip(examples, first.name, words), elem_id="examples", apply_default_css=False)
    html["status"].render()
    line = gr.HTML(found_line(found, words), elem_id="found", apply_default_css=False)
    html["weights"].render()
    html["losses"].render()
    return {"picture": picture, "prompt": prompt, "run": run, "stop": stop, "examples": strip, "found": line}


def _right(html: dict[str, gr.HTML], values: dict[str, Any], sizes: tuple[int, ...], words: Words):
    controls = {}
    with gr.Row(elem_id="controls"):
        with gr.Row(elem_id="sliders"):
            for field in SLIDERS:
                controls[field.name] = build(field, values[field.name], words, sizes)
        with gr.Row(elem_id="options"):
            beside = gr.Radio(beside_choices(words), value=shown.BASELINES[0], label=beside_label(values["baseline"], words), elem_id="beside", elem_classes="seg-radio")
            html["picker"].render()
    with gr.Column(elem_id="settings"):
        for field in PANEL:
            controls[field.name] = build(field, values[field.name], words, sizes)
        choose = gr.Button(words("set_tune"), elem_id="choose", size="sm")
        reset = gr.Button(words("set_reset"), elem_id="reset", size="sm")
    for name in ("findings", "ledger", "queues"):
        html[name].render()
    assert list(controls) == [field.name for field in FIELDS]
    return controls, beside, choose, reset


def _tabs(html: dict[str, gr.HTML], words: Words):
    tabs, downloads = {}, {}
    with gr.Tabs(elem_id="tabs", overflow_behavior="wrap"):
        for key, regions in TABS.items():
            with gr.Tab(words(key), elem_id=key) as tabs[key]:
                if key == "tab_export":
                    with gr.Row(elem_id="downloads"):
                        for name in page_events.DOWNLOADS:
                            downloads[name] = gr.Button(words(name), size="sm", elem_id=name)
                        trace_file = gr.UploadButton(words("exp_open"), file_types=[".zip", ".npz"], size="sm", elem_id="open-trace")
                        parcel = gr.DownloadButton("", visible="hidden", elem_id="parcel")
                for region in regions:
                    html[region].render()
    return tabs, downloads, trace_file, parcel
