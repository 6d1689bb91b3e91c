"""The page of a report in a real browser: it opens without errors, asks nobody for anything, filters, and is quick."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_helpers import made_up_results

from experiments.report.page import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium found: install the package chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: requirements-dev.txt has it")

pytestmark = pytest.mark.browser

DEADLINE = 60_000  # milliseconds; only a machine that does nothing else is quick
MAIN_THREAD_SECONDS = 1.0
PHONE = {"width": 375, "height": 740}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, timeout=DEADLINE, args=["--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods on two datasets with two buffers, and a table whose gradients were measured."""
    results = made_up_results(rows=4, buffers=2, seeds=2, tasks=3)
    measured = {"at": [4, 8], "task": [2, 2], "buffer_error": [0.5, 0.6], "calibrated_error": [0.2, None]}
    measured |= {"buffer_cosine": [0.9, 0.8]}
    records = {place: record | {"diagnostics": measured} for place, record in results.records.items()}
    grid = replace(results.grid, name="gradients", title="A long title " * 12)
    other = replace(results, records=records, expansion=replace(results.expansion, grid=grid))
    return written(page([results, other]), tmp_path_factory)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 2,000 runs."""
    return written(page([made_up_results(rows=20, buffers=5, seeds=10)]), tmp_path_factory)


def written(text: str, factory: pytest.TempPathFactory) -> Path:
    path = factory.mktemp("report") / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


class Opened:
    """A page with all that it complained about and asked for."""

    def __init__(self, browser: Any, path: Path, size: dict[str, int], scheme: str = "light"):
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.context.set_default_timeout(DEADLINE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.session = self.context.new_cdp_session(self.page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})  # not the time that others take
        self.page.goto(path.as_uri())

    def busy(self) -> float:
        """Seconds that the main thread has worked so far."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        metrics = {m["name"]: m["value"] for m in self.session.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    def shown(self, selector: str) -> list[str]:
        return self.page.eval_on_selector_all(
            selector, "found => found.filter((e) => e.offsetParent !== null).map((e) => e.textContent)"
        )

    def uncheck(self, name: str, value: str) -> None:
        self.page.locator(f'input[name="{name}"][value="{value}"]').uncheck()

    def close(self) -> None:
        self.context.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_it_opens_quietly_and_fits(
    browser: Any, small: Path, size: dict[str, int], scheme: str, tmp_path: Path
) -> None:
    opened = Opened(browser, small, size, scheme)
    for kind in ("accuracy", "matrices", "loss", "memory", "gradients", "cosine"):
        button = opened.page.locator(f'#gradients button[data-kind="{kind}"]')
        button.click()
        drawn = opened.page.locator("#gradients .plot svg[role=img]").first
        assert len(drawn.get_attribute("aria-label")) > 20 and button.get_attribute("aria-pressed") == "true"
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"], kind
    opened.page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert opened.complaints == [] and opened.requests == [small.as_uri()]
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    opened.close()


def test_errors_are_drawn_for_pairs_and_shown_for_the_line_pointed_at(browser: Any, tmp_path: Path) -> None:
    results = made_up_results(rows=3, buffers=2, seeds=2, tasks=3)  # the third is in no pair
    (tmp_path / "index.html").write_text(page([results]), encoding="utf-8")
    opened = Opened(browser, tmp_path / "index.html", DESK)
    plot = opened.page.locator("#many .plot")
    opened.page.locator("#many .chart").scroll_into_view_if_needed()
    plot.locator(".series").first.wait_for()
    displays = "found => found.map((e) => getComputedStyle(e).display !== 'none')"
    assert sorted(plot.locator(".errors").evaluate_all(displays)) == [False, True, True]
    plot.locator(".label", has_text="M1").hover()
    assert all(plot.locator(".errors").evaluate_all(displays))
    assert " ± " in plot.locator(".tip").text_content()
    opened.page.locator('#many button[data-kind="memory"]').click()
    assert plot.locator(".bar").count() == 2 * 3 and opened.complaints == []
    opened.close()


def test_filters_hide_and_show(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, DESK)
    rows = "#many tbody tr[data-m] th"
    everything = opened.shown(rows)
    assert everything[:4] == ["M0", "DGC-M0", "M1", "DGC-M1"]
    lines = opened.page.locator("#many .plot .series")
    opened.page.locator("#many .chart").scroll_into_view_if_needed()
    lines.first.wait_for()
    assert lines.count() == 4
    opened.uncheck("method", "0")
    assert "M0" not in opened.shown(rows) and "DGC-M0" in opened.shown(rows) and lines.count() == 3
    opened.uncheck("dataset", "S-CIFAR10")
    opened.uncheck("buffer", "200")
    assert opened.shown("#many .scroll:first-of-type thead th")[:3] == ["Method", "S-CIFAR100", "100"]
    assert opened.page.locator('#many th[data-from="2"]').first.get_attribute("colspan") == "1"
    assert opened.page.locator("#status").text_content() == "Shown: 1 of 2 datasets, 1 of 2 buffers, 3 of 4 methods."
    opened.uncheck("buffer", "100")
    assert opened.shown(rows) == [] and opened.shown("#many .nothing") == ["The filters leave nothing of this table."]
    opened.page.locator('input[name="buffer"][value="100"]').check()
    opened.page.locator('button[data-choose="all"]').click()
    assert opened.shown(rows) == everything and opened.complaints == []
    opened.close()


def test_controls_can_be_reached_and_heads_have_a_scope(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, DESK)
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.textContent") == "Skip to the results"
    opened.page.locator('input[name="method"]').first.focus()
    opened.page.keyboard.press("Space")
    assert "M0" not in opened.shown("#many tbody tr[data-m] th")
    assert opened.page.locator("th:not([scope])").count() == 0
    assert opened.page.locator("table:not(.facts):not(:has(caption))").count() == 0
    opened.close()


def test_two_thousand_runs_are_no_burden(browser: Any, large: Path) -> None:
    assert large.stat().st_size < 3_000_000
    opened = Opened(browser, large, DESK)
    after_opening = opened.busy()
    opened.page.locator("#many .chart").scroll_into_view_if_needed()
    opened.page.locator("#many .plot .series").first.wait_for()
    after_drawing = opened.busy()
    opened.uncheck("method", "3")
    after_method = opened.busy()
    opened.uncheck("buffer", "100")
    after_buffer = opened.busy()
    assert len(opened.shown("#many tbody tr[data-m] th")) == 3 * (19 + 9)
    assert opened.page.locator("#many .plot .series").count() == 19
    seconds = {
        "opening": after_opening,
        "drawing": after_drawing - after_opening,
        "filtering by method": after_method - after_drawing,
        "filtering by buffer": after_buffer - after_method,
    }
    print(f"main thread, seconds: {seconds}")  # shown by pytest -s
    assert max(seconds.values()) < MAIN_THREAD_SECONDS, seconds
    assert opened.complaints == []
    opened.close()
