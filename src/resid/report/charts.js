// Charts in SVG: lines over epochs, and horizontal bars with intervals. Each has a table as its alternative.

const COLORS = 10; // --c0 to --c9 in the style sheet
const color = (index) => `var(--c${index % COLORS})`;

// series: [{name, color}]
function legend(series, shape) {
  return el("ul", { class: "legend", "aria-hidden": "true" }, series.map((one) => {
    const key = el("span", { class: `key ${shape}` });
    key.style.background = color(one.color);
    return el("li", {}, key, data(one.name));
  }));
}

// Round numbers between two values, about `wanted` of them.
function ticks(low, high, wanted) {
  const rough = (high - low || Math.abs(high) || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-6) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return { step, values: found };
}

const decimals = (step) => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));

// several: whether there are several runs, so that a single line needs its name
function lineChart(chart, several) {
  const { title, series } = chart;
  const points = series.flatMap((one) => one.points);
  const epochs = [...new Set(points.map(([epoch]) => epoch))].sort((a, b) => a - b);
  const values = points.map(([, value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const figure = el("figure", { class: "chart" }, el("h4", {}, data(title)));
  const frame = el("div", { class: "frame" });
  const said = series.map((one) => `${one.name}: ${number(one.points[0][1])} to ${number(one.points.at(-1)[1])}` +
    (one.best ? `, best epoch ${one.best}` : "")).join("; ");
  whenSized(frame, (width) => frame.replaceChildren(draw(width)));

  function draw(width) {
    const height = Math.round(Math.min(260, Math.max(180, width * 0.5)));
    const axis = ticks(low, high, 4);
    const bottom = Math.floor(low / axis.step + 1e-6) * axis.step;
    const top = Math.ceil(high / axis.step - 1e-6) * axis.step;
    axis.values = ticks(bottom, top, (top - bottom) / axis.step || 1).values;
    const label = (value) => value.toFixed(Math.min(6, decimals(axis.step)));
    const left = 14 + 7 * Math.max(...axis.values.map((value) => label(value).length));
    const [right, under, over] = [12, 38, 8];
    const [first, last] = [epochs[0], epochs.at(-1)];
    const x = (epoch) => left + (last === first ? 0.5 : (epoch - first) / (last - first)) * (width - left - right);
    const y = (value) => over + (1 - (value - bottom) / (top - bottom || 1)) * (height - over - under);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${said}.` });
    for (const value of axis.values) {
      root.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, label(value)));
    }
    for (const epoch of ticks(first, last, Math.max(2, width / 70)).values.filter(Number.isInteger)) {
      root.append(svg("text", { class: "tick", x: x(epoch), y: height - under + 17, "text-anchor": "middle" }, String(epoch)));
    }
    root.append(svg("text", { class: "tick", x: width - right, y: height - 4, "text-anchor": "end" }, "epoch"));
    series.forEach((one) => {
      const path = one.points.map(([epoch, value], at) => `${at ? "L" : "M"}${x(epoch).toFixed(1)} ${y(value).toFixed(1)}`);
      root.append(svg("path", { class: "curve", d: path.join(""), stroke: color(one.color) }));
      if (one.points.length === 1) root.append(svg("circle", { cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 3, fill: color(one.color) }));
      const best = one.points.find(([epoch]) => epoch === one.best);
      if (best) root.append(svg("circle", { class: "best", cx: x(best[0]), cy: y(best[1]), r: 4.5, stroke: color(one.color) }));
    });
    const cursor = svg("line", { class: "cursor", y1: over, y2: height - under, visibility: "hidden" });
    root.append(cursor);
    root.addEventListener("pointermove", (event) => {
      const at = (event.clientX - root.getBoundingClientRect().left) * (width / root.getBoundingClientRect().width);
      const epoch = epochs.reduce((best, one) => (Math.abs(x(one) - at) < Math.abs(x(best) - at) ? one : best));
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", x(epoch));
      cursor.setAttribute("x2", x(epoch));
      showTip(event.clientX, event.clientY, el("strong", {}, `Epoch ${epoch}`), series.flatMap((one) => {
        const point = one.points.find(([other]) => other === epoch);
        return point ? [el("div", {}, data(one.name), ` ${number(point[1])}${one.best === epoch ? " (best epoch)" : ""}`)] : [];
      }));
    });
    root.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
    return root;
  }

  const cells = (epoch, one) => {
    const point = one.points.find(([other]) => other === epoch);
    return point ? number(point[1]) + (one.best === epoch ? " (best)" : "") : "–";
  };
  figure.append(frame, several || series.length > 1 ? legend(series, "line") : "",
    alternative(title, ["epoch", ...series.map((one) => data(one.name))], epochs.map((epoch) => [String(epoch), ...series.map((one) => cells(epoch, one))])));
  return figure;
}

const number = (value) => (Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(4));

// Bars in groups. groups: [{label, note, bars: [{value, low, high}]}], a bar per series [{name, color}]; a missing bar is null.
function barChart(title, series, groups, shown) {
  const figure = el("figure", { class: "chart" }, el("h4", {}, title));
  const frame = el("div", { class: "frame" });
  const bars = groups.flatMap((group) => group.bars).filter(Boolean);
  const most = Math.max(...bars.map((bar) => bar.high ?? bar.value), 1e-9);
  const text = (bar) => shown(bar.value) + (bar.high === undefined ? "" : ` (${shown(bar.low)} to ${shown(bar.high)})`);
  whenSized(frame, (width) => frame.replaceChildren(draw(width)));

  function draw(width) {
    const narrow = width < 460 && groups.some((group) => group.note || group.label.length > 14);
    const thick = series.length > 4 ? 8 : series.length > 1 ? 11 : 15;
    const longest = Math.max(...groups.map((group) => group.label.length + (group.note ? group.note.length + 1 : 0)));
    const left = narrow ? 0 : Math.min(width * 0.42, 16 + 6.6 * longest);
    const right = 12 + 7 * Math.max(...bars.map((bar) => shown(bar.value).length));
    const head = narrow ? 18 : 0;
    const each = head + series.length * (thick + 3) + (series.length > 1 ? 13 : 8);
    const x = (value) => left + (Math.max(0, value) / most) * (width - left - right);
    const said = groups.map((group) => `${group.label}: ${group.bars.map((bar) => (bar ? shown(bar.value) : "none")).join(", ")}`);
    const root = svg("svg", { viewBox: `0 0 ${width} ${groups.length * each}`, role: "img", "aria-label": `${title}. ${said.join("; ")}.` });
    groups.forEach((group, row) => {
      const top = row * each + head;
      const middle = narrow ? top - 5 : top + (each - head) / 2;
      const words = [group.label, group.note ? svg("tspan", { class: "note" }, ` ${group.note}`) : null];
      root.append(svg("text", narrow ? { class: "label", x: 0, y: middle } : { class: "label", x: left - 9, y: middle, "text-anchor": "end" }, words));
      group.bars.forEach((bar, index) => {
        if (!bar) return;
        const y = top + 2 + index * (thick + 3);
        root.append(svg("rect", { class: "bar", x: left, y, width: Math.max(1, x(bar.value) - left), height: thick, rx: 2, fill: color(series[index].color) }));
        let end = x(bar.value);
        if (bar.high !== undefined) {
          const center = y + thick / 2;
          end = x(bar.high);
          root.append(svg("path", { class: "whisker", d: `M${x(bar.low)} ${center}H${end}M${x(bar.low)} ${center - 3}v6M${end} ${center - 3}v6` }));
        }
        root.append(svg("text", { class: "value", x: end + 6, y: y + thick / 2 + 4 }, shown(bar.value)));
        const hit = svg("rect", { class: "hit", x: 0, y: y - 2, width, height: thick + 4 });
        hit.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY,
          el("strong", {}, data(group.label)), el("div", {}, data(series[index].name), ` ${text(bar)}`), group.note ? el("div", {}, group.note) : ""));
        hit.addEventListener("pointerleave", hideTip);
        root.append(hit);
      });
    });
    return root;
  }

  figure.append(frame, series.length > 1 ? legend(series, "block") : "", alternative(title, ["", ...(series.length > 1 ? series.map((one) => data(one.name)) : ["value"])],
    groups.map((group) => [data(group.label + (group.note ? ` ${group.note}` : "")), ...group.bars.map((bar) => (bar ? text(bar) : "–"))])));
  return figure;
}
