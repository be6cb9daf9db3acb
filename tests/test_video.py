"""Several pictures and the frames of a video: where each family's vision tower saw them, and what a trace keeps of them."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from macs.__main__ import main
from macs.config import preset
from macs.engine.base import Request
from macs.engine.intake import MAX_FRAMES, open_frames
from macs.engine.local import LocalEngine
from macs.model import apply, encode, load
from macs.model.families import FAMILIES
from macs.model.preflight import preflight
from macs.trace_file import load_trace
from macs.view import export, maps, session
from macs.view.export import around
from macs.view.shown import open_run
from macs.view.words import Words
from tests import tiny
from tests.checkpoints import CHECKPOINTS
from tests.hooked import logits
from tests.made import made_trace

SIZE, COUNT = (112, 56), 6
TAKES_VIDEO = ("qwen3-vl", "qwen3.5", "qwen3-omni", "glm-4.5v", "kimi-k2.5", "internvl", "gemma-4")
TOGETHER = {"qwen3-vl": 2, "qwen3.5": 2, "qwen3-omni": 2, "glm-4.5v": 2, "kimi-k2.5": 4}  # frames of one view; 1 in the others
PLACES = [(0.1, 0.2), (0.9, 0.2), (0.5, 0.8), (0.3, 0.8), (0.9, 0.9), (0.1, 0.9)]  # of the bright spot, frame by frame


def spot(place, size=SIZE):
    """A black picture with a bright spot there."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    x, y = int(place[0] * size[0]), int(place[1] * size[1])
    pixels[max(y - 3, 0) : y + 3, max(x - 3, 0) : x + 3] = 255
    return Image.fromarray(pixels)


