"use strict";
// The kinds of figures. Each says whether a table has it, what it chooses between, and what is drawn of a choice:
// {node, series}, series being what can be pointed at.

const ESTIMATES = {
  batch: {name: "one replay batch", colour: "var(--soft)", dash: [1, 3], width: 1.3},
  buffer: {name: "whole buffer", colour: "var(--ink)", dash: [6, 3], width: 1.5},
  calibrated: {name: "calibrated", colour: "var(--accent)", dash: null, width: 2.2},
};

const cellsOf = (table) => table.cells.flat().filter((c) => c !== null).map((c) => DATA.cells[c]);

/** The methods of a column that are shown and have something, with their cells. */
function shownCells(view, has) {
  const found = [];
  view.table.rows.forEach((method, row) => {
    const number = view.table.cells[row][view.column];
    const cell = number === null ? null : DATA.cells[number];
    if (view.methods.has(method) && cell && has(cell)) found.push({method, cell, ...DATA.methods[method]});
  });
  return found;
}

const look = (m) => ({name: m.name, colour: `var(--m${m.method})`, dash: m.dash, width: m.width});

function overTasks(view) {
  const series = shownCells(view, (c) => c.aa).filter((m) => m.cell.aa.some((v) => v !== null)).map((m) => ({
    ...look(m), x: m.cell.aa.map((_, i) => i + 1), y: m.cell.aa, se: m.cell.se, faint: !m.pair, points: true,
  }));
  return lines(view, series, {xLabel: "task t", yLabel: "AA_t in %", whole: true});
}

function overSteps(view) {
  const found = shownCells(view, (c) => c.loss);
  const series = found.map((m) => ({...look(m), x: m.cell.steps, y: m.cell.loss, width: Math.min(1.8, m.width)}));
  const marks = found.map((m) => m.cell.starts || []).reduce((a, b) => (b.length > a.length ? b : a), []);
  const options = {xLabel: "training step (dotted: a new task)", yLabel: "training loss", marks, zero: true};
  return lines(view, series, options);
}

function overMemory(view) {
  const {table} = view;
  const numbers = table.columns.map((c, i) => (c.dataset === view.dataset && view.columns.has(i) ? i : null));
  const chosen = numbers.filter((i) => i !== null);
  const series = [], flat = [];
  table.rows.forEach((method, row) => {
    if (!view.methods.has(method)) return;
    const cells = chosen.map((i) => table.cells[row][i]).filter((c) => c !== null).map((c) => DATA.cells[c]);
    const points = cells.filter((c) => c.faia && c.memory).sort((a, b) => a.memory - b.memory);
    const made = {...look({method, ...DATA.methods[method]}), points: true};
    if (points.length) {
      const x = points.map((c) => c.memory / 1e6), y = points.map((c) => c.faia[0]);
      series.push({...made, x, y, se: points.map((c) => c.faia[1]), bars: true});
    } else {
      const without = cells.find((c) => c.faia && c.memory === 0);
      if (without) flat.push({...made, points: false, faia: without.faia});
    }
  });
  const [low, high] = extent(series.map((s) => s.x));
  if (series.length) {
    for (const s of flat) {
      const [value, error] = s.faia;
      series.push({...s, x: [low, high], y: [value, value], se: [error, error]});
    }
  }
  return lines(view, series, {xLabel: "memory in MB", yLabel: "FAIA in %", log: true});
}

function lines(view, series, options) {
  if (!series.length) return null;
  const direct = view.width > 640;
  const height = Math.max(320, direct ? Math.min(520, 60 + 15 * series.length) : 300);
  const label = `${options.yLabel} over ${options.xLabel}. ` + summary(series);
  const node = element("div", {}, lineChart(series, {...options, width: view.width, height, direct, label}));
  if (!direct) node.append(keys(series));
  return {node, series};
}

/** For who does not see the lines: where each of them ends, from the highest down. */
function summary(series) {
  const ends = series.map((s) => [s.name, s.y[lastIndex(s)]]).filter(([, value]) => value !== undefined);
  ends.sort((a, b) => b[1] - a[1]);
  return "At the end: " + ends.map(([name, value]) => `${name} ${decimals(value)}`).join("; ") + ".";
}

function keys(series) {
  const list = element("ul", {class: "keys"});
  for (const s of series) {
    const stroke = {stroke: s.colour, "stroke-width": 2.5, "stroke-dasharray": s.dash ? s.dash.join(" ") : null};
    const sample = shape("line", {x1: 0, x2: 22, y1: 5, y2: 5, ...stroke});
    list.append(element("li", {}, shape("svg", {width: 22, height: 10, "aria-hidden": "true"}, sample), s.name));
  }
  return list;
}

function colourOf(percent) {
  const place = (Math.min(100, Math.max(0, percent)) / 100) * (DATA.colours.length - 1);
  const k = Math.min(DATA.colours.length - 2, Math.floor(place));
  const mixed = DATA.colours[k].map((v, i) => Math.round(v + (place - k) * (DATA.colours[k + 1][i] - v)));
  return `rgb(${mixed.join(",")})`;
}

function matrices(view) {
  const found = shownCells(view, (c) => c.matrix);
  if (!found.length) return null;
  const panels = element("div", {class: "panels"});
  for (const m of found) panels.append(element("div", {class: "panel"}, element("h4", {}, m.name), heatmap(m)));
  return {node: element("div", {}, scaleOfColours(), panels)};
}

