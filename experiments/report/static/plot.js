"use strict";
// SVG from numbers: elements, scales, line charts. Text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const text = (x, y, content, attributes = {}) => shape("text", {x, y, ...attributes}, String(content));

/** Round values between two numbers, about as many as asked for. */
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
    found.push(+(k * step).toPrecision(12));
  }
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    found.push(...[1, 2, 5].map((f) => +(f * 10 ** e).toPrecision(3)));
  }
  return found.filter((value) => value >= low && value <= high);
}

const decimals = (value) => (Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(2));
const shortened = (value) => (
  Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(4)}k` : String(+value.toPrecision(4)));

/** Moves labels apart that are closer than `gap`, keeping their order and staying between two limits. */
function spread(labels, low, high, gap) {
  labels.sort((a, b) => a.y - b.y);
  let last = low - gap;
  for (const label of labels) last = label.at = Math.max(label.y, last + gap);
  last = high + gap;
  for (const label of [...labels].reverse()) last = label.at = Math.min(label.at, last - gap);
  return labels;
}

function extent(lists) {
  const values = lists.flat().filter((v) => v !== null && v !== undefined);
  return [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
}

/** A path through the points, broken where a value is missing or the series begins anew. */
function path(series, x, y) {
  let d = "", pen = false;
  series.x.forEach((at, i) => {
    const value = series.y[i];
    if (value === null || value === undefined) { pen = false; return; }
    if (series.parts && i && series.parts[i] !== series.parts[i - 1]) pen = false;
    d += `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  return d;
}

const isNumber = (value) => value !== null && value !== undefined;

/** Mean ± standard error where there is one: areas, and bars at points without a neighbour, or at all if so asked. */
function errors(series, x, y) {
  const parts = [];
  series.x.forEach((_, i) => {
    if (!series.se || !isNumber(series.y[i]) || !isNumber(series.se[i])) return;
    const last = parts.at(-1);
    if (last && last.at(-1) === i - 1 && !series.bars) last.push(i);
    else parts.push([i]);
  });
  const place = (i, sign) => [x(series.x[i]).toFixed(1), y(series.y[i] + sign * series.se[i]).toFixed(1)];
  return parts.map((part) => (part.length > 1 ? area(part, place) : bar(part[0], place)));
}

function area(part, place) {
  const upper = part.map((i) => place(i, 1).join(" ")), lower = part.map((i) => place(i, -1).join(" "));
  return shape("path", {class: "band", d: `M${upper.join("L")}L${lower.reverse().join("L")}Z`, fill: "currentColor"});
}

function bar(i, place) {
  const [at, high] = place(i, 1), [, low] = place(i, -1);
  const d = `M${at} ${high}V${low}M${at - 3} ${high}h6M${at - 3} ${low}h6`;
  return shape("path", {class: "bar", d, stroke: "currentColor"});
}

const lastIndex = (series) => series.y.findLastIndex(isNumber);

/**
 * Lines over numbers. `series`: {name, colour, dash, width, x, y, se, parts, points, bars, faint (errors are shown only
 * when the line is pointed at)}; `options`: width, height, xLabel, yLabel, marks (vertical lines), log (of x), whole (x
 * counts), direct (names at the ends of lines), zero (y from 0), level (a horizontal line).
 */
function lineChart(series, options) {
  const {width, height, compact} = options;
  const gutter = options.direct ? Math.min(width * 0.34, 26 + 6.8 * Math.max(...series.map((s) => s.name.length))) : 14;
  const box = {left: compact ? 34 : 52, right: width - gutter, top: 10, bottom: height - (compact ? 24 : 40)};
  const [xLow, xHigh] = extent(series.map((s) => s.x));
  const reach = (s, sign) => s.y.map((v, i) => (v !== null && s.se && !s.faint ? v + sign * s.se[i] : v));
  let [yLow, yHigh] = extent(series.flatMap((s) => [reach(s, -1), reach(s, 1)]));
  if (options.zero) yLow = Math.min(0, yLow);
  if (options.level !== undefined) yHigh = Math.max(yHigh, options.level);
  const margin = (yHigh - yLow || 1) * 0.06;
  if (!options.zero || yLow < 0) yLow -= margin;
  yHigh += margin;
  const scaled = options.log ? Math.log : (v) => v;
  const span = scaled(xHigh) - scaled(xLow) || 1;
  const inset = options.whole || options.log ? 12 : 0;
  const x = (v) => box.left + inset + ((scaled(v) - scaled(xLow)) / span) * (box.right - box.left - 2 * inset);
  const y = (v) => box.bottom - ((v - yLow) / (yHigh - yLow)) * (box.bottom - box.top);
  const size = {width, height, viewBox: `0 0 ${width} ${height}`};
  const picture = shape("svg", {...size, role: "img", "aria-label": options.label});
  axes(picture, box, x, y, [xLow, xHigh], [yLow, yHigh], options);
  // Broken lines on top: what is below them shows.
  const order = series.map((s, number) => [s, number]).sort((a, b) => !!a[0].dash - !!b[0].dash);
  for (const [s, number] of order) picture.append(line(s, number, x, y));
  if (options.direct) endLabels(picture, series, x, y, box);
  picture.places = series.map((s) => s.x.map((at, i) => (s.y[i] === null ? null : [x(at), y(s.y[i])])));
  return picture;
}

