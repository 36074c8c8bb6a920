"""Makes PNGs small: a palette of 256 colors, and no metadata."""

from io import BytesIO

from PIL import Image


def small(png: bytes) -> bytes:
    """The picture with colors that differ by a few of 255 levels."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    # Covers rare colors, such as the ends of a color map; one iteration makes common ones exact.
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    file = BytesIO()
    picture.quantize(256, method, kmeans=1, dither=dither).save(file, "png", optimize=True)
    return file.getvalue()
