// Numbers, scales, colours and nodes. Text only ever enters as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const FONT = "Inter, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

const DASHES = { plain: "5 4", dots: "1 4.5", local: "2 3", rules: ["", "1 4.5", "9 3.5 2 3.5", "12 4"] };
const SHAPES = { plain: "ring", local: "triangle", rules: ["circle", "square", "diamond", "triangle"] };

// ---- numbers ------------------------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const round = (value) => +value.toFixed(2);
const upper = (text) => text.replace(/^./, (first) => first.toUpperCase());
const minus = (text) => text.replace("-", "−");
const fixed = (value, digits) => minus((Number(value.toFixed(digits)) || 0).toFixed(digits)); // never −0.0
const percent = (value, digits = 1) => (known(value) ? `${fixed(100 * value, digits)} %` : "–");
const extent = (values) =>
  values.reduce(([a, b], v) => (known(v) ? [Math.min(a, v), Math.max(b, v)] : [a, b]), [Infinity, -Infinity]);
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
  const at = (sorted.length - 1) * p,
    low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count),
    ten = 10 ** Math.floor(Math.log10(raw));
  const step = ten * [1, 2, 2.5, 5, 10].find((s) => s * ten >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    found.push(+(k * step).toPrecision(12));
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

// A domain with some padding, within [floor, ceiling].
function roomy(values, { floor = -Infinity, ceiling = Infinity, air = 0.06 } = {}) {
  const [low, high] = extent(values);
  if (!Number.isFinite(low)) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * air;
  return [Math.max(floor, low - room), Math.min(ceiling, high + room)];
}

function bytesOf(text) {
  const raw = atob(text),
    bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// ---- colours ------------------------------------------------------------------------------------------------------

const rgbOf = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function ramp(stops) {
  const parts = stops.map(rgbOf);
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * (parts.length - 1),
      i = Math.min(parts.length - 2, Math.floor(at));
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
  for (const child of children.flat(2)) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// A box that can be scrolled, also with the keyboard.
const scrolling = (name) => ({ class: "scroll", tabindex: 0, role: "region", "aria-label": name });

// A table, and a row whose first cell is its name.
const tableOf = (kind, labels, rows, ...more) => {
  const headings = labels.map((label) => html("th", { scope: "col" }, label));
  return html("table", { class: kind }, html("thead", {}, html("tr", {}, headings)), html("tbody", {}, rows), ...more);
};
const rowOf = (name, cells) => {
  const head = html("th", { scope: "row" }, name);
  return html(
    "tr",
    {},
    head,
    cells.map((cell) => html("td", {}, cell)),
  );
};

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
