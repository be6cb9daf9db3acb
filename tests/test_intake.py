"""Pictures of every make come in upright, RGB and within limits, or are refused in one sentence."""

import io

import numpy as np
import pytest
from PIL import Image

from macs.engine.intake import MAX_PIXELS, open_image, preview


def data(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def marked() -> Image.Image:
    image = Image.new("RGB", (640, 480), (200, 200, 200))
    image.paste((255, 0, 0), (0, 0, 64, 480))  # left red
    image.paste((0, 255, 0), (0, 432, 640, 480))  # bottom green
    return image


@pytest.mark.parametrize("tag", range(1, 9))
def test_exif_orientation_is_applied(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    upright = open_image(data(marked(), "JPEG", exif=exif, quality=95)).image
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # PIL's transpose that each tag asks for
    wanted = marked() if tag == 1 else marked().transpose(undo[tag])
    assert upright.size == wanted.size
    assert np.abs(np.asarray(upright).astype(int) - np.asarray(wanted)).mean() < 3


def test_hidden_colours_under_alpha_never_show():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 4), np.uint8)
    pixels[..., 3] = 0
    pixels[16:48, 16:48, 3] = 255
    seen = np.asarray(open_image(data(Image.fromarray(pixels, "RGBA"))).image)
    assert (seen[:16] == 255).all() and (seen[16:48, 16:48] == pixels[16:48, 16:48, :3]).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_ramp_keeps_its_levels(kind):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    seen = np.asarray(open_image(data(Image.fromarray(ramp), kind)).image)
    assert len(np.unique(seen)) >= 200 and abs(seen.mean() - 127.5) < 1


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "RGB"])
def test_every_mode_becomes_rgb(mode):
    kind = {"CMYK": "JPEG"}.get(mode, "PNG")
    assert open_image(data(Image.new("RGB", (40, 30), (250, 10, 10)).convert(mode), kind)).image.mode == "RGB"


def test_animation_gives_its_first_frame_and_says_so():
    frames = [Image.new("RGB", (32, 32), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for kind in ("GIF", "WEBP", "PNG"):
        picture = open_image(data(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert np.asarray(picture.image)[0, 0, 0] > 200 and "first frame" in picture.notices[0]


@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_truncated_file_is_called_damaged(cut):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8))
    whole = data(noise, "JPEG")
    with pytest.raises(ValueError, match="damaged"):
        open_image(whole[: int(len(whole) * cut)])


@pytest.mark.parametrize("side", [12000, 20000])
def test_bomb_is_refused_before_decoding(side):
    bomb = data(Image.new("1", (side, side)))
    with pytest.raises(ValueError, match="megapixels"):
        open_image(bomb)


def test_extreme_ratio_is_refused_and_the_limit_itself_passes():
    with pytest.raises(ValueError, match="factor of 200"):
        open_image(data(Image.new("RGB", (1608, 8))))
    assert open_image(data(Image.new("RGB", (1600, 8)))).image.size == (1600, 8)


@pytest.mark.parametrize("content", [b"", b"<html></html>", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_refused_in_one_sentence(content):
    with pytest.raises(ValueError) as error:
        open_image(content)
    assert str(error.value).count("\n") == 0 and str(error.value).endswith(".")


def test_a_missing_file_says_so():
    with pytest.raises(ValueError, match="no such image"):
        open_image("no/such/file.png")


def test_preview_is_a_png_no_larger_than_asked():
    assert MAX_PIXELS > 48_000_000
    copy = Image.open(io.BytesIO(preview(Image.new("RGB", (4000, 100)))))
    assert copy.format == "PNG" and max(copy.size) <= 896
