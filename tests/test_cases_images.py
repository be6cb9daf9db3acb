"""Cases A01 to A18: pictures that went wrong elsewhere, each as the kind of file that it stands for."""

import io
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import transformers as hf
from gradio_client import handle_file
from PIL import Image

from macs.config import preset
from macs.engine import intake
from macs.engine.base import Request
from macs.engine.compare import compare
from macs.engine.intake import BACKGROUND, FORMATS, open_image
from macs.model import encode
from macs.model.anatomy import dissect
from macs.view import maps, shown
from macs.view.words import Words
from tests import tiny
from tests.case_files import BLUE, GREEN, HTML, RED, SVG, bomb, encoded, moving, noise, plain, ramp, rotated, veiled

DAMAGED = "This image is damaged and cannot be decoded; save it again or choose another one."
FORMATS_SAID = "Use PNG, JPEG, WEBP, GIF, BMP or TIFF."


@pytest.fixture(scope="module")
def published():
    """What ``encode`` asks of a model, with the limits of Qwen3-VL's processor: cells of 32 pixels, 65,536 to 16,777,216 in all."""

    def limited(most=16_777_216, least=65_536):
        images = hf.Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2, size={"shortest_edge": least, "longest_edge": most})
        own = tiny.processor()
        processor = hf.Qwen3VLProcessor(images, own.tokenizer, own.video_processor, chat_template=own.chat_template)
        return types.SimpleNamespace(processor=processor, anatomy=anatomy, model=types.SimpleNamespace(device="cpu"), max_prompt_tokens=500, max_visual_tokens=16384)

    anatomy = dissect(tiny.qwen())
    return limited


def grid(batch):
    """Rows and columns of visual tokens, from what the processor made."""
    return (batch["image_grid_thw"][0, 1:] // 2).tolist()


def run(demo, content: bytes, **fields):
    return demo.run(Request("What is this?", open_image(content).image, 2), preset("macs", **fields)).trace


def near(pixel, colour) -> bool:
    return np.abs(np.subtract(pixel, colour)).max() < 40


@pytest.mark.parametrize("tag", range(1, 9))
def test_A01_a_rotated_photograph_is_upright_everywhere(tag, demo, published):
    upright = open_image(rotated(tag)).image
    batch = encode(published(), "What?", upright)
    trace = run(demo, rotated(tag))
    copy = Image.open(io.BytesIO(trace.images[0]))
    turned = tag >= 5
    assert upright.size == copy.size == ((480, 640) if turned else (640, 480))
    assert grid(batch) == ([20, 15] if turned else [15, 20]) and (batch["input_ids"] == tiny.IMAGE).sum() == 300
    rows, columns = trace.grids[0]
    assert (rows > columns) == turned and (shown.pictures(trace)[0].width, shown.pictures(trace)[0].height) == copy.size
    sides = {"left": (0.03, 0.5), "right": (0.97, 0.5), "top": (0.5, 0.03), "bottom": (0.5, 0.97)}
    red, green = {1: "left bottom", 2: "right bottom", 3: "right top", 4: "left top", 5: "top right", 6: "top left", 7: "bottom left", 8: "bottom right"}[tag].split()
    for image in (upright, copy):
        at = {side: image.getpixel((int(x * image.width), int(y * image.height))) for side, (x, y) in sides.items()}
        assert near(at[red], RED) and near(at[green], GREEN)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "WEBP"])
def test_A04_colours_under_alpha_reach_neither_model_nor_map(mode, demo, published):
    image = open_image(veiled(mode)).image
    seen = np.asarray(image)
    outer = np.ones((64, 64), bool)
    outer[16:48, 16:48] = False
    assert (seen[outer] == BACKGROUND).all() and len(np.unique(seen[~outer], axis=0)) > 200
    trace = run(demo, veiled(mode))
    copy = np.asarray(Image.open(io.BytesIO(trace.images[0])).convert("RGB"))
    assert (copy[outer] == BACKGROUND).all()
    patches = encode(published(most=65_536), "What?", image.resize((256, 256), Image.Resampling.NEAREST))["pixel_values"]
    flat = (patches == patches[0]).all(1)  # the first patch is all background
    assert flat.sum() >= 256 - 12 * 12


def test_A04_a_transparent_colour_of_a_palette_or_of_16_bits_is_background_too():
    palette = Image.new("P", (8, 8), 3)
    palette.putpalette([9, 9, 9] * 3 + list(RED))
    for content in (encoded(palette, transparency=3), encoded(palette, "GIF", transparency=3), encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16)), transparency=40_000)):
        assert (np.asarray(open_image(content).image) == BACKGROUND).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_A06_a_16_bit_ramp_survives(kind, published):
    image = open_image(ramp(kind)).image
    seen = np.asarray(image)
    assert image.mode == "RGB" and len(np.unique(seen)) >= 200 and abs(seen.mean() - 127.5) < 1
    values = encode(published(), "What?", image)["pixel_values"]
    assert len(np.unique(values)) >= 200 and abs(float(values.mean())) < 0.2