function heatmap(m) {
  const {matrix} = m.cell, tasks = matrix.length, size = 200, side = size / tasks;
  const last = matrix[tasks - 1].map((v, j) => `task ${j + 1} ${number(v)}`).join(", ");
  const label = `${m.name}, after the last task: ${last}.`;
  const picture = shape("svg", {viewBox: `-16 -4 ${size + 20} ${size + 22}`, role: "img", "aria-label": label});
  matrix.forEach((row, i) => row.forEach((value, j) => {
    if (value === null) return;
    const tile = {x: j * side, y: i * side, width: side - 1, height: side - 1, rx: 1.5, fill: colourOf(value)};
    const words = `after task ${i + 1}, on task ${j + 1}: ${number(value)} %`;
    picture.append(shape("rect", tile, shape("title", {}, words)));
    if (tasks <= 6) {
      const place = {"text-anchor": "middle", style: `fill:${value > 60 ? "#000" : "#fff"};font-size:10px`};
      picture.append(text((j + 0.5) * side, (i + 0.5) * side + 3.5, Math.round(value), place));
    }
  }));
  for (let k = 0; k < tasks; k += tasks > 10 ? 5 : 1) {
    const middle = (k + 0.5) * side, tick = {class: "tick", style: "font-size:9px"};
    picture.append(text(middle, size + 12, k + 1, {...tick, "text-anchor": "middle"}));
    picture.append(text(-5, middle + 3, k + 1, {...tick, "text-anchor": "end"}));
  }
  return picture;
}

function scaleOfColours() {
  const stops = Array.from({length: 11}, (_, k) => colourOf(10 * k)).join(",");
  const ramp = element("i", {style: `background:linear-gradient(90deg,${stops})`});
  return element("p", {class: "colours"}, "0 %", ramp, "100 %");
}

const gradients = (kind) => (view) => {
  const found = shownCells(view, (c) => c.gradients);
  const wide = view.width > 640, panels = element("div", {class: "panels", style: "--panel-width:280px"});
  const columns = wide ? Math.max(1, Math.floor((view.width + 14) / 294)) : 1;
  const width = Math.floor((view.width - 14 * (columns - 1)) / columns);
  for (const m of found) {
    const values = m.cell.gradients;
    const known = Object.entries(ESTIMATES).filter(([name]) => values[`${name}_${kind}`]);
    const series = known.map(([name, style]) => (
      {...style, x: values.at, y: values[`${name}_${kind}`], parts: values.task}));
    if (!series.length) continue;
    const label = `${m.name}. ${summary(series)}`;
    const options = {width, height: 190, compact: true, marks: m.cell.starts, label};
    const chart = lineChart(series, kind === "error" ? {...options, zero: true, level: 1} : options);
    panels.append(element("div", {class: "panel"}, element("h4", {}, m.name), chart));
  }
  if (!panels.children.length) return null;
  return {node: element("div", {}, panels, keys(Object.values(ESTIMATES)))};
};

const number = (value) => (isNumber(value) ? decimals(value) : "–");

const measured = (kind) => (table) => cellsOf(table).some((c) => (
  c.gradients && Object.keys(ESTIMATES).some((name) => c.gradients[`${name}_${kind}`])));

/** A dataset with several buffers, of which something was stored. */
function hasMemory(table) {
  const {columns} = table;
  const several = columns.some((c) => columns.some((d) => d.dataset === c.dataset && d.buffer !== c.buffer));
  return several && cellsOf(table).some((c) => c.memory && c.faia);
}

// A table that is named after a kind shows it first.
const KINDS = {
  accuracy: {
    title: "Accuracy over tasks", has: (t) => cellsOf(t).some((c) => c.aa), draw: overTasks,
    caption: "AA_t, the mean Class-IL accuracy on the tasks seen, after each task t: mean over seeds, shaded ± one "
      + "standard error. In colour: pairs, the base broken and what is compared with it solid. A line that is pointed at "
      + "says its numbers.",
  },
  matrices: {
    title: "Accuracy matrices", has: (t) => cellsOf(t).some((c) => c.matrix), draw: matrices,
    caption: "a[i,j], the Class-IL accuracy on task j (column) after task i (row): mean over seeds.",
  },
  loss: {
    title: "Training loss", has: (t) => cellsOf(t).some((c) => c.loss), draw: overSteps,
    caption: "The loss that a method minimises, replay included, in means over equal parts of each task and over "
      + "seeds. Losses of different methods have different terms.",
  },
  memory: {
    title: "FAIA against memory", has: hasMemory, draw: overMemory, byDataset: true,
    caption: "Mean ± one standard error over seeds. Memory is the network at the end of a run, at 4 bytes a parameter, and all that a "
      + "method keeps beside it: images, labels, logits, vectors of calibration, copies of the network. A horizontal "
      + "line keeps nothing.",
  },
  gradients: {
    title: "Gradient error", has: measured("error"), draw: gradients("error"),
    caption: "‖estimate − true‖ / ‖true‖, where true is the gradient over all past data: mean over seeds, over "
      + "training steps. At 1 an estimate is as far off as none at all.",
  },
  cosine: {
    title: "Gradient cosine", has: measured("cosine"), draw: gradients("cosine"),
    caption: "Cosine between an estimate and the gradient over all past data: mean over seeds, over training steps.",
  },
};
