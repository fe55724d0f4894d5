"use strict";
const nodes = JSON.parse(document.getElementById("nodes").textContent);
const aside = document.getElementById("detail"), body = document.getElementById("body");
function add(parent, tag, text, cls) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  parent.appendChild(e);
  return e;
}
function table(title, rows) {
  if (!rows.length) return;
  add(body, "h3", title);
  const t = add(add(body, "table"), "tbody");
  for (const row of rows) {
    const tr = add(t, "tr");
    row.forEach((cell, i) => add(tr, "td", cell, i === row.length - 1 && row.length > 1 ? "n" : ""));
  }
}
function show(slot) {
  const n = nodes[slot];
  if (!n) return;
  body.replaceChildren();
  add(body, "h2", n.name, "mono");
  table("", n.facts);
  table("What it costs where it is", n.cost);
  table("Collectives for it", n.collectives);
  if (n.alternatives.length) {
    add(body, "h3", "Other placements, and what each adds when nothing else changes");
    for (const a of n.alternatives) {
      const p = add(body, "p");
      add(p, "span", a.placement, "mono");
      add(p, "b", "  " + a.adds);
      for (const b of a.because) add(body, "div", b, "dim");
    }
  }
  aside.hidden = false;
}
function light(node) {
  document.querySelectorAll(".on").forEach(e => e.classList.remove("on"));
  node.classList.add("on");
  const key = node.dataset.key;
  for (const e of node.closest("svg").querySelectorAll(".edge"))
    if (e.dataset.from === key || e.dataset.to === key) e.classList.add("on");
}
for (const node of document.querySelectorAll(".node[data-slot]")) {
  node.addEventListener("click", () => { light(node); show(node.dataset.slot); });
  node.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); light(node); show(node.dataset.slot); } });
}
for (const row of document.querySelectorAll("tr[data-slot]"))
  row.addEventListener("click", () => show(row.dataset.slot));
document.getElementById("close").addEventListener("click", () => { aside.hidden = true; });
document.addEventListener("keydown", e => { if (e.key === "Escape") aside.hidden = true; });
for (const box of document.querySelectorAll("input[data-filter]"))
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const tr of document.querySelectorAll(`#${box.dataset.filter} tbody tr`)) {
      const text = tr.textContent.toLowerCase();
      tr.hidden = !words.every(w => text.includes(w));
    }
  });