def test_A06_pixels_of_32_bits_or_floating_point_are_refused_and_every_mode_of_8_is_read():
    for values in (np.full((4, 4), 70_000, np.int32), np.full((4, 4), -1, np.int32), np.full((4, 4), 0.5, np.float32)):
        with pytest.raises(ValueError, match="save it with 8 or 16 bits per channel"):
            open_image(encoded(Image.fromarray(values), "TIFF"))
    for mode, kind in {"1": "PNG", "L": "BMP", "P": "GIF", "LA": "PNG", "CMYK": "JPEG", "YCbCr": "JPEG", "LAB": "TIFF", "RGB": "WEBP"}.items():
        assert open_image(encoded(Image.new(mode, (40, 30)), kind)).image.mode == "RGB"


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_A07_of_an_animation_the_first_frame_is_used_and_said(kind):
    picture = open_image(moving(kind))
    assert picture.image.mode == "RGB" and near(picture.image.getpixel((9, 9)), RED)
    assert picture.notices == ("The file is animated; its first frame is used.",)
    assert Words("zh").sentence(picture.notices[0]) != picture.notices[0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_A08_a_cut_file_is_called_damaged(kind):
    whole = encoded(Image.fromarray(noise(200, 200, 3)), kind)
    for left in (len(whole) - 128, len(whole) // 2):
        with pytest.raises(ValueError) as error:
            open_image(whole[:left])
        assert str(error.value) in (DAMAGED, f"This file cannot be read as an image. {FORMATS_SAID}"), (kind, left)


def test_A08_after_a_damaged_upload_the_next_good_one_works(client, tmp_path):
    whole = rotated(6)
    for name, content in {"minus128.jpg": whole[:-128], "half.jpg": whole[: len(whole) // 2]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Exception, match="^This image is damaged") as error:
            client.predict(prompt="What?", image=handle_file(tmp_path / name), api_name="/compare")
        assert "\n" not in str(error.value)
    (tmp_path / "good.jpg").write_bytes(whole)
    assert client.predict(prompt="What?", image=handle_file(tmp_path / "good.jpg"), max_new_tokens=1, api_name="/compare")["policy"]["layers"]


PEAK = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from macs.engine.intake import open_image
open_image(sys.argv[3])
def refused(path):
    try:
        open_image(path)
    except ValueError as error:
        return "megapixels" in str(error)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(8) as eight:
    assert all(eight.map(refused, [sys.argv[1]] + [sys.argv[2]] * 8))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_A09_bombs_are_refused_before_they_are_decoded(client, tmp_path):
    """In a process of its own the peak is looked at; then eight at once through the page, which goes on."""
    files = [tmp_path / name for name in ("20000.png", "12000.png", "small.png")]
    for file, content in zip(files, (bomb(20_000), bomb(12_000), plain(64, 64))):
        file.write_bytes(content)
    assert max(file.stat().st_size for file in files) < 60_000
    done = subprocess.run([sys.executable, "-c", PEAK, *files], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100, "MiB"

    def refused(file):
        with pytest.raises(Exception, match="megapixels are read"):
            client.predict(prompt="What?", image=handle_file(file), api_name="/compare")

    before = psutil.Process().memory_info().rss
    with ThreadPoolExecutor(8) as eight:
        list(eight.map(refused, [files[1]] * 8))
    assert psutil.Process().memory_info().rss - before < 200e6
    assert client.predict(prompt="What?", image=handle_file(files[2]), max_new_tokens=1, api_name="/compare")["policy"]["layers"]


@pytest.fixture(scope="module")
def photograph():
    return Image.fromarray(noise(756, 1008, 3)).resize((4032, 3024))


def test_A10_a_12_megapixel_photograph_stays_within_the_token_limit(demo, photograph, published):
    """The count is taken from the grid that the processor made, not from what it was asked."""
    trace = demo.run(Request("What?", photograph, 1), preset("macs")).trace
    (rows, columns) = trace.grids[0]
    assert rows * columns == trace.tokens.visual_T.sum() <= demo.info.max_visual_tokens == 144
    content = shown.open_run(compare(demo, Request("What?", photograph, 1), preset("macs")), "live")
    assert f"{rows * columns} patches count as" in maps.weights(content, Words("en"))
    batch = encode(published(most=1024 * 1024), "What?", photograph)
    assert grid(batch) == [27, 36] and (batch["input_ids"] == tiny.IMAGE).sum() == 972
    deaf = published()  # a processor that was not held to the model's limit
    deaf.max_visual_tokens = 4096
    with pytest.raises(ValueError, match="makes 11844 visual tokens; at most 4096 run here"):
        encode(deaf, "What?", photograph)


def test_A11_extreme_ratios_run_up_to_the_limit_and_are_refused_beyond_it(demo, published):
    for size in ((1608, 8), (4000, 16), (8, 1608), (201, 1)):
        with pytest.raises(ValueError, match="its sides may differ by a factor of 200 at most"):
            open_image(plain(*size))
    for size in ((1600, 8), (16, 2048), (31, 639), (200, 1), (1, 200), (1, 1)):
        (rows, columns) = run(demo, plain(*size)).grids[0]
        assert rows > 0 and columns > 0 and rows * columns <= 144
    assert grid(encode(published(), "What?", open_image(plain(16, 2048)).image)) == [91, 1]  # 32 × 2912 pixels
    assert grid(encode(published(most=16_384, least=1024), "What?", open_image(plain(31, 639)).image)) == [18, 1]  # 32 × 576


def test_A14_an_svg_is_refused_with_the_formats_and_served_as_a_download(client, demo_page, tmp_path):
    (tmp_path / "vector.svg").write_bytes(SVG)
    with pytest.raises(Exception) as error:
        client.predict(prompt="What?", image=handle_file(tmp_path / "vector.svg"), api_name="/compare")
    assert str(error.value) == f"This file cannot be read as an image. {FORMATS_SAID}" and len(FORMATS) == 6
    (path,) = httpx.post(f"{demo_page}/gradio_api/upload", files={"files": ("vector.svg", SVG, "image/svg+xml")}).json()
    served = httpx.get(f"{demo_page}/gradio_api/file={path}")
    assert served.status_code == 200 and served.headers["content-disposition"].startswith("attachment")
    assert served.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("name, content, said", [("empty.jpg", b"", "empty"), ("page.png", HTML, "cannot be read as an image"), ("head.png", b"\x89PNG\r\n\x1a\n", "cannot be read")])
def test_A16_what_is_no_picture_is_refused_whatever_its_name(name, content, said, client, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Exception, match=said) as error:
        client.predict(prompt="What?", image=handle_file(tmp_path / name), api_name="/compare")
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("kind, name", [("PNG", "photo.jpg"), ("WEBP", "photo.jpeg"), ("JPEG", "photo"), ("GIF", "猫 <b>'\".png"), ("BMP", "a" * 200 + ".png")])
def test_A16_a_picture_is_taken_by_its_content_whatever_its_name(kind, name, client, tmp_path):
    (tmp_path / name).write_bytes(encoded(Image.new("RGB", (64, 64), RED), kind))
    result = client.predict(prompt="What?", image=handle_file(tmp_path / name), max_new_tokens=1, api_name="/compare")
    assert sum(result["vanilla"]["layers"][0]["tokens_before"]) > 2 * 64  # 64 visual tokens at least, 2 pairs each


def test_A18_the_same_bytes_in_another_shape_are_another_picture(demo, client, tmp_path, monkeypatch):
    """Back to back, in turn, and from two sessions; and one file with alpha on two backgrounds."""
    pixels = noise(120 * 80 * 3).tobytes()
    images = [Image.frombytes("RGB", size, pixels) for size in ((120, 80), (80, 120))]
    alone = [demo.run(Request("What?", image, 1), preset("macs")).trace for image in images]
    again = [demo.run(Request("What?", image, 1), preset("macs")).trace for image in reversed(images)][::-1]
    assert alone[0].grids[0] == alone[1].grids[0][::-1] and alone[0].grids != alone[1].grids
    loads = [trace.layers[0].decision.tokens_before_N for trace in alone]
    assert not np.array_equal(*loads) and alone[0].images != alone[1].images
    files = []
    for image in images:
        files.append(tmp_path / f"{image.width}.png")
        image.save(files[-1])
    others = [type(client)(client.src, verbose=False), client]
    for image_loads, first, second, file, other in zip(loads, alone, again, files, others):
        assert np.array_equal(first.layers[0].scores_TN, second.layers[0].scores_TN)
        result = other.predict(prompt="What?", image=handle_file(file), max_new_tokens=1, api_name="/compare")
        assert result["vanilla"]["layers"][0]["tokens_before"] == image_loads.tolist()
    white = run(demo, veiled())
    monkeypatch.setattr(intake, "BACKGROUND", BLUE)
    blue = run(demo, veiled())
    assert white.images != blue.images and not np.array_equal(white.layers[0].scores_TN, blue.layers[0].scores_TN)
