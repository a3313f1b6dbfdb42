// The tree of IDs as a treemap: a box per prefix, its continuations inside; a click or the Enter key zooms in.

// Squarified layout: boxes [{x, y, w, h}] whose areas are proportional to the sizes, in their order of size.
function squarify(sizes, x, y, w, h) {
  const order = sizes.map((_, index) => index).sort((a, b) => sizes[b] - sizes[a] || a - b);
  const boxes = new Array(sizes.length);
  let left = sizes.reduce((sum, size) => sum + size, 0);
  for (let start = 0; start < order.length; ) {
    const scale = (w * h) / left;
    const side = Math.min(w, h);
    const worst = (row, sum) => Math.max((side * side * sizes[row[0]] * scale) / (sum * scale) ** 2, (sum * scale) ** 2 / (side * side * sizes[row.at(-1)] * scale));
    let row = [order[start]];
    let sum = sizes[order[start]];
    while (start + row.length < order.length) {
      const next = order[start + row.length];
      if (worst([...row, next], sum + sizes[next]) > worst(row, sum)) break;
      row.push(next);
      sum += sizes[next];
    }
    const depth = side ? (sum * scale) / side : 0;
    let along = 0;
    for (const index of row) {
      const length = sum ? (side * sizes[index]) / sum : 0;
      boxes[index] = w >= h ? { x, y: y + along, w: depth, h: length } : { x: x + along, y, w: length, h: depth };
      along += length;
    }
    if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
    start += row.length;
    left -= sum;
  }
  return boxes;
}

const LIVE = COLORS - 1; // colors of values; further values are gray

