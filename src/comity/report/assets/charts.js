// A small chart layer: scales, axes, marks, heat maps, a tooltip. Everything is drawn into SVG with plain attributes and
// the colours of a theme object, so that a saved picture needs no style sheet. Text only ever enters as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const FONT = "Inter, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

// Categories keep apart under protan-, deuteran- and tritanopia (tests/report/test_palette.py); red is kept for harm.
const THEMES = {
  light: {
    name: "light", page: "#ffffff", ink: "#1c1c28", soft: "#666677", faint: "#9d9dad", line: "#ececf2", axis: "#c9c9d6",
    series: ["#5154d9", "#c99a22", "#169070", "#5b2466", "#63b0ff", "#815310", "#bf79b5", "#54575f"],
    local: "#77778a", harm: "#cf4125", gain: "#5f8fb9", quiet: "#d3d5e2", accent: "#4a50c8",
    ramp: ["#f5f5fa", "#cdd5f0", "#8598db", "#4652b6", "#211c63"],
    heat: ["#faf6f4", "#f5ccb8", "#e58a63", "#bb482c", "#701f17"],
    both: ["#b33517", "#e58a63", "#f6e0d5", "#f7f7fa", "#d3e1ef", "#6c9fcd", "#1f5d9c"],
  },
  dark: {
    name: "dark", page: "#171922", ink: "#f0f0f6", soft: "#a3a5b8", faint: "#74768a", line: "#262936", axis: "#444859",
    series: ["#7885f5", "#f3991a", "#59b899", "#ac50b8", "#bfe3f3", "#c97f48", "#e2a5d9", "#838486"],
    local: "#9a9cb0", harm: "#ff7d5e", gain: "#6c9cc8", quiet: "#3d4154", accent: "#8f98ff",
    ramp: ["#1c1f2b", "#2d3675", "#5766cf", "#9dadf4", "#eef1ff"],
    heat: ["#1f1d23", "#5a2a27", "#a84830", "#e8855f", "#ffdcc7"],
    both: ["#ff8a66", "#b9512f", "#4f2c27", "#20222c", "#26394f", "#4579ad", "#9fcbf5"],
  },
};

const DASHES = { plain: "5 4", rules: ["", "1 4.5", "9 3.5 2 3.5", "12 4"] };

// ---- numbers ------------------------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const minus = (text) => text.replace("-", "−");
const fixed = (value, digits) => minus(Number(value).toFixed(digits));
const percent = (value, digits = 1) => (known(value) ? `${fixed(100 * value, digits)} %` : "–");
const points = (value, digits = 1) => (known(value) ? `${value > 0 ? "+" : ""}${fixed(100 * value, digits)}` : "–");
const extent = (values) => values.reduce(([a, b], v) => (known(v) ? [Math.min(a, v), Math.max(b, v)] : [a, b]), [Infinity, -Infinity]);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const mean = (values) => (values.length ? sum(values) / values.length : NaN);

function brief(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return minus(`${+(value / 1e6).toPrecision(3)}M`);
  if (size >= 1e4) return minus(`${+(value / 1e3).toPrecision(3)}k`);
  return minus(String(+value.toPrecision(size >= 1000 ? 4 : 3)));
}

function quantile(sorted, p) {
  const at = (sorted.length - 1) * p, low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count), ten = 10 ** Math.floor(Math.log10(raw));
  const step = ten * [1, 2, 2.5, 5, 10].find((s) => s * ten >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
  return found;
}

function linear(low, high, from, to) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  scale.back = (place) => low + ((place - from) / (to - from || 1)) * (high - low);
  scale.domain = [low, high];
  return scale;
}

function logarithmic(low, high, from, to) {
  const inner = linear(Math.log(low), Math.log(high), from, to);
  const scale = (value) => inner(Math.log(value));
  scale.domain = [low, high];
  return scale;
}

// A domain with some air, that never leaves [floor, ceiling].
function roomy(values, { floor = -Infinity, ceiling = Infinity, air = 0.06 } = {}) {
  let [low, high] = extent(values);
  if (!Number.isFinite(low)) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * air;
  return [Math.max(floor, low - room), Math.min(ceiling, high + room)];
}

function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// ---- colours ------------------------------------------------------------------------------------------------------

const rgbOf = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function ramp(stops) {
  const parts = stops.map(rgbOf);
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * (parts.length - 1), i = Math.min(parts.length - 2, Math.floor(at));
    return parts[i].map((v, k) => Math.round(v + (at - i) * (parts[i + 1][k] - v)));
  };
}

const css = (rgb) => `rgb(${rgb.join(",")})`;

