"""Sentences with a gap for the name of a class, where dataset files written for Mammoth look for them.

Only networks that read text use them, of which there are none here.
"""

from __future__ import annotations

from collections import defaultdict

# By dataset; the same for all.
templates: dict[str, list[str]] = defaultdict(lambda: ["a photo of a {}."])
