"""What stands around the panels of a figure, so that it can be understood without the report."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

UNSURE = 0.03  # of a text's width: in a PNG letters are as wide as whole pixels, in an SVG they are not
MARGIN, SPACE = 0.1, 0.06  # inches around the words, and between them
TITLE: dict[str, Any] = {"fontsize": 10, "fontweight": "bold"}
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": "#565e6c"}


@dataclass(frozen=True)
class Words:
    """The scale is the profile in words, and empty for a grid that has none."""

    title: str
    scale: str = ""
    caption: str = ""


def frame(figure: Any, words: Words, inside: float) -> tuple[float, float]:
    """Title and scale above the panels, the caption below them, and the figure so high that `inside` inches are left.

    Returns the inches above and below those.
    """
    title, scale = _fitted(figure, words.title, TITLE), _fitted(figure, words.scale, SMALL)
    caption = _fitted(figure, words.caption, SMALL)
    to_scale = MARGIN + _height(title) + SPACE
    above = to_scale + _height(scale) + SPACE
    below = _height(caption) + 2 * MARGIN if words.caption else 0.0
    width, height = figure.get_figwidth(), above + inside + below
    figure.set_figheight(height)
    for text, down in ((title, MARGIN), (scale, to_scale), (caption, above + inside + MARGIN)):
        text.set_position((MARGIN / width, 1 - down / height))
    return above, below


def _fitted(figure: Any, words: str, look: dict[str, Any]) -> Any:
    """In as many lines as the width of the figure asks for."""
    words = " ".join(words.split())
    text = figure.text(0, 0, words, ha="left", va="top", **look)
    room, letters = (1 - UNSURE) * (figure.get_figwidth() - 2 * MARGIN), len(words)
    while (width := text.get_window_extent().width / figure.dpi) > room and letters > 1:
        letters = max(1, min(letters - 1, int(1.2 * letters * room / width)))
        text.set_text(textwrap.fill(words, letters))
    return text


def _height(text: Any) -> float:
    return float(text.get_window_extent().height) / text.figure.dpi if text.get_text() else 0.0
