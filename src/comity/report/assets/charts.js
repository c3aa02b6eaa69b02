// A small chart layer: axes, marks, heat maps, a tooltip. Everything is drawn into SVG with plain attributes and the
// colours of a theme object, so that a saved picture needs no style sheet.

// ---- tooltip ------------------------------------------------------------------------------------------------------

const tip = {
  node: null,
  show(event, title, rows) {
    this.node ||= document.body.appendChild(html("div", { class: "tip", role: "status" }));
    const table = html(
      "table",
      {},
      rows.map(([label, value, colour]) =>
        html(
          "tr",
          {},
          html("td", {}, colour ? html("i", { style: `background:${colour}` }) : null, label),
          html("td", {}, value),
        ),
      ),
    );
    this.node.replaceChildren(html("b", {}, title), rows.length ? table : "");
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect(),
      edge = 12;
    let x = event.clientX + 16,
      y = event.clientY + 16;
    if (x + box.width > innerWidth - edge) x = Math.max(edge, event.clientX - box.width - 16);
    if (y + box.height > innerHeight - edge) y = Math.max(edge, event.clientY - box.height - 16);
    this.node.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

// ---- a drawing ----------------------------------------------------------------------------------------------------

class Frame {
  constructor(width, theme) {
    this.width = width;
    this.theme = theme;
    this.narrow = width < 560;
    this.root = svg("svg", { xmlns: SVG, "font-family": FONT, "font-size": 11, role: "img" });
    this.marks = 0;
    this.values = []; // functions that list what the marks tell: the same for who cannot point at them
  }

  end(height) {
    this.height = Math.ceil(height);
    fill(this.root, { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height }, []);
    return this;
  }

  add(name, attributes, parent = this.root) {
    return parent.appendChild(svg(name, attributes));
  }

  line(x1, y1, x2, y2, colour = this.theme.line, more = {}) {
    return this.add("line", { x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2), stroke: colour, ...more });
  }

  rect(x, y, width, height, fill, more = {}, parent = this.root) {
    return this.add(
      "rect",
      { x: round(x), y: round(y), width: round(width), height: round(height), fill, ...more },
      parent,
    );
  }

  circle(x, y, r, fill, more = {}, parent = this.root) {
    return this.add("circle", { cx: round(x), cy: round(y), r: round(r), fill, ...more }, parent);
  }

  // A mark carries data, unlike axes and letters.
  bar(...shape) {
    this.marks++;
    return this.rect(...shape);
  }

  dot(...shape) {
    this.marks++;
    return this.circle(...shape);
  }

  curve(xs, ys, colour, dash, more = {}) {
    this.marks++;
    const cap = dash === DASHES.dots ? "round" : "butt";
    const style = { fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash, "stroke-linecap": cap };
    return this.add("path", { d: pathOf(xs, ys), ...style, "stroke-linejoin": "round", ...more });
  }

  text(x, y, content, { anchor = "start", size = 11, weight = 400, colour = this.theme.soft, turn = 0, parent } = {}) {
    const node = this.add(
      "text",
      {
        x: +x.toFixed(1),
        y: +y.toFixed(1),
        "text-anchor": anchor,
        "font-size": size,
        "font-weight": weight,
        fill: colour,
        transform: turn ? `rotate(${turn} ${x.toFixed(1)} ${y.toFixed(1)})` : null,
      },
      parent || this.root,
    );
    node.textContent = content;
    return node;
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
      const x = scale(value),
        text = format(value),
        half = widthOf(text) / 2;
      if (grid) this.line(x, area.top, x, area.bottom, this.theme.line);
      if (x - half < free) continue;
      free = x + half + 6;
      const at = Math.min(x, this.width - half);
      this.line(x, area.bottom, x, area.bottom + 4, this.theme.axis);
      this.text(at, area.bottom + 17, text, { anchor: "middle" });
    }
    if (label)
      this.text((area.left + area.right) / 2, area.bottom + 35, label, {
        anchor: "middle",
        weight: 600,
        colour: this.theme.ink,
      });
  }

  // Values along x under the pointer: a vertical line, and a tooltip from `describe` for the nearest one.
  follow(area, xs, describe) {
    const rule = this.line(0, area.top, 0, area.bottom, this.theme.faint, {
      "stroke-dasharray": "2 3",
      visibility: "hidden",
    });
    const dots = this.add("g", {});
    const pad = this.add("rect", {
      x: area.left,
      y: area.top,
      width: Math.max(1, area.right - area.left),
      height: Math.max(1, area.bottom - area.top),
      fill: "transparent",
    });
    const out = () => {
      rule.setAttribute("visibility", "hidden");
      dots.replaceChildren();
      tip.hide();
    };
    pad.addEventListener("pointermove", (event) => {
      const box = this.root.getBoundingClientRect(),
        x = ((event.clientX - box.left) / box.width) * this.width;
      let best = 0;
      for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
      if (!xs.length) return;
      rule.setAttribute("x1", xs[best]);
      rule.setAttribute("x2", xs[best]);
      rule.setAttribute("visibility", "visible");
      const { title, rows, at } = describe(best);
      dots.replaceChildren(
        ...at.map(([y, colour]) =>
          svg("circle", { cx: xs[best], cy: y, r: 3.5, fill: colour, stroke: this.theme.page, "stroke-width": 1.5 }),
        ),
      );
      tip.show(event, title, rows);
    });
    pad.addEventListener("pointerleave", out);
    pad.addEventListener("pointercancel", out);
    this.values.push(() => xs.map((_, at) => describe(at)));
  }

  // A mark with a tooltip.
  tell(node, describe) {
    node.addEventListener("pointermove", (event) => {
      const { title, rows } = describe();
      tip.show(event, title, rows);
    });
    node.addEventListener("pointerleave", () => tip.hide());
    this.values.push(() => [describe()]);
    return node;
  }

  // Rows × columns as one image: `colour(row, column)` is an RGB triple, or null for an empty cell.
  heat(area, rows, columns, colour) {
    const width = area.right - area.left,
      height = area.bottom - area.top;
    const pixels = (length, count) => Math.max(1, Math.min(24, Math.round((2 * length) / count)));
    const across = pixels(width, columns),
      down = pixels(height, rows);
    const canvas = document.createElement("canvas");
    canvas.width = columns * across;
    canvas.height = rows * down;
    const context = canvas.getContext("2d"),
      image = context.createImageData(canvas.width, canvas.height);
    const line = new Uint8ClampedArray(canvas.width * 4);
    for (let row = 0; row < rows; row++) {
      line.fill(0);
      for (let column = 0; column < columns; column++) {
        const rgb = colour(row, column);
        if (rgb) for (let k = 0; k < across; k++) line.set([...rgb, 255], 4 * (column * across + k));
      }
      for (let k = 0; k < down; k++) image.data.set(line, 4 * canvas.width * (row * down + k));
    }
    context.putImageData(image, 0, 0);
    this.rect(area.left - 0.5, area.top - 0.5, width + 1, height + 1, "none", { stroke: this.theme.line });
    this.marks++;
    const place = { x: round(area.left), y: round(area.top), width: round(width), height: round(height) };
    this.add("image", {
      ...place,
      href: canvas.toDataURL(),
      preserveAspectRatio: "none",
      style: "image-rendering:pixelated",
    });
  }

  // Rows × columns with tooltips.
  cells(area, rows, columns, describe) {
    const width = (area.right - area.left) / columns,
      height = (area.bottom - area.top) / rows;
    const box = this.rect(0, 0, width, height, "none", {
      stroke: this.theme.ink,
      "stroke-width": 1.5,
      visibility: "hidden",
    });
    const pad = this.rect(area.left, area.top, width * columns, height * rows, "transparent");
    const within = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    pad.addEventListener("pointermove", (event) => {
      const at = pad.getBoundingClientRect();
      const column = within((event.clientX - at.left) / at.width, columns),
        row = within((event.clientY - at.top) / at.height, rows);
      fill(box, { x: area.left + column * width, y: area.top + row * height, visibility: "visible" }, []);
      const { title, rows: facts } = describe(row, column);
      tip.show(event, title, facts);
    });
    pad.addEventListener("pointerleave", () => {
      box.setAttribute("visibility", "hidden");
      tip.hide();
    });
    this.values.push(() =>
      Array.from({ length: rows * columns }, (_, i) => describe(Math.floor(i / columns), i % columns)),
    );
  }

  // The colour scale of a heat map.
  scaleBar(x, y, width, colour, [low, middle, high], label) {
    const steps = 48;
    for (let i = 0; i < steps; i++) {
      this.add("rect", {
        x: (x + (i * width) / steps).toFixed(2),
        y,
        width: (width / steps + 0.6).toFixed(2),
        height: 8,
        fill: css(colour(i / (steps - 1))),
      });
    }
    this.text(x, y + 20, low);
    if (middle) this.text(x + width / 2, y + 20, middle, { anchor: "middle" });
    this.text(x + width, y + 20, high, { anchor: "end" });
    if (label) this.text(x + width + 12, y + 8, label);
  }

  marker(x, y, shape, colour, size = 5) {
    this.marks++;
    const ring = shape === "ring",
      style = { fill: ring ? this.theme.page : colour, stroke: colour, "stroke-width": ring ? 2 : 1 };
    const corners = {
      square: [
        [-0.9, -0.9],
        [0.9, -0.9],
        [0.9, 0.9],
        [-0.9, 0.9],
      ],
      diamond: [
        [0, -1.3],
        [1.3, 0],
        [0, 1.3],
        [-1.3, 0],
      ],
      triangle: [
        [0, -1.2],
        [1.15, 0.9],
        [-1.15, 0.9],
      ],
    }[shape];
    if (!corners) return this.add("circle", { cx: round(x), cy: round(y), r: size, ...style });
    const path = corners.map(([dx, dy]) => `${round(x + dx * size)} ${round(y + dy * size)}`).join("L");
    return this.add("path", { d: `M${path}Z`, ...style });
  }
}

