"""One look for all figures: colours that the colour-blind tell apart, on white and on black."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = PALETTE = (
    ("#0072b2", "#58a9e0"),
    ("#d55e00", "#f08a3c"),
    ("#009e73", "#35c79a"),
    ("#b8558a", "#e3a3c6"),
    ("#6e3b00", "#e69f00"),  # brown on white, where an orange dark enough to be read is vermilion to many
    ("#3a9bd9", "#8fcdf5"),
)
GREY, INK, SOFT = ("#8d949e", "#7d8590"), ("#1b1f27", "#e7eaf0"), ("#565e6c", "#a3acba")
LINE, FAINT = ("#dfe3e9", "#2e3540"), ("#e8ebf0", "#262c35")
LOOK: Any = {  # matplotlib's settings
    "figure.dpi": 150,
    "savefig.dpi": "figure",
    "font.size": 8,
    "text.color": INK[0],
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY[0],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT[0],
    "xtick.color": SOFT[0],
    "ytick.color": SOFT[0],
    "axes.labelcolor": SOFT[0],
    "legend.frameon": False,
    "lines.scale_dashes": False,
    "svg.hashsalt": "report",
}