// ---- nodes --------------------------------------------------------------------------------------------------------

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text, size = 11, weight = 400) {
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

function shorten(text, room, size = 11) {
  if (widthOf(text, size) <= room) return text;
  let keep = text.length;
  while (keep > 1 && widthOf(`${text.slice(0, keep)}…`, size) > room) keep--;
  return `${text.slice(0, keep)}…`;
}

// ---- tooltip ------------------------------------------------------------------------------------------------------

const tip = {
  node: null,
  show(event, title, rows) {
    this.node ||= document.body.appendChild(html("div", { class: "tip", role: "status" }));
    const table = html("table", {}, rows.map(([label, value, colour]) => html("tr", {},
      html("td", {}, colour ? html("i", { style: `background:${colour}` }) : null, label), html("td", {}, value))));
    this.node.replaceChildren(html("b", {}, title), rows.length ? table : "");
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect(), edge = 12;
    let x = event.clientX + 16, y = event.clientY + 16;
    if (x + box.width > innerWidth - edge) x = Math.max(edge, event.clientX - box.width - 16);
    if (y + box.height > innerHeight - edge) y = Math.max(edge, event.clientY - box.height - 16);
    this.node.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  },
  hide() { if (this.node) this.node.hidden = true; },
};

// ---- a drawing ----------------------------------------------------------------------------------------------------

class Frame {
  constructor(width, theme) {
    this.width = width;
    this.theme = theme;
    this.narrow = width < 560;
    this.root = svg("svg", { xmlns: SVG, "font-family": FONT, "font-size": 11, role: "img" });
    this.marks = 0;
  }

  end(height) {
    this.height = Math.ceil(height);
    fill(this.root, { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height }, []);
    return this;
  }

  add(name, attributes, parent = this.root) { return parent.appendChild(svg(name, attributes)); }

  // What carries data, as against axes and letters.
  mark(name, attributes, parent = this.root) { this.marks++; return this.add(name, attributes, parent); }

  text(x, y, content, { anchor = "start", size = 11, weight = 400, colour = this.theme.soft, turn = 0, parent } = {}) {
    const node = this.add("text", {
      x: +x.toFixed(1), y: +y.toFixed(1), "text-anchor": anchor, "font-size": size, "font-weight": weight, fill: colour,
      transform: turn ? `rotate(${turn} ${x.toFixed(1)} ${y.toFixed(1)})` : null,
    }, parent || this.root);
    node.textContent = content;
    return node;
  }

  line(x1, y1, x2, y2, colour = this.theme.line, more = {}) {
    return this.add("line", { x1: x1.toFixed(1), y1: y1.toFixed(1), x2: x2.toFixed(1), y2: y2.toFixed(1), stroke: colour, ...more });
  }

  yAxis(area, scale, values, format, label) {
    for (const value of values) {
      const y = scale(value);
      this.line(area.left, y, area.right, y, this.theme.line);
      this.text(area.left - 8, y + 3.5, format(value), { anchor: "end" });
    }
    if (label) this.text(0, area.top - 12, label, { weight: 600, colour: this.theme.ink });
  }

  xAxis(area, scale, values, format, label, { grid = false } = {}) {
    let free = -Infinity;
    for (const value of values) {
      const x = scale(value), told = format(value), half = widthOf(told) / 2;
      if (grid) this.line(x, area.top, x, area.bottom, this.theme.line);
      if (x - half < free) continue;
      free = x + half + 6;
      const at = Math.min(x, this.width - half);
      this.line(x, area.bottom, x, area.bottom + 4, this.theme.axis);
      this.text(at, area.bottom + 17, told, { anchor: "middle" });
    }
    if (label) this.text((area.left + area.right) / 2, area.bottom + 35, label, { anchor: "middle", weight: 600, colour: this.theme.ink });
  }

  // Values along x under the pointer: a rule, and a tip with what `describe` says of the nearest one.
  follow(area, xs, describe) {
    const rule = this.line(0, area.top, 0, area.bottom, this.theme.faint, { "stroke-dasharray": "2 3", visibility: "hidden" });
    const dots = this.add("g", {});
    const pad = this.add("rect", { x: area.left, y: area.top, width: Math.max(1, area.right - area.left), height: Math.max(1, area.bottom - area.top), fill: "transparent" });
    const out = () => { rule.setAttribute("visibility", "hidden"); dots.replaceChildren(); tip.hide(); };
    pad.addEventListener("pointermove", (event) => {
      const box = this.root.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * this.width;
      let best = 0;
      for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
      if (!xs.length) return;
      rule.setAttribute("x1", xs[best]); rule.setAttribute("x2", xs[best]); rule.setAttribute("visibility", "visible");
      const { title, rows, at } = describe(best);
      dots.replaceChildren(...at.map(([y, colour]) => svg("circle", { cx: xs[best], cy: y, r: 3.5, fill: colour, stroke: this.theme.page, "stroke-width": 1.5 })));
      tip.show(event, title, rows);
    });
    pad.addEventListener("pointerleave", out);
    pad.addEventListener("pointercancel", out);
  }

  // A mark that tells about itself.
  tell(node, describe) {
    node.addEventListener("pointermove", (event) => { const { title, rows } = describe(); tip.show(event, title, rows); });
    node.addEventListener("pointerleave", () => tip.hide());
    return node;
  }

  // Rows × columns as one image: `colour(row, column)` is an RGB triple, or null for nothing there.
  heat({ x, y, width, height, rows, columns, colour, describe }) {
    const down = Math.max(1, Math.min(24, Math.round((2 * height) / rows))), across = Math.max(1, Math.min(24, Math.round((2 * width) / columns)));
    const canvas = document.createElement("canvas");
    canvas.width = columns * across; canvas.height = rows * down;
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height), line = new Uint8ClampedArray(canvas.width * 4);
    for (let r = 0; r < rows; r++) {
      line.fill(0);
      for (let c = 0; c < columns; c++) {
        const rgb = colour(r, c);
        if (rgb) for (let k = 0; k < across; k++) line.set([rgb[0], rgb[1], rgb[2], 255], 4 * (c * across + k));
      }
      for (let k = 0; k < down; k++) image.data.set(line, 4 * canvas.width * (r * down + k));
    }
    context.putImageData(image, 0, 0);
    this.add("rect", { x: x - 0.5, y: y - 0.5, width: width + 1, height: height + 1, fill: "none", stroke: this.theme.line });
    this.mark("image", { x, y, width, height, href: canvas.toDataURL(), preserveAspectRatio: "none", style: "image-rendering:pixelated" });
    if (!describe) return;
    const box = this.add("rect", { width: width / columns, height: height / rows, fill: "none", stroke: this.theme.ink, "stroke-width": 1.5, visibility: "hidden" });
    const pad = this.add("rect", { x, y, width, height, fill: "transparent" });
    pad.addEventListener("pointermove", (event) => {
      const where = pad.getBoundingClientRect();
      const c = Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - where.left) / where.width) * columns)));
      const r = Math.max(0, Math.min(rows - 1, Math.floor(((event.clientY - where.top) / where.height) * rows)));
      fill(box, { x: x + (c * width) / columns, y: y + (r * height) / rows, visibility: "visible" }, []);
      const { title, rows: told } = describe(r, c);
      tip.show(event, title, told);
    });
    pad.addEventListener("pointerleave", () => { box.setAttribute("visibility", "hidden"); tip.hide(); });
  }

  // What the colours of a heat map mean.
  scaleBar(x, y, width, colour, [low, middle, high], label) {
    const steps = 48;
    for (let i = 0; i < steps; i++) {
      this.add("rect", { x: (x + (i * width) / steps).toFixed(2), y, width: (width / steps + 0.6).toFixed(2), height: 8, fill: css(colour(i / (steps - 1))) });
    }
    this.text(x, y + 20, low);
    if (middle) this.text(x + width / 2, y + 20, middle, { anchor: "middle" });
    this.text(x + width, y + 20, high, { anchor: "end" });
    if (label) this.text(x + width + 12, y + 8, label);
  }

  marker(x, y, shape, colour, size = 5) {
    const style = { fill: shape === "ring" ? this.theme.page : colour, stroke: colour, "stroke-width": shape === "ring" ? 2 : 1 };
    if (shape === "square") return this.mark("rect", { x: x - size * 0.9, y: y - size * 0.9, width: 1.8 * size, height: 1.8 * size, ...style });
    if (shape === "diamond") return this.mark("path", { d: `M${x} ${y - 1.3 * size}L${x + 1.3 * size} ${y}L${x} ${y + 1.3 * size}L${x - 1.3 * size} ${y}Z`, ...style });
    if (shape === "triangle") return this.mark("path", { d: `M${x} ${y - 1.2 * size}L${x + 1.15 * size} ${y + 0.9 * size}L${x - 1.15 * size} ${y + 0.9 * size}Z`, ...style });
    return this.mark("circle", { cx: x, cy: y, r: size, ...style });
  }
}

// Which labels of a dense axis fit: every one, every second, fifth, tenth, ...
const every = (step, room) => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * step >= room) || 2000;

function pathOf(xs, ys) {
  let path = "", pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (!known(ys[i])) { pen = false; continue; }
    path += `${pen ? "L" : "M"}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
    pen = true;
  }
  return path;
}

function bandOf(xs, lows, highs) {
  const there = xs.map((_, i) => i).filter((i) => known(lows[i]) && known(highs[i]));
  if (there.length < 2) return "";
  const up = there.map((i) => `${xs[i].toFixed(1)} ${highs[i].toFixed(1)}`), down = there.reverse().map((i) => `${xs[i].toFixed(1)} ${lows[i].toFixed(1)}`);
  return `M${up.join("L")}L${down.join("L")}Z`;
}
