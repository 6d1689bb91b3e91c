"use strict";
// Hides the datasets and buffers that are not chosen, and finds the tables that scroll. All else is HTML and CSS.

const boxes = [...document.querySelectorAll("#controls input[value]")];
const chosen = (node) => boxes.every((box) => box.checked || node.dataset[box.name] !== box.value);

function hideColumns(table) {
  const left = new Set();
  for (const head of table.querySelectorAll("th[data-c]")) if (chosen(head)) left.add(head.dataset.c);
  for (const cell of table.querySelectorAll("[data-c]")) cell.hidden = !left.has(cell.dataset.c);
  for (const group of table.querySelectorAll("th[data-from]")) {
    const {from, to} = group.dataset;
    const span = [...left].filter((c) => +c >= +from && +c < +to).length;
    group.hidden = !span;
    group.colSpan = span || 1;
  }
  return left.size;
}

function applyFilters() {
  for (const node of document.querySelectorAll(".card tbody tr, .panel")) node.hidden = !chosen(node);
  for (const section of document.querySelectorAll("section.result")) {
    const left = [...section.querySelectorAll(".scroll table")].map(hideColumns);
    section.querySelector(".nothing").hidden = left.some(Boolean);
    section.querySelector(".content").hidden = !left.some(Boolean);
  }
}

const showHint = (box) => {
  box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  box.classList.toggle("end", box.scrollLeft + box.clientWidth >= box.scrollWidth - 8);
};
const watcher = new ResizeObserver((entries) => entries.forEach((entry) => showHint(entry.target.closest(".scroll"))));
for (const box of document.querySelectorAll(".scroll")) {
  watcher.observe(box);
  watcher.observe(box.firstElementChild);
  box.addEventListener("scroll", () => showHint(box), {passive: true});
}
document.getElementById("controls").addEventListener("change", applyFilters);
applyFilters(); // a browser may have kept the boxes as they were
