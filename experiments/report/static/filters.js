"use strict";
// Which datasets, buffers and methods are shown: cells are hidden where they are, so nothing is built anew.

const chosen = {dataset: null, buffer: null, method: null};

function readFilters() {
  const form = document.getElementById("filters");
  for (const kind of Object.keys(chosen)) {
    const boxes = [...form.querySelectorAll(`input[name="${kind}"]`)];
    chosen[kind] = boxes.length ? new Set(boxes.filter((b) => b.checked).map((b) => b.value)) : null;
  }
}

const passes = (kind, value) => chosen[kind] === null || value === null || chosen[kind].has(String(value));

/** What is shown of a table: the numbers of its columns, and its methods. */
function visible(table) {
  const columns = new Set(), methods = new Set();
  table.columns.forEach((c, i) => { if (passes("dataset", c.dataset) && passes("buffer", c.buffer)) columns.add(i); });
  for (const method of table.rows) if (passes("method", method)) methods.add(method);
  return {columns, methods};
}

function applyTo(section, table) {
  const {columns, methods} = visible(table);
  const nothing = !columns.size || !methods.size;
  section.querySelector(".nothing").hidden = !nothing;
  section.querySelector(".content").hidden = nothing;
  if (nothing) return;
  for (const row of section.querySelectorAll("tr[data-m]")) row.hidden = !methods.has(+row.dataset.m);
  for (const cell of section.querySelectorAll("[data-c]")) cell.hidden = !columns.has(+cell.dataset.c);
  for (const group of section.querySelectorAll("th[data-from]")) {
    let span = 0;
    for (let c = +group.dataset.from; c < +group.dataset.to; c++) span += columns.has(c);
    group.hidden = !span;
    if (span) group.colSpan = span;
  }
}

function applyFilters(sections) {
  readFilters();
  for (const {section, table} of sections) applyTo(section, table);
  const words = Object.entries({dataset: "datasets", buffer: "buffers", method: "methods"}).map(([kind, name]) => {
    const all = document.querySelectorAll(`#filters input[name="${kind}"]`).length;
    return all ? `${chosen[kind].size} of ${all} ${name}` : null;
  });
  document.getElementById("status").textContent = `Shown: ${words.filter(Boolean).join(", ")}.`;
}

/** The buttons above the methods. */
function choose(which) {
  for (const box of document.querySelectorAll('#filters input[name="method"]')) {
    box.checked = which === "all" || (which === "pair" && DATA.methods[+box.value].pair);
  }
}