function idTree(tree, items, name) {
  const { nodes, fields } = tree;
  const children = nodes.parent.map(() => []);
  nodes.parent.forEach((parent, node) => { if (parent >= 0) children[parent].push(node); });
  let [current, field] = [0, 0];
  const path = (node) => (node ? [...path(nodes.parent[node]), node] : [0]);
  const prefix = (node) => path(node).slice(1).map((one) => nodes.code[one]).join("-");
  const called = (node) => (node ? (nodes.depth[node] === tree.levels ? `ID ${prefix(node)}` : `Prefix ${prefix(node)}`) : "All items");
  const value = (node, column = field) => {
    const place = fields[column].majority[node];
    return place < 0 ? "missing" : fields[column].values[place];
  };
  // The values of a level of a path contain the levels above it; a box has room for the last one.
  const short = (node) => (fields[field].path ? value(node).split(" > ").at(-1) : value(node));
  const share = (node, column = field) => fields[column].share[node];
  const canOpen = (node) => children[node].length > 0;

  const crumbs = el("nav", { class: "crumbs", "aria-label": `Prefix in the tree of ${name}` });
  const map = el("div", { class: "treemap", role: "group" });
  const key = el("ul", { class: "legend" });
  const about = el("div", { class: "about", "aria-live": "polite" });
  const rows = el("div");

  // The most frequent values keep their color; colors that a view does not need go to other values of the view.
  function colorsOf(shown) {
    if (!fields.length) return new Map();
    const weight = new Map();
    for (const node of shown) {
      const place = fields[field].majority[node];
      if (place >= 0) weight.set(place, (weight.get(place) ?? 0) + nodes.size[node]);
    }
    const given = new Map([...weight.keys()].filter((place) => place < LIVE).map((place) => [place, place]));
    const free = [...Array(LIVE).keys()].filter((index) => !given.has(index));
    const others = [...weight.keys()].filter((place) => place >= LIVE).sort((a, b) => weight.get(b) - weight.get(a) || a - b);
    others.slice(0, free.length).forEach((place, index) => given.set(place, free[index]));
    return new Map([...given].sort((a, b) => weight.get(b[0]) - weight.get(a[0])));
  }

  function paint(node, box, colors) {
    if (!fields.length) return box.style.setProperty("--hue", color(nodes.depth[node]));
    const index = colors.get(fields[field].majority[node]);
    box.style.setProperty("--hue", index === undefined ? "var(--gray)" : color(index));
    box.style.setProperty("--purity", `${Math.round(12 + 50 * share(node))}%`);
  }

  const examples = (node, how) => el("ul", { class: "examples" },
    how(nodes.examples[node]).map((item) => el("li", {}, data(items[item][1] || items[item][0]))));

  function facts(node) {
    const size = [plural(nodes.size[node], "item")];
    if (nodes.children[node] && nodes.depth[node] < tree.levels) size.push(plural(nodes.children[node], nodes.depth[node] === tree.levels - 1 ? "ID" : "continuation"));
    return size.join(", ");
  }

  function tooltip(node, x, y) {
    showTip(x, y, el("strong", {}, called(node)), el("div", {}, facts(node)),
      fields.length ? el("div", {}, `${fields[field].name}: `, data(value(node)), ` ${percent(share(node), 0)}`) : "",
      examples(node, (all) => all.slice(0, 3)));
  }

  function go(node, focus = true) {
    current = node;
    draw();
    hideTip();
    if (focus) map.querySelector("button")?.focus({ preventScroll: true });
  }

  function draw() {
    const below = children[current];
    const inner = below.flatMap((node) => (children[node].length ? children[node] : [node]));
    const colors = colorsOf(inner);
    drawMap(below, colors);
    crumbs.replaceChildren(el("ol", {}, path(current).map((node) => el("li", {}, node === current
      ? el("span", { "aria-current": "location" }, node ? prefix(node) : "All items")
      : el("button", { type: "button", on: { click: () => go(node) } }, node ? prefix(node) : "All items")))));
    drawKey(colors, inner);
    drawAbout(below);
  }

  function drawMap(below, colors) {
    const width = map.clientWidth;
    const height = Math.round(Math.min(560, Math.max(380, width * 0.52)));
    map.style.height = `${height}px`;
    map.setAttribute("aria-label", `${called(current)}: ${below.length} boxes. Arrow keys move, Enter zooms in, Escape zooms out.`);
    const hidden = nodes.size[current] - below.reduce((sum, node) => sum + nodes.size[node], 0);
    const boxes = squarify([...below.map((node) => nodes.size[node]), ...(below.length && hidden ? [hidden] : [])], 0, 0, width, height);
    const focused = map.contains(document.activeElement) ? document.activeElement.dataset.node : null;
    map.replaceChildren(...below.map((node, index) => button(node, boxes[index], colors, index)));
    if (below.length && hidden) map.append(place(el("div", { class: "box rest" }, el("span", {}, `${count(hidden)} more items`)), boxes.at(-1)));
    if (focused) map.querySelector(`[data-node="${focused}"]`)?.focus({ preventScroll: true });
    if (!below.length) map.append(el("p", { class: "muted" }, "This prefix is not expanded, as the report is bounded."));
  }

  function place(node, box) {
    Object.assign(node.style, { left: `${box.x}px`, top: `${box.y}px`, width: `${Math.max(0, box.w - 2)}px`, height: `${Math.max(0, box.h - 2)}px` });
    return node;
  }

  function button(node, box, colors, index) {
    const roomy = box.w > 76 && box.h > 44;
    const words = fields.length ? `, ${fields[field].name} ${value(node)} ${percent(share(node), 0)}` : "";
    const one = place(el("button", { type: "button", class: "box", tabindex: index ? -1 : 0, "aria-label": `${called(node)}, ${facts(node)}${words}`,
      "aria-disabled": canOpen(node) ? null : "true", "data-node": node }), box);
    paint(node, one, colors);
    const leaf = nodes.depth[node] === tree.levels;
    if (box.w > 20 && box.h > 15) {
      const title = leaf && nodes.size[node] === 1 && roomy ? items[nodes.examples[node][0]][1] : fields.length ? short(node) : "";
      one.append(el("span", { class: "title" }, el("b", {}, nodes.code[node]), roomy ? [" ", data(title)] : ""));
    }
    const grand = children[node];
    if (grand.length && box.w > 40 && box.h > 44) {
      const inside = el("span", { class: "inside", "aria-hidden": "true" });
      const cells = squarify(grand.map((child) => nodes.size[child]), 0, 0, box.w - 8, box.h - 28);
      grand.forEach((child, at) => {
        const cell = place(el("i"), { ...cells[at], w: cells[at].w + 1, h: cells[at].h + 1 });
        paint(child, cell, colors);
        inside.append(cell);
      });
      one.append(inside);
    } else if (roomy && leaf && nodes.size[node] > 1) one.append(el("span", { class: "title" }, plural(nodes.size[node], "item")));
    one.addEventListener("click", (event) => (canOpen(node) ? go(node) : tooltip(node, event.clientX, event.clientY)));
    one.addEventListener("pointermove", (event) => event.pointerType !== "touch" && tooltip(node, event.clientX, event.clientY));
    one.addEventListener("pointerleave", hideTip);
    one.addEventListener("focus", () => {
      map.querySelectorAll("button").forEach((other) => { other.tabIndex = other === one ? 0 : -1; });
      if (!one.matches(":focus-visible")) return;
      const at = one.getBoundingClientRect();
      tooltip(node, at.left + at.width / 2, at.bottom - 14);
    });
    one.addEventListener("blur", hideTip);
    return one;
  }

  map.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "Backspace") {
      if (!current) return;
      const left = current;
      go(nodes.parent[current], false);
      map.querySelector(`[data-node="${left}"]`)?.focus({ preventScroll: true });
      event.preventDefault();
      return;
    }
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [0, 0];
    if (!dx && !dy) return;
    event.preventDefault();
    const middle = (node) => { const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; };
    const [x, y] = middle(event.target);
    let [best, found] = [Infinity, null];
    for (const other of map.querySelectorAll("button")) { // the nearest in the direction of the key
      const [ox, oy] = middle(other);
      const [ahead, aside] = dx ? [(ox - x) * dx, Math.abs(oy - y)] : [(oy - y) * dy, Math.abs(ox - x)];
      if (ahead > 1 && ahead + 2 * aside < best) [best, found] = [ahead + 2 * aside, other];
    }
    found?.focus();
  });

  function drawKey(colors, inner) {
    if (!fields.length) return key.replaceChildren();
    const entry = (hue, text) => {
      const square = el("span", { class: "key block" });
      square.style.background = hue;
      return el("li", {}, square, data(text));
    };
    const known = [...colors].map(([at, index]) => entry(color(index), fields[field].values[at]));
    const rest = inner.some((node) => !colors.has(fields[field].majority[node]));
    key.replaceChildren(...known, rest ? entry("var(--gray)", "other or missing") : "", el("li", { class: "muted" }, "paler: less pure"));
  }

  function drawAbout(below) {
    const shown = below.length < nodes.children[current] && below.length ? ` The ${below.length} largest are shown.` : "";
    const majority = fields.map((one, column) => [data(one.name), data(value(current, column)), percent(share(current, column), 0)]);
    about.replaceChildren(
      el("p", {}, el("strong", {}, called(current)), `: ${facts(current)}.${shown}`),
      el("div", { class: "columns" },
        fields.length ? table("Most common values", ["field", "value", "share"], majority) : "",
        el("div", {}, el("p", { class: "muted" }, "Most popular items:"), examples(current, (all) => all))));
    rows.replaceChildren(alternative(`Continuations of ${called(current)}`,
      ["prefix", "items", ...(fields.length ? [fields[field].name, "share"] : []), "example"],
      below.map((node) => [prefix(node), count(nodes.size[node]), ...(fields.length ? [data(value(node)), percent(share(node), 0)] : []),
        data(items[nodes.examples[node][0]]?.[1] ?? "")])));
  }

  const bound = tree.complete ? "" : `Large trees are summarized: the largest prefixes are expanded first, at most ${count(tree.max_children)} continuations each and ${count(tree.max_nodes)} prefixes in all.`;
  const colorBy = Object.fromEntries(fields.map((one, index) => [index, one.name]));
  whenSized(map, draw);
  return el("div", { class: "tree" },
    el("div", { class: "bar-of-choices" }, crumbs,
      fields.length > 1 ? choice("Color by", colorBy, "0", (chosen) => { field = Number(chosen); draw(); }) : ""),
    map, key, el("p", { class: "muted" }, "A box is a code prefix, its area the number of items, its color the most common value of its items. Click a box, or press Enter, to zoom in; Escape zooms out. ", bound),
    about, rows);
}
