"use strict";
// Brings the page to life: figures are drawn when they come into view, and again when the filters or the width change.

const DATA = JSON.parse(document.getElementById("data").textContent);

class Chart {
  constructor(figure, table) {
    Object.assign(this, {figure, table, near: false, stale: true, column: 0, dataset: null});
    this.kinds = Object.entries(KINDS).filter(([, kind]) => kind.has(table));
    if (!this.kinds.length) return;
    this.kind = (this.kinds.find(([name]) => name === table.id) ?? this.kinds[0])[0];
    this.build();
  }

  build() {
    const label = `Figures of ${this.table.heading}`;
    const controls = element("div", {class: "controls", role: "group", "aria-label": label});
    this.buttons = this.kinds.map(([name, kind]) => {
      const state = {"data-kind": name, "aria-pressed": name === this.kind};
      const button = element("button", {type: "button", ...state}, kind.title);
      button.addEventListener("click", () => { this.kind = name; this.redraw(); });
      return button;
    });
    this.select = element("select", {"aria-label": "Column of the table"});
    this.select.addEventListener("change", () => { this.pick(this.select.value); this.redraw(); });
    controls.append(...this.buttons, element("span", {class: "gapfill"}), this.select);
    this.plot = element("div", {class: "plot", tabindex: "-1"});
    this.caption = element("figcaption");
    this.figure.append(controls, this.plot, this.caption);
    this.fillSelect(this.options(visible(this.table).columns));
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
  }

  pick(value) {
    if (KINDS[this.kind].byDataset) this.dataset = value;
    else this.column = +value;
  }

  /** The columns, or datasets, that the filters leave to choose from. */
  options(columns) {
    const left = this.table.columns.map((c, i) => ({...c, i})).filter((c) => columns.has(c.i));
    if (!KINDS[this.kind].byDataset) return left.map((c) => [String(c.i), c.name]);
    return [...new Set(left.map((c) => c.dataset))].map((name) => [name, name ?? "all"]);
  }

  redraw() {
    this.stale = true;
    if (this.near) this.draw();
  }

  draw() {
    if (!this.kinds.length || !this.stale || !this.figure.clientWidth) return;
    this.stale = false;
    const {columns, methods} = visible(this.table);
    this.fillSelect(this.options(columns));
    const width = Math.max(240, this.plot.clientWidth - 22);
    const {table, column, dataset} = this;
    this.drawn = KINDS[this.kind].draw({table, column, dataset, columns, methods, width});
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.kind === this.kind);
    const nothing = element("p", {class: "empty"}, "None of the methods shown has it in this column.");
    this.plot.replaceChildren(this.drawn ? this.drawn.node : nothing);
    this.caption.textContent = KINDS[this.kind].caption;
  }

  fillSelect(options) {
    const current = KINDS[this.kind].byDataset ? this.dataset : String(this.column);
    const kept = options.find(([value]) => value === current) ?? options[0];
    if (kept) this.pick(kept[0]);
    this.select.replaceChildren(...options.map(([value, name]) => {
      const option = element("option", {value}, name);
      option.selected = value === kept[0];
      return option;
    }));
    this.select.hidden = options.length < 2;
  }

  /** The line next to the pointer stands out, and says what it is. */
  point(event) {
    const picture = this.plot.querySelector("svg");
    if (!this.drawn?.series || !picture?.places) return;
    const place = picture.getBoundingClientRect(), px = event.clientX - place.left, py = event.clientY - place.top;
    let best = null;
    picture.places.forEach((points, s) => points.forEach((p, i) => {
      const distance = p ? Math.hypot(p[0] - px, p[1] - py) : Infinity;
      if (!best || distance < best.distance) best = {distance, s, i, p};
    }));
    const label = event.target.closest?.(".label");
    if (label) {
      const s = +label.dataset.series, i = lastIndex(this.drawn.series[s]);
      best = {s, i, p: picture.places[s][i]};
    } else if (!best || best.distance > 40) {
      this.leave();
      return;
    }
    this.emphasise(picture, best);
  }

  emphasise(picture, {s, i, p}) {
    const series = this.drawn.series[s];
    for (const group of picture.querySelectorAll("[data-series]")) {
      const other = +group.dataset.series !== s;
      group.classList.toggle("faded", other);
      group.querySelector(".faint")?.classList.toggle("lit", !other);
    }
    this.tip ??= element("div", {class: "tip"});
    const error = series.se && series.se[i] !== null ? ` ± ${decimals(series.se[i])}` : "";
    this.tip.textContent = `${series.name}: ${decimals(series.y[i])}${error} at ${shortened(series.x[i])}`;
    this.plot.append(this.tip);
    const room = this.plot.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(4, Math.min(room, p[0] + 18))}px`;
    this.tip.style.top = `${Math.max(2, p[1] - 22)}px`;
  }

  leave() {
    this.tip?.remove();
    this.plot.querySelectorAll(".faded, .lit").forEach((g) => g.classList.remove("faded", "lit"));
  }
}

function start() {
  const sections = [...document.querySelectorAll("section.result")].map((section) => (
    {section, table: DATA.tables[+section.dataset.table]}));
  readFilters();  // which a browser may have kept from before
  const charts = sections.map(({section, table}) => new Chart(section.querySelector(".chart"), table));
  const chartOf = new Map(charts.map((chart) => [chart.figure, chart]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = chartOf.get(entry.target);
      chart.near = entry.isIntersecting;
      if (chart.near) chart.draw();
    }
  }, {rootMargin: "300px"});
  for (const chart of charts) if (chart.kinds.length) watcher.observe(chart.figure);

  const refilter = () => { applyFilters(sections); charts.forEach((chart) => chart.kinds.length && chart.redraw()); };
  const form = document.getElementById("filters");
  form.addEventListener("change", refilter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("click", (event) => {
    if (event.target.dataset.choose) { choose(event.target.dataset.choose); refilter(); }
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar comes and goes
    width = innerWidth;
    requestAnimationFrame(() => charts.forEach((chart) => chart.kinds.length && chart.redraw()));
  });
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw()));
  if (matchMedia("(max-width: 900px)").matches) document.querySelector(".side").open = false;
}

start();