// The tooltips of marks as tables: tooltips with one title and different labels become one row, and rows with the same
// labels one table. `[{ labels, rows: [[title, values]] }]`.
function tabled(entries) {
  const lines = [],
    last = new Map();
  for (const { title, rows } of entries) {
    const line = last.get(title);
    if (line && rows.every(([label]) => !line.values.has(label))) for (const [l, v] of rows) line.values.set(l, v);
    else {
      const fresh = { title, values: new Map(rows.map(([label, value]) => [label, value])) };
      lines.push(fresh);
      last.set(title, fresh);
    }
  }
  const tables = new Map();
  for (const { title, values } of lines) {
    const labels = [...values.keys()],
      key = JSON.stringify(labels);
    if (!tables.has(key)) tables.set(key, { labels, rows: [] });
    tables.get(key).rows.push([title, [...values.values()]]);
  }
  return [...tables.values()];
}

// How many labels of a dense axis fit: every one, every second, fifth, tenth, ...
const every = (step, room) => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * step >= room) || 2000;

function pathOf(xs, ys) {
  let path = "",
    pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (!known(ys[i])) {
      pen = false;
      continue;
    }
    path += `${pen ? "L" : "M"}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
    pen = true;
  }
  return path;
}

function bandOf(xs, lows, highs) {
  const there = xs.map((_, i) => i).filter((i) => known(lows[i]) && known(highs[i]));
  if (there.length < 2) return "";
  const up = there.map((i) => `${xs[i].toFixed(1)} ${highs[i].toFixed(1)}`),
    down = there.reverse().map((i) => `${xs[i].toFixed(1)} ${lows[i].toFixed(1)}`);
  return `M${up.join("L")}L${down.join("L")}Z`;
}
