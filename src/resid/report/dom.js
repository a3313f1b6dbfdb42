// Elements and numbers. Content becomes text nodes and never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "class") node.setAttribute("class", value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const data = (text) => el("bdi", {}, text); // text of the user's own, whose direction does not change its surroundings

const count = (value) => value.toLocaleString("en");
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;
const METRICS = { "recall@5": "R@5", "recall@10": "R@10", "ndcg@5": "N@5", "ndcg@10": "N@10" };
const RANKINGS = { kept: "seen items kept", dropped: "seen items dropped" };

function section(id, title, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, ...children);
}

// rows of cells; a number or a string that is a number stands on the right
function table(caption, header, rows, { hidden = false, rowHeaders = true } = {}) {
  const align = (column) => (rows.some((row) => /^[a-z(]/i.test(plain(row[column]))) ? null : "number");
  const aligned = header.map((_, column) => (column ? align(column) : null));
  const head = header.map((name, column) => el("th", { scope: "col", class: aligned[column] }, name));
  const body = rows.map((row) =>
    el("tr", {}, row.map((cell, column) =>
      column || !rowHeaders ? el("td", { class: aligned[column] }, cell) : el("th", { scope: "row" }, cell))));
  const title = el("caption", { class: hidden ? "unseen" : null }, caption);
  const whole = el("table", {}, title, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, whole);
}

const plain = (cell) => (cell instanceof Node ? cell.textContent : Array.isArray(cell) ? plain(cell[0]) : String(cell ?? ""));

function alternative(caption, header, rows) {
  return el("details", { class: "alternative" }, el("summary", {}, "Show as table"), table(caption, header, rows, { hidden: true }));
}

function choice(label, options, chosen, changed) {
  const select = el("select", { on: { change: () => changed(select.value) } },
    Object.entries(options).map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", { class: "choice" }, label, " ", select);
}

// A tooltip for all charts. It repeats what labels and tables say, so it is hidden from screen readers.
const tip = el("div", { id: "tip", hidden: true, "aria-hidden": "true" });

function showTip(x, y, ...children) {
  tip.replaceChildren(...children.flat());
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement;
  tip.style.left = `${Math.max(8, Math.min(x + 14, room.clientWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > room.clientHeight ? Math.max(8, y - height - 12) : y + 18}px`;
}

const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

// Calls draw(width) now and whenever the width of the node changes.
function whenSized(node, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(node.clientWidth);
    if (width && width !== last) draw((last = width));
  }).observe(node);
}