function axes(picture, box, x, y, [xLow, xHigh], [yLow, yHigh], options) {
  const {compact} = options;
  for (const value of ticks(yLow, yHigh, compact ? 3 : 6)) {
    picture.append(shape("line", {class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value)}));
    picture.append(text(box.left - 7, y(value) + 4, shortened(value), {class: "tick", "text-anchor": "end"}));
  }
  for (const value of options.marks || []) {
    const upright = {x1: x(value), x2: x(value), y1: box.top, y2: box.bottom};
    picture.append(shape("line", {class: "grid", "stroke-dasharray": "2 3", ...upright}));
  }
  if (options.level !== undefined) {
    const level = y(options.level);
    picture.append(shape("line", {class: "level", x1: box.left, x2: box.right, y1: level, y2: level}));
  }
  picture.append(shape("line", {class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}));
  const room = Math.max(2, Math.floor((box.right - box.left) / (options.whole ? 36 : compact ? 55 : 75)));
  const wanted = options.whole ? Math.min(room, xHigh - xLow) : room;
  let places = options.log ? logTicks(xLow, xHigh) : ticks(xLow, xHigh, wanted);
  if (options.log && places.length > room) places = places.filter((v) => /^1(e|0|$)|^0\.0*1$/.test(String(v)));
  if (options.log && places.length < 2) places = [xLow, xHigh];
  if (options.whole) places = places.filter(Number.isInteger);
  for (const value of places) {
    picture.append(text(x(value), box.bottom + 16, shortened(value), {class: "tick", "text-anchor": "middle"}));
  }
  if (compact) return;
  const middle = (box.top + box.bottom) / 2, name = {class: "name", "text-anchor": "middle"};
  picture.append(text((box.left + box.right) / 2, box.bottom + 34, options.xLabel, name));
  picture.append(text(13, middle, options.yLabel, {...name, transform: `rotate(-90 13 ${middle})`}));
}

function line(s, number, x, y) {
  const group = shape("g", {class: "series", "data-series": number, style: `color:${s.colour}`});
  group.append(shape("g", {class: s.faint ? "errors faint" : "errors"}, ...errors(s, x, y)));
  const dash = s.dash ? s.dash.join(" ") : null;
  const stroke = {stroke: "currentColor", "stroke-width": s.width, "stroke-dasharray": dash};
  group.append(shape("path", {class: "line", d: path(s, x, y), ...stroke}));
  if (s.points) {
    s.x.forEach((at, i) => {
      if (s.y[i] !== null) group.append(shape("circle", {cx: x(at), cy: y(s.y[i]), r: 2.6, fill: "currentColor"}));
    });
  }
  return group;
}

function endLabels(picture, series, x, y, box) {
  const labels = series.map((s, number) => ({s, number, i: lastIndex(s)})).filter((label) => label.i >= 0);
  for (const label of labels) label.y = y(label.s.y[label.i]);
  for (const label of spread(labels, box.top + 4, box.bottom, 14)) {
    const group = shape("g", {class: "label", "data-series": label.number});
    const from = x(label.s.x[label.i]) + 4;
    group.append(shape("path", {class: "leader", fill: "none", d: `M${from} ${label.y}L${box.right + 4} ${label.at}`}));
    const key = {x1: box.right + 4, x2: box.right + 18, y1: label.at, y2: label.at, stroke: label.s.colour};
    const dash = label.s.dash ? label.s.dash.join(" ") : null;
    group.append(shape("line", {...key, "stroke-width": 2.5, "stroke-dasharray": dash}));
    group.append(text(box.right + 22, label.at + 4, label.s.name));
    picture.append(group);
  }
}
