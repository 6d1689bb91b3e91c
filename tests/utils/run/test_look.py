"""The colours of all figures, as those see them who lack one of the three kinds of cones."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from utils.run.look import PALETTE

# Machado et al. (2009), severity 1, for linear RGB.
SEEN = {
    "by most": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
WHITE, XYZ = (0.9505, 1, 1.089), [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
APART = 10  # in CIE Lab, where 2.3 is just noticeable


def lab(colour: str, seen: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("background", [0, 1], ids=["on white", "on black"])
def test_any_two_colours_can_be_told_apart(background: int, seen: str) -> None:
    pairs = combinations([colour[background] for colour in PALETTE], 2)
    near = [(a, b) for a, b in pairs if np.linalg.norm(lab(a, seen) - lab(b, seen)) < APART]
    assert not near, near
