"""The page of a report in a real browser: it opens without errors, asks nobody for anything, filters, and is quick."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_helpers import made_up_results

from experiments.report.figures import DrawnPanel, draw_panels
from experiments.report.page import page
from experiments.report.styles import styles

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium found: install the package chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: requirements-dev.txt has it")

pytestmark = pytest.mark.browser

DEADLINE = 60_000  # milliseconds; only a machine that does nothing else is quick
MAIN_THREAD_SECONDS = 2.0  # a busy machine takes twice as long as a quiet one
PHONE = {"width": 375, "height": 740}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, timeout=DEADLINE, args=["--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def panels() -> list[DrawnPanel]:
    """For the pairs and for all methods, because the third is in no pair."""
    results = made_up_results(rows=3, buffers=1, seeds=2, tasks=3)
    return draw_panels([results], styles([results]))


@pytest.fixture(scope="module")
def small(panels: list[DrawnPanel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods on two datasets with two buffers, and another table with a long title."""
    results = made_up_results(rows=3, buffers=2, seeds=2, tasks=3)
    grid = replace(results.grid, name="other", title="A long title " * 12)
    other = replace(results, expansion=replace(results.expansion, grid=grid))
    return written(page([results, other], panels), tmp_path_factory)


@pytest.fixture(scope="module")
def large(panels: list[DrawnPanel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of more than 2,000 runs, with as many figures as ten columns have."""
    return written(page([made_up_results(rows=21, buffers=5, seeds=10)], 5 * panels), tmp_path_factory)


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

    def visible(self, selector: str) -> list[str]:
        return self.page.eval_on_selector_all(
            selector, "found => found.filter((e) => e.checkVisibility()).map((e) => e.textContent)"
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
    for view in ("Pairs only", "All methods"):
        opened.page.get_by_text(view).click()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"], view
        assert len(opened.visible("svg[role=img]")) == 6
    opened.page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert opened.complaints == [] and opened.requests == [small.as_uri()]
    background, line = (
        opened.page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (("body", "backgroundColor"), (".key.k0", "borderTopColor"))
    )
    light = scheme == "light"
    assert background == ("rgb(255, 255, 255)" if light else "rgb(19, 22, 27)")
    assert line == ("rgb(0, 114, 178)" if light else "rgb(88, 169, 224)")  # figures follow the colour scheme
    opened.close()


def test_a_phone_says_which_tables_scroll(browser: Any, small: Path) -> None:
    desk = Opened(browser, small, DESK)
    assert desk.visible(".hint") == []
    desk.close()
    opened = Opened(browser, small, PHONE)
    hints = opened.visible(".hint")
    assert hints and set(hints) == {"scroll sideways for more →"}
    opened.page.locator(".scroll.wide").first.evaluate("(box) => { box.scrollLeft = box.scrollWidth; }")
    opened.page.wait_for_function(f"() => document.querySelectorAll('.wide:not(.end)').length === {len(hints) - 1}")
    assert len(opened.visible(".hint")) == len(hints) - 1
    opened.close()


def test_pairs_are_shown_first_and_all_methods_on_demand(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, DESK)
    rows = "#table-many .table:first-child tbody th"
    assert opened.visible(rows) == ["M0", "DGC-M0"] * 3  # for each metric
    assert all("M1" not in text for text in opened.visible(".panel"))
    opened.page.get_by_text("All methods").click()
    assert opened.visible(rows) == ["M0", "DGC-M0", "M1"] * 3
    assert sum("M1" in text for text in opened.visible(".panel")) == 6
    opened.close()


def test_filters_hide_and_show(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, DESK)
    opened.page.get_by_text("Filter", exact=True).click()
    heads, panels = "#table-many .table:first-child thead th", len(opened.visible(".panel"))
    everything = opened.visible(heads)
    opened.uncheck("dataset", "S-CIFAR10")
    assert len(opened.visible(".panel")) == panels / 2
    opened.uncheck("buffer", "200")
    assert opened.visible(heads)[:3] == ["Method", "S-CIFAR100", "100"]
    assert opened.page.locator('#table-many th[data-from="2"]').first.get_attribute("colspan") == "1"
    assert opened.visible(".card:first-of-type tbody th") == ["S-CIFAR100, 100"]
    opened.uncheck("buffer", "100")
    assert opened.visible(heads) == []
    assert opened.visible("#table-many .nothing") == ["The filters hide all of this table."]
    for box in ('[name="buffer"][value="100"]', '[name="buffer"][value="200"]', '[name="dataset"][value="S-CIFAR10"]'):
        opened.page.locator(f"input{box}").check()
    assert opened.visible(heads) == everything and opened.complaints == []
    opened.close()


def test_controls_can_be_reached_and_heads_have_a_scope(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, DESK)
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.textContent") == "Skip to the results"
    opened.page.locator('input[name="view"]').first.focus()
    opened.page.keyboard.press("ArrowRight")
    assert "M1" in opened.visible("#table-many tbody th")
    assert opened.page.locator("th:not([scope])").count() == 0
    assert opened.page.locator(".scroll table:not(:has(caption))").count() == 0
    opened.close()


def test_print_has_no_controls_and_cuts_nothing_off(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, {"width": 1032, "height": 700}, "dark")  # A4, landscape
    opened.page.emulate_media(media="print")
    assert opened.visible("#controls") == opened.visible(".hint") == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1032
    assert opened.page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.close()


BELOW_THEIR_NUMBERS = """() => [...document.querySelectorAll(".difference:has(.outcome)")].filter(
  (e) => e.querySelector(".outcome").getBoundingClientRect().top > e.querySelector("b").getBoundingClientRect().bottom
).length"""


@pytest.mark.parametrize(("media", "width", "buffers"), [("screen", 1400, 1), ("print", 1032, 6)])
def test_an_outcome_stands_beside_its_number(
    browser: Any, tmp_path: Path, media: str, width: int, buffers: int
) -> None:
    """Also the longest word, in a card as wide as the page and, on paper, in a table of six columns."""
    results = made_up_results(rows=2, buffers=buffers, seeds=3)
    columns = {name: flags for name, flags in results.grid.columns.items() if flags["dataset"] == "S-CIFAR10"}
    few = replace(results, expansion=replace(results.expansion, grid=replace(results.grid, columns=columns)))
    (tmp_path / "index.html").write_text(
        page([few]).replace('class="outcome">better', 'class="outcome">unjudged'), encoding="utf-8"
    )
    opened = Opened(browser, tmp_path / "index.html", {"width": width, "height": 900})
    opened.page.emulate_media(media=media)
    assert "unjudged" in opened.visible(".card .outcome") and "unjudged" in opened.visible(".metric .outcome")
    assert opened.page.evaluate(BELOW_THEIR_NUMBERS) == 0
    opened.close()


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext found: install poppler-utils")
def test_paper_keeps_together_what_belongs_together(browser: Any, panels: list[DrawnPanel], tmp_path: Path) -> None:
    """The verdict begins below its heading, though it is longer than a page; no heading stands at a page's end."""
    results = made_up_results(rows=60, buffers=1, seeds=3, tasks=2)
    grid = replace(results.grid, columns={"S-CIFAR10, 100": results.grid.columns["S-CIFAR10, 100"]})
    results = replace(results, expansion=replace(results.expansion, grid=grid))
    (tmp_path / "index.html").write_text(page([results], panels), encoding="utf-8")
    opened = Opened(browser, tmp_path / "index.html", DESK)
    opened.page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True)
    opened.close()
    subprocess.run(["pdftotext", "-layout", "page.pdf"], cwd=tmp_path, check=True)
    *sheets, _ = (tmp_path / "page.txt").read_text(encoding="utf-8").split("\f")
    ends = [sheet.split("\n\n")[-1].strip() for sheet in sheets]
    assert "DGC-M0 − M0" in sheets[0] and "DGC-M2 − M2" in sheets[0]
    assert sum("Platform" in sheet or "CPU" in sheet or "Conditions" in sheet for sheet in sheets) == 1
    assert not {"Verdict", "Table", "FAIA ↑", "FAA ↑", "FF ↓", "Figures", "S-CIFAR10", "Conditions"} & set(ends), ends


def test_two_thousand_runs_are_no_burden(browser: Any, large: Path) -> None:
    assert large.stat().st_size < 3_000_000
    opened = Opened(browser, large, DESK)
    opening = opened.busy()
    opened.page.get_by_text("All methods").click()
    showing = opened.busy() - opening
    opened.page.get_by_text("Filter", exact=True).click()
    before = opened.busy()
    opened.uncheck("buffer", "100")
    filtering = opened.busy() - before
    assert len(opened.visible("#table-many .table:first-child tbody th")) == 3 * 21
    print(f"main thread, seconds: opening {opening}, all methods {showing}, filtering {filtering}")  # pytest -s
    assert max(opening, showing, filtering) < MAIN_THREAD_SECONDS
    assert opened.complaints == []
    opened.close()
