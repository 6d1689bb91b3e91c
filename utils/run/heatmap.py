"""The accuracy matrix as an image, drawn with Pillow, which torchvision needs anyway."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CELL, MARGIN = 46, 56
# From dark to light, so that it also reads in grey: dark blue, teal, green, yellow at 0, 33, 67 and 100 %.
COLOURS = np.array([[48, 18, 89], [38, 110, 142], [63, 182, 118], [253, 231, 60]])


def accuracy_heatmap(accuracy: NDArray[np.float64], title: str) -> Image.Image:
    """Rows: after which task; columns: on which task; NaN stays white. Colours span 0 to 100 %."""
    tasks = len(accuracy)
    side = MARGIN + tasks * CELL + 10
    image = Image.new("RGB", (max(side, 180), side), "white")  # room for the title
    draw = ImageDraw.Draw(image)
    small, normal = ImageFont.load_default(size=14), ImageFont.load_default(size=16)
    draw.text((8, 4), title, fill="black", font=normal)
    draw.text((8, MARGIN - 24), "after", fill="black", font=small)
    for k in range(tasks):
        middle = MARGIN + k * CELL + CELL // 2
        draw.text((middle, MARGIN - 14), str(k + 1), fill="black", font=small, anchor="mm")
        draw.text((MARGIN - 18, middle), str(k + 1), fill="black", font=small, anchor="mm")
        for j in np.flatnonzero(~np.isnan(accuracy[k])):
            left, top = MARGIN + int(j) * CELL, MARGIN + k * CELL
            value = float(accuracy[k, j])
            draw.rectangle((left, top, left + CELL - 2, top + CELL - 2), fill=colour(value))
            draw.text((left + CELL // 2, top + CELL // 2), f"{value:.1f}", fill=ink(value), font=small, anchor="mm")
    return image


def colour(percent: float) -> tuple[int, int, int]:
    """Red, green and blue of an accuracy."""
    stops = np.linspace(0, 100, len(COLOURS))
    red, green, blue = (round(float(np.interp(percent, stops, channel))) for channel in COLOURS.T)
    return red, green, blue


def ink(percent: float) -> str:
    """The colour of a number that is written on it."""
    return "black" if percent > 60 else "white"