def film(together):
    """Frames whose spot stays while a view lasts."""
    return [spot(PLACES[i // together]) for i in range(COUNT)]


class Made:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder / name
        CHECKPOINTS[name].write(self.folder)
        self.loaded = replace(load(self.folder), max_visual_tokens=4096)  # Omni gives a frame 512 tokens of these small patches

    def tokens(self, batch):
        with apply(self.loaded.model, "vanilla", processor=self.loaded.processor, inputs=batch) as run:
            logits(self.loaded.model, batch)
        return run.trace.tokens


@pytest.fixture(scope="module", params=TAKES_VIDEO)
def made(request, tmp_path_factory):
    return Made(request.param, tmp_path_factory.mktemp("video"))


def light(batch, name, kind):
    """Mean value of the pixels behind each visual token, in the order of the patches; black is least."""
    if name == "internvl":  # [tiles, 3, 32, 32], 8 pixels a token
        return batch["pixel_values"].mean(1).unfold(1, 8, 8).unfold(2, 8, 8).mean((-1, -2)).flatten().numpy()
    values = batch["pixel_values_videos" if kind == "video" else "pixel_values"]
    if name == "gemma-4":
        lights = []
        for value_PC, place_P2 in zip(values, batch[f"{kind}_position_ids"]):
            cell_P2, real = place_P2 // 3, place_P2[:, 0] >= 0
            columns, rows = (cell_P2.amax(0) + 1).tolist()
            lights += [float(value_PC[real & (cell_P2[:, 1] == y) & (cell_P2[:, 0] == x)].mean()) for y in range(rows) for x in range(columns)]
        return np.array(lights)
    if name == "kimi-k2.5":  # patches row by row, frame by frame; a token is 2 x 2 of them in all frames of its row of the grid
        lights, start = [], 0
        for t, h, w in batch[f"{kind}_grid_thw"].tolist():
            part = values[start : start + t * h * w].flatten(1).mean(1).view(t, h // 2, 2, w // 2, 2).mean((0, 2, 4))
            lights, start = [*lights, *part.flatten().tolist()], start + t * h * w
        return np.array(lights)
    return values.view(-1, 4, values.shape[-1]).mean((1, 2)).numpy()  # four patches in a row make a token


def assert_spots(tokens, light_P, places):
    """Of each image the brightest token is the one whose cell holds its spot."""
    visual_T = tokens.visual_T
    assert light_P.shape == (visual_T.sum(),)
    assert sorted(set(tokens.image_T[visual_T])) == list(range(len(places)))
    for image, (x, y) in enumerate(places):
        of_image = tokens.image_T[visual_T] == image
        x0, y0, x1, y1 = tokens.cell_T4[visual_T][of_image][light_P[of_image].argmax()]
        assert x0 - 0.03 <= x <= x1 + 0.03 and y0 - 0.06 <= y <= y1 + 0.06, (image, (x0, y0, x1, y1))


def test_each_frame_is_an_image_whose_cells_lie_where_its_pixels_went(made):
    together = TOGETHER.get(made.name, 1)
    frames = film(together)
    batch = encode(made.loaded, "What happens?", frames=frames, fps=2.0)
    tokens = made.tokens(batch)
    count = math.ceil(COUNT / together)
    assert_spots(tokens, light(batch, made.name, "image" if made.name == "internvl" else "video"), [PLACES[i] for i in range(count)])
    for image in range(count):
        of_image = tokens.image_T == image
        x0, y0, x1, y1 = tokens.cell_T4[of_image].T
        assert ((x1 - x0) * (y1 - y0)).sum() == pytest.approx(1, abs=1e-5)


def test_several_pictures_lie_each_on_its_own_grid(made):
    sizes = [(112, 56), (56, 84), (84, 84)]
    pictures = [spot(PLACES[i], size) for i, size in enumerate(sizes)]
    batch = encode(made.loaded, "Compare.", pictures)
    tokens = made.tokens(batch)
    if made.name == "internvl":  # tiles and whole of each
        expected = [place for place in PLACES[:3] for _ in range(2)]
    else:
        expected = PLACES[:3]
    images = sorted(set(tokens.image_T[tokens.visual_T]))
    assert len(images) == len(expected)
    if made.name != "internvl":
        assert_spots(tokens, light(batch, made.name, "image"), expected)


def test_a_picture_and_a_video_are_told_apart_and_stay_in_order(made):
    together = TOGETHER.get(made.name, 1)
    if FAMILIES[CHECKPOINTS[made.name].family].frames_as_images:  # GLM's forward fails on both, InternVL's batch does not say whose a tile is
        with pytest.raises(ValueError, match="pictures or a video here, not both"):
            encode(made.loaded, "Both?", spot((0.5, 0.5), (56, 56)), frames=film(together))
        return
    batch = encode(made.loaded, "Both?", spot((0.5, 0.5), (56, 56)), frames=film(together))
    tokens = made.tokens(batch)
    light_P = np.concatenate([light(batch, made.name, "image"), light(batch, made.name, "video")])
    assert_spots(tokens, light_P, [(0.5, 0.5), *PLACES[: math.ceil(COUNT / together)]])


def test_a_trace_keeps_the_picture_behind_each_view(made, monkeypatch):
    together = TOGETHER.get(made.name, 1)
    monkeypatch.setattr("macs.engine.local.load", lambda *_, **__: made.loaded)
    engine = LocalEngine(str(made.folder))
    frames = [Image.new("RGB", SIZE, (40 * i, 0, 0)) for i in range(COUNT)]
    trace = engine.run(Request("What happens?", None, 1, frames=tuple(frames)), preset("vanilla")).trace
    reds = [Image.open(io.BytesIO(data)).getpixel((0, 0))[0] for data in trace.images]
    assert reds == [40 * i for i in range(0, COUNT, together)] and len(trace.images) == len(trace.grids)
    colours = [(200, 0, 0), (0, 200, 0)]
    pictures = [Image.new("RGB", SIZE, colour) for colour in colours]
    trace = engine.run(Request("Compare.", pictures[0], 1, more=(pictures[1],)), preset("vanilla")).trace
    seen = [Image.open(io.BytesIO(data)).getpixel((0, 0)) for data in trace.images]
    assert len(seen) == len(trace.grids) and [c for i, c in enumerate(seen) if i == 0 or c != seen[i - 1]] == colours


@pytest.mark.parametrize("name", ["aria", "deepseek-ocr-2"])
def test_a_family_without_video_says_so(name, tmp_path):
    assert not FAMILIES[CHECKPOINTS[name].family].video
    made = Made(name, tmp_path)
    with pytest.raises(ValueError, match="takes no video here"):
        encode(made.loaded, "What happens?", frames=film(1))
    assert preflight(str(made.folder)).supports["video"] == "no: it takes none"


def test_kimi_vls_tokenizer_has_no_place_for_a_video(tmp_path):
    made = Made("kimi-vl", tmp_path)
    with pytest.raises(ValueError, match="no place for what was given"):
        encode(made.loaded, "What happens?", frames=film(1))
    assert preflight(str(made.folder)).supports["video"] == "no: Kimi-VL has no token for frames"


# --- files and the command


def gif(path, count, duration=200):
    frames = [Image.new("RGB", (60, 40), (5 * i % 256, 0, 0)) for i in range(count)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0)
    return path


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_frames_of_an_animated_file_come_with_their_time(kind, tmp_path):
    clip = open_frames(gif(tmp_path / f"a.{kind}", 5))
    assert len(clip.frames) == 5 and clip.fps == pytest.approx(5) and not clip.notices
    assert {frame.mode for frame in clip.frames} == {"RGB"} and {frame.size for frame in clip.frames} == {(60, 40)}
    long = open_frames(gif(tmp_path / f"b.{kind}", 40))
    assert len(long.frames) == MAX_FRAMES and "has 40 frames; the model sees 8" in long.notices[0] and long.fps == pytest.approx(1)
    assert abs(long.frames[-1].getpixel((0, 0))[0] - 195) < 8  # the last one is among them


def test_files_that_are_no_video_end_with_one_sentence(tmp_path):
    Image.new("RGB", (60, 40)).save(tmp_path / "still.png")
    cut = gif(tmp_path / "a.gif", 30).read_bytes()
    (tmp_path / "cut.gif").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "text.gif").write_bytes(b"no picture")
    for name, said in (("still.png", "no video"), ("cut.gif", "damaged"), ("text.gif", "cannot be read as an image"), ("gone.gif", "no such image file")):
        with pytest.raises(ValueError, match=said):
            open_frames(tmp_path / name)


def test_the_command_takes_several_pictures_and_a_video(tmp_path, capsys):
    made = Made("qwen3-vl", tmp_path)
    tiny.picture(64, 48).save(tmp_path / "a.png")
    tiny.picture(48, 64).save(tmp_path / "b.png")
    clip = gif(tmp_path / "clip.gif", 12)
    common = ["run", "--model", str(made.folder), "--prompt", "What?", "--max-new-tokens", "1", "--out", str(tmp_path / "run.npz")]
    assert main([*common, "--image", str(tmp_path / "a.png"), str(tmp_path / "b.png")]) == 0
    assert load_trace(tmp_path / "run.npz").grids == ((3, 4), (4, 3))
    assert main([*common, "--video", str(clip)]) == 0
    trace = load_trace(tmp_path / "run.npz")
    assert len(trace.images) == len(trace.grids) == 4 and "has 12 frames; the model sees 8" in capsys.readouterr().err
    assert main([*common, "--image", *[str(tmp_path / "a.png")] * 9]) == 2 and "at most 8" in capsys.readouterr().err


# --- the page


def reel(count):
    """A run over ``count`` pictures in a row: the made-up trace, its one picture cut into bands."""
    trace = made_trace(preset("macs", gamma=0.6), rows=count * 2, columns=4, words=4, padding=0)
    tokens, band_T = trace.tokens, np.where(trace.tokens.visual_T, trace.tokens.position_T2[:, 0] // 2, -1)
    cell_T4 = tokens.cell_T4 * [1, count, 1, count] - np.where(tokens.visual_T, band_T, 0)[:, None] * [0, 1, 0, 1]
    place_T2 = np.where(tokens.visual_T[:, None], tokens.position_T2 % [2, 99], -1)
    buffer = io.BytesIO()
    Image.new("RGB", (80, 40)).save(buffer, "PNG")
    tokens = replace(tokens, image_T=band_T, cell_T4=cell_T4.astype(np.float32), position_T2=place_T2)
    return replace(trace, tokens=tokens, images=(buffer.getvalue(),) * count)


@pytest.mark.parametrize(("count", "slider"), [(1, False), (2, False), (3, True), (8, True)])
def test_more_than_two_pictures_are_shown_one_at_a_time(count, slider):
    content = open_run(around(reel(count)), "file")
    markup = maps.weights(content, Words("zh"))
    assert markup.count('class="map wmap"') == count and markup.count('class="pc"') == 8 * count
    assert (f'max="{count}"' in markup) == slider and ("图像或帧" in markup) == slider


def test_the_slider_turns_every_map_and_follows_the_token_that_is_chosen(chromium, tmp_path):
    """Without a server: the regions as one file, and the page's own script."""
    content = open_run(around(reel(3)), "file")
    words = Words("en")
    regions = session.render(replace(content, focus=("token", 4 + 16)), words)  # the third picture's first rows lie after 16 patches and 2 words
    page = chromium.new_context().new_page()
    html = export.report(regions, (Path(maps.__file__).parent / "page.css").read_text(), words)
    (tmp_path / "page.html").write_text(html.replace("</body>", ''.join(f'<div id="{opened}"></div>' for opened in re.findall('data-opens="(.*?)"', html)) + "</body>"))
    page.goto((tmp_path / "page.html").as_uri())
    page.evaluate((Path(maps.__file__).parent / "page.js").read_text())

    def visible(kind):
        return [int(m.get_attribute("data-image")) for m in page.locator(f".map.{kind}").all() if m.is_visible()]

    slider = page.locator("[data-frames]")
    shown = int(content.policy.tokens.image_T[20])
    assert visible("wmap") == [shown] and slider.input_value() == str(shown + 1) and page.locator(".frames output").inner_text() == f"{shown + 1} / 3"
    slider.focus()
    page.keyboard.press("Home")
    assert visible("wmap") == [0] and set(visible("fate")) == {0} and page.locator(".frames output").inner_text() == "1 / 3"
    page.keyboard.press("ArrowRight")
    assert visible("wmap") == [1] and set(visible("fate")) == {1}
    page.wait_for_timeout(100)  # the script's own look after each change leaves the reader's choice
    assert visible("wmap") == [1]
