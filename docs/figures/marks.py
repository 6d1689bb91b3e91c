"""What a script writes into a page stands between two marks there, so that it can be written again."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, start: str, end: str, text: str) -> None:
    """Put a text between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
