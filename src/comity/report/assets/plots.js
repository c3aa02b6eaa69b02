// The plots of the report. Each has a title, a sentence on how to read it, its choices, and `draw(frame)`, which may
// return a legend. `data` is what Python put into the page, `state` what the reader chose.

const data = JSON.parse(document.getElementById("data").textContent);
const state = {
  setting: 0, cell: data.focus, seed: null, hidden: {}, theme: null,
  curve: "acc", across: "r", box: "acc", reason: "agree", order: "id", matrix: "mean", layer: null, general: "G",
  sweep: null, sweepOf: "acc",
};

const cellsHere = () => data.cells.filter((cell) => cell.setting === state.setting);
const rivals = () => cellsHere().filter((cell) => !cell.ref);
const focus = () => data.cells[state.cell];
const runsOf = (cell) => cell.runs.map((index) => data.runs[index]);

function focusRun() {
  const runs = runsOf(focus());
  return runs.find((run) => run.seed === state.seed) || runs.find((run) => run.done) || runs[0];
}

const plainOf = (cell) => data.cells.find((other) => other.setting === cell.setting && other.method === cell.method && other.plain);
const name = (client, run) => `client ${client}${run.bad.includes(client) ? " (malicious)" : ""}`;
const wherever = () => (data.settings.length > 1 ? ` (${data.settings[state.setting].label})` : "");
const aboutRun = () => `${focus().label}, seed ${focusRun().seed}${wherever()}`;

// Colour says the method and dashes the rule; with one method alone the colour says the rule.
function styleOf(cell, theme) {
  if (cell.ref) return { colour: theme.local, dash: "2 3", shape: "triangle" };
  const others = data.cells.filter((other) => other.setting === cell.setting && !other.ref);
  const methods = [...new Set(others.map((other) => other.method))];
  const labels = [...new Set(others.map((other) => other.rule))];
  const rules = [...new Set(others.filter((other) => !other.plain && other.rule).map((other) => other.ruleName))];
  const rule = rules.indexOf(cell.ruleName);
  const which = methods.length > 1 ? methods.indexOf(cell.method) : labels.indexOf(cell.rule);
  return {
    colour: theme.series[which % theme.series.length],
    dash: cell.plain ? DASHES.plain : DASHES.rules[Math.max(0, rule) % DASHES.rules.length],
    shape: cell.plain ? "ring" : ["circle", "square", "diamond", "triangle"][Math.max(0, rule) % 4],
  };
}

const keyOf = (cell, theme) => ({ cell, label: cell.label, ...styleOf(cell, theme) });
const shown = (cells) => cells.filter((cell) => !state.hidden[cell.label]);

// ---- choices ------------------------------------------------------------------------------------------------------

const choose = {
  setting: () => data.settings.length > 1 && { label: "setting", key: "setting", options: data.settings.map((s, i) => [i, s.label]) },
  cell: () => rivals().length > 1 && { label: "method and rule", key: "cell", options: rivals().map((cell) => [data.cells.indexOf(cell), cell.label]) },
  seed: () => runsOf(focus()).length > 1 && { label: "seed", key: "seed", value: focusRun().seed, options: runsOf(focus()).map((run) => [run.seed, `seed ${run.seed}`]) },
};

const CURVES = {
  acc: ["accuracy", "accuracy on own tests", true], worst: ["worst tenth", "accuracy of the worst tenth of clients", true],
  val: ["validation", "accuracy on own validation samples", true], common: ["common model", "accuracy of the common model", true],
  loss: ["training loss", "training loss", false], test: ["test loss", "loss on own tests", false],
};
const ACROSS = { r: ["round", "round"], s: ["seconds", "seconds of training and aggregation"], b: ["MB", "MB sent and received"] };

// ---- lines over rounds --------------------------------------------------------------------------------------------

function lines(frame, what, yLabel, share) {
  const { theme } = frame, all = cellsHere().filter((cell) => cell.curves[what]), cells = shown(all);
  const area = { left: 46, right: frame.width - 8, top: 30, bottom: frame.narrow ? 250 : 330 };
  const sets = cells.map((cell) => ({ cell, ...cell.curves[what], xs: cell.curves[what][state.across] }));
  const spread = sets.flatMap((c) => c.m.flatMap((m, i) => (c.d ? [m - c.d[i], m + c.d[i]] : [m])));
  const [low, high] = roomy(spread, share ? { floor: 0, ceiling: 1 } : { floor: 0 });
  const x = linear(...(sets.length ? extent(sets.flatMap((c) => c.xs)) : [0, 1]), area.left, area.right), y = linear(low, high, area.bottom, area.top);
  frame.yAxis(area, y, ticks(low, high, 6), (v) => (share ? `${+(100 * v).toFixed(1)} %` : brief(v)), yLabel);
  frame.xAxis(area, x, ticks(...x.domain, frame.narrow ? 4 : 8), brief, ACROSS[state.across][1]);
  for (const set of sets) {
    const style = styleOf(set.cell, theme), xs = set.xs.map(x);
    if (set.d) {
      const clip = (v) => y(Math.max(low, Math.min(high, v)));
      frame.add("path", { d: bandOf(xs, set.m.map((m, i) => clip(m - set.d[i])), set.m.map((m, i) => clip(m + set.d[i]))), fill: style.colour, "fill-opacity": sets.length > 5 ? 0.08 : 0.14 });
    }
    if (xs.length === 1) frame.marker(xs[0], y(set.m[0]), "circle", style.colour, 3);
    else frame.mark("path", { d: pathOf(xs, set.m.map(y)), fill: "none", stroke: style.colour, "stroke-width": 2, "stroke-dasharray": style.dash, "stroke-linejoin": "round", "stroke-linecap": style.dash === "1 4.5" ? "round" : "butt" });
  }
  const grid = [...new Set(sets.flatMap((c) => c.xs))].sort((a, b) => a - b);
  frame.follow(area, grid.map(x), (i) => {
    const near = sets.map((set) => {
      let j = 0;
      set.xs.forEach((v, k) => { if (Math.abs(v - grid[i]) < Math.abs(set.xs[j] - grid[i])) j = k; });
      return { set, j, style: styleOf(set.cell, theme) };
    }).filter(({ set, j }) => state.across !== "r" || set.xs[j] === grid[i]).sort((a, b) => b.set.m[b.j] - a.set.m[a.j]);
    const told = (set, j) => (share ? percent(set.m[j]) : brief(set.m[j])) + (set.d ? ` ± ${share ? fixed(100 * set.d[j], 1) : brief(set.d[j])}` : "");
    return {
      title: `${ACROSS[state.across][0]} ${brief(grid[i])}`,
      rows: near.slice(0, 14).map(({ set, j, style }) => [set.cell.label, told(set, j), style.colour]),
      at: near.filter(({ set, j }) => set.xs[j] === grid[i]).map(({ set, j, style }) => [y(set.m[j]), style.colour]),
    };
  });
  frame.end(area.bottom + 42);
  return all.map((cell) => keyOf(cell, theme));
}

// ---- bars that are stacked ----------------------------------------------------------------------------------------

function stacked(frame, parts, unit) {
  const { theme } = frame, cells = cellsHere().filter((cell) => parts.every((part) => known(cell.numbers[part.key])));
  const left = frame.narrow ? 0 : Math.min(220, 14 + Math.max(...cells.map((cell) => widthOf(cell.label, 12)), 40)), step = frame.narrow ? 38 : 28;
  const area = { left, right: frame.width - 62, top: 8, bottom: 8 + step * cells.length };
  const total = (cell) => sum(parts.map((part) => cell.numbers[part.key]));
  const x = linear(0, Math.max(...cells.map(total), 1e-9), area.left, area.right);
  cells.forEach((cell, i) => {
    const top = area.top + i * step, y = frame.narrow ? top + 17 : top + 6, tall = frame.narrow ? 13 : 16;
    if (frame.narrow) frame.text(0, top + 11, shorten(cell.label, frame.width), { size: 11.5, colour: theme.ink });
    else frame.text(left - 10, top + 18, shorten(cell.label, left - 12, 12), { anchor: "end", size: 12, colour: theme.ink });
    let from = 0;
    for (const part of parts) {
      const value = cell.numbers[part.key];
      const bar = frame.mark("rect", { x: x(from).toFixed(1), y, width: Math.max(0.5, x(from + value) - x(from)).toFixed(1), height: tall, fill: part.colour(theme), rx: 1.5 });
      frame.tell(bar, () => ({ title: cell.label, rows: [...parts.map((p) => [p.label, `${brief(cell.numbers[p.key])} ${unit}`, p.colour(theme)]), ["together", `${brief(total(cell))} ${unit}`]] }));
      from += value;
    }
    frame.text(x(from) + 8, y + tall - 3.5, `${brief(total(cell))} ${unit}`);
  });
  frame.end(area.bottom + 6);
  return parts.map((part) => ({ label: part.label, colour: part.colour(theme), box: true }));
}

// ---- the list -----------------------------------------------------------------------------------------------------

const REASONS = {
  agree: ["agreement", "mean cosine of its updates with the others'", (run, i, id) => run.agree?.[id], (v) => fixed(v, 2)],
  overlap: ["class overlap", "share of its class mix that the others have too", (run, i, id) => run.overlap?.[id], (v) => percent(v, 0)],
  train: ["training samples", "training samples", (run, i) => run.train[i], brief],
  alone: ["accuracy alone", "accuracy when it trains alone", (run, i) => run.alone?.[i], (v) => percent(v, 0)],
};

const SWEPT = {
  acc: ["accuracy", (cell) => cell.numbers.acc, true], gain: ["gain over Local", (cell) => cell.numbers.gain, true],
  diff: ["difference to Mean", (cell) => cell.diff, true], worst: ["worst tenth", (cell) => cell.numbers.worst, true],
  conflict: ["conflict rate", (cell) => [cell.numbers.conflict, null], true],
};

function gains(run) {
  if (!run.alone) return [];
  return run.ids.map((id, i) => ({ id, i, gain: known(run.alone[i]) ? run.acc[i] - run.alone[i] : NaN, alone: run.alone[i], acc: run.acc[i], test: run.test[i], train: run.train[i] }))
    .filter((client) => known(client.gain)).sort((a, b) => a.gain - b.gain);
}

function correlation(pairs) {
  const ranks = (values) => values.map((v) => values.filter((w) => w < v).length + (values.filter((w) => w === v).length + 1) / 2);
  const [a, b] = [0, 1].map((k) => ranks(pairs.map((pair) => pair[k])));
  const [ma, mb] = [mean(a), mean(b)];
  const top = sum(a.map((v, i) => (v - ma) * (b[i] - mb))), size = Math.sqrt(sum(a.map((v) => (v - ma) ** 2)) * sum(b.map((v) => (v - mb) ** 2)));
  return size ? top / size : NaN;
}

function cosinesOf(run) {
  if (!run.cos) return null;
  const at = run.cos.rounds.indexOf(Number(state.matrix));
  const bytes = bytesOf(state.matrix === "mean" || at < 0 ? run.cos.mean : run.cos.each[at]), n = run.cos.n;
  return { n, of: (i, j) => (i === j || bytes[i * n + j] === 255 ? null : bytes[i * n + j] / 120 - 1) };
}

// Clients that agree side by side: each next one is the most like those already placed.
function alike(cosines) {
  const left = new Set(Array.from({ length: cosines.n }, (_, i) => i)), order = [];
  const total = (i) => sum([...left].map((j) => cosines.of(i, j) || 0));
  let next = [...left].reduce((a, b) => (total(b) > total(a) ? b : a), 0);
  while (left.size) {
    order.push(next);
    left.delete(next);
    const recent = order.slice(-3);
    let best = -Infinity;
    for (const i of left) {
      const score = mean(recent.map((j) => cosines.of(i, j) ?? -1));
      if (score > best) { best = score; next = i; }
    }
  }
  return order;
}

function weightsOf(run) {
  if (!run.w || !run.w.maps.length) return null;
  const at = Math.max(0, run.w.names.indexOf(state.layer)), [top, packed] = run.w.maps[at], bytes = bytesOf(packed), columns = run.w.rounds.length;
  const of = (client, column) => {
    const byte = bytes[client * columns + column];
    return byte === 255 ? null : Math.sign(byte - 127) * ((byte - 127) / 127) ** 2 * top;
  };
  return { layer: run.w.names[at], columns, clients: bytes.length / columns, rounds: run.w.rounds, top, of };
}

const PLOTS = [
  {
    id: "convergence", section: "learning", wide: true,
    title: () => `How ${CURVES[state.curve][1]} develops${wherever()}`,
    how: "Each line is a mean over seeds, its band one standard deviation. Dashed is the plain mean, grey is each client training alone. Click a name to hide or show it.",
    choices: () => [choose.setting(), { label: "show", key: "curve", options: Object.keys(CURVES).filter((key) => cellsHere().some((cell) => cell.curves[key])).map((key) => [key, CURVES[key][0]]) },
      { label: "over", key: "across", options: Object.keys(ACROSS).map((key) => [key, ACROSS[key][0]]) }],
    there: () => cellsHere().some((cell) => Object.keys(CURVES).some((key) => cell.curves[key])),
    draw: (frame) => lines(frame, state.curve, CURVES[state.curve][1], CURVES[state.curve][2]),
  },
  {
    id: "sweep", section: "learning", wide: true,
    title: () => `${SWEPT[state.sweepOf][0]} against ${data.varying.find((v) => v.key === state.sweep).name}`.replace(/^./, (c) => c.toUpperCase()),
    how: "One curve for each method and rule, with the standard deviation over seeds (for differences: the 95 % interval). A level line is a rule that does not have this option.",
    choices: () => [data.varying.length > 1 && { label: "option", key: "sweep", options: data.varying.map((v) => [v.key, v.name]) },
      data.varying.length > 1 && choose.setting(),
      { label: "show", key: "sweepOf", options: Object.keys(SWEPT).filter((key) => data.cells.some((cell) => known(SWEPT[key][1](cell)?.[0]))).map((key) => [key, SWEPT[key][0]]) }],
    there: () => data.varying.length > 0,
    draw(frame) {
      const { theme } = frame, curves = sweptCurves(), [yLabel, number] = SWEPT[state.sweepOf];
      const values = [...new Set(curves.flatMap((curve) => curve.at.map(([v]) => v)))].filter((v) => v !== undefined);
      const numeric = values.every((v) => typeof v === "number");
      values.sort((a, b) => (numeric ? a - b : 0));
      const area = { left: 50, right: frame.width - 14, top: 30, bottom: frame.narrow ? 250 : 320 };
      const wide = numeric && values[0] > 0 && values[values.length - 1] / values[0] >= 30;
      const x = numeric ? (wide ? logarithmic : linear)(values[0], values[values.length - 1], area.left + 14, area.right - 14)
        : (value) => area.left + ((values.indexOf(value) + 0.5) / values.length) * (area.right - area.left);
      const told = curves.flatMap((curve) => curve.at.flatMap(([, cell]) => { const n = number(cell); return n ? [n[0] - (n[1] || 0), n[0] + (n[1] || 0)] : []; }));
      const [low, high] = roomy(told), y = linear(low, high, area.bottom, area.top);
      frame.yAxis(area, y, ticks(low, high, 6), (v) => `${+minus((100 * v).toFixed(1)) || minus((100 * v).toFixed(1))}${state.sweepOf === "gain" || state.sweepOf === "diff" ? "" : " %"}`, state.sweepOf === "gain" || state.sweepOf === "diff" ? `${yLabel}, points` : yLabel);
      frame.xAxis(area, x, values, (v) => (numeric ? brief(v) : String(v)), data.varying.find((v) => v.key === state.sweep).name);
      if (low < 0 && high > 0) frame.line(area.left, y(0), area.right, y(0), theme.axis);
      for (const curve of curves) {
        const style = curve.style(theme), level = curve.at.filter(([v, cell]) => v === undefined && number(cell)), there = curve.at.filter(([v, cell]) => v !== undefined && known(number(cell)?.[0]));
        for (const [, cell] of level) {
          const line = frame.mark("path", { d: `M${area.left} ${y(number(cell)[0]).toFixed(1)}H${area.right}`, stroke: style.colour, "stroke-width": 1.6, "stroke-dasharray": style.dash, fill: "none" });
          frame.tell(line, () => ({ title: curve.label, rows: [[yLabel, percent(number(cell)[0])]] }));
        }
        there.sort((a, b) => (numeric ? a[0] - b[0] : values.indexOf(a[0]) - values.indexOf(b[0])));
        if (there.length > 1) frame.mark("path", { d: pathOf(there.map(([v]) => x(v)), there.map(([, cell]) => y(number(cell)[0]))), fill: "none", stroke: style.colour, "stroke-width": 2, "stroke-dasharray": style.dash });
        for (const [value, cell] of there) {
          const [m, d] = number(cell);
          if (d) frame.line(x(value), y(m - d), x(value), y(m + d), style.colour, { "stroke-width": 1.5, "stroke-opacity": 0.55 });
          frame.tell(frame.marker(x(value), y(m), style.shape, style.colour, 4.5), () => ({ title: curve.label, rows: [[data.varying.find((v) => v.key === state.sweep).name, brief(value) === "NaN" ? String(value) : typeof value === "number" ? brief(value) : value], [yLabel, d ? `${percent(m)} ± ${fixed(100 * d, 1)}` : percent(m)]] }));
        }
      }
      frame.end(area.bottom + 42);
      return curves.map((curve) => ({ label: curve.label, ...curve.style(theme) }));
    },
  },
  {
    id: "clients", section: "clients", wide: true,
    title: () => `${state.box === "acc" ? "Accuracy" : "Gain over training alone"} of every client${wherever()}`,
    how: "A dot is a client (all seeds); the box holds the middle half of them with the median, the whiskers reach to the last client within one and a half boxes. A box further right and shorter is better and fairer.",
    choices: () => [choose.setting(), data.runs.some((run) => run.alone) && { label: "show", key: "box", options: [["acc", "accuracy"], ["gain", "gain over Local"]] }],
    there: () => cellsHere().some((cell) => runsOf(cell).some((run) => run.acc.length)),
    draw(frame) {
      const { theme } = frame, gain = state.box === "gain";
      const sets = cellsHere().filter((cell) => !(gain && cell.ref)).map((cell) => ({
        cell,
        clients: runsOf(cell).filter((run) => run.done || !runsOf(cell).some((other) => other.done)).flatMap((run) => run.ids.map((id, i) => ({ id, run, value: gain ? (run.alone && known(run.alone[i]) ? run.acc[i] - run.alone[i] : NaN) : run.acc[i] }))).filter((c) => known(c.value)),
      })).filter((set) => set.clients.length);
      const left = frame.narrow ? 0 : Math.min(230, 16 + Math.max(...sets.map((set) => widthOf(set.cell.label, 12)), 30)), step = frame.narrow ? 50 : 38;
      const area = { left: left + 4, right: frame.width - 10, top: 10, bottom: 10 + step * sets.length };
      const [low, high] = roomy(sets.flatMap((set) => set.clients.map((c) => c.value)), gain ? {} : { floor: 0, ceiling: 1 });
      const x = linear(low, high, area.left + 4, area.right - 4);
      frame.xAxis(area, x, ticks(low, high, frame.narrow ? 4 : 8), (v) => (gain ? minus(`${+(100 * v).toFixed(1)}`) : `${+(100 * v).toFixed(1)} %`), gain ? "points above or below training alone" : "accuracy on own tests", { grid: true });
      if (gain && low < 0 && high > 0) frame.line(x(0), area.top, x(0), area.bottom, theme.axis, { "stroke-width": 1.5 });
      sets.forEach((set, row) => {
        const { colour, shape } = styleOf(set.cell, theme), middle = area.top + step * (row + 0.5) + (frame.narrow ? 9 : 0), half = frame.narrow ? 8 : 9;
        if (frame.narrow) frame.text(0, area.top + step * row + 13, shorten(set.cell.label, frame.width), { size: 11.5, colour: theme.ink });
        else frame.text(left - 8, middle + 4, shorten(set.cell.label, left - 10, 12), { anchor: "end", size: 12, colour: theme.ink });
        const sorted = set.clients.map((c) => c.value).sort((a, b) => a - b), [q1, q2, q3] = [0.25, 0.5, 0.75].map((p) => quantile(sorted, p));
        const reach = 1.5 * (q3 - q1), low_ = sorted.find((v) => v >= q1 - reach), high_ = sorted.findLast((v) => v <= q3 + reach);
        frame.line(x(low_), middle, x(q1), middle, colour, { "stroke-width": 1.4 });
        frame.line(x(q3), middle, x(high_), middle, colour, { "stroke-width": 1.4 });
        for (const end of [low_, high_]) frame.line(x(end), middle - 4, x(end), middle + 4, colour, { "stroke-width": 1.4 });
        const box = frame.mark("rect", { x: x(q1).toFixed(1), y: middle - half, width: Math.max(1, x(q3) - x(q1)).toFixed(1), height: 2 * half, rx: 2, fill: colour, "fill-opacity": shape === "ring" ? 0.06 : 0.2, stroke: colour, "stroke-width": 1.4 });
        set.clients.forEach((client, i) => {
          const harmed = gain && client.value < 0;
          const dot = frame.mark("circle", { cx: x(client.value).toFixed(1), cy: (middle + (((i * 0.618) % 1) - 0.5) * 1.7 * half).toFixed(1), r: set.clients.length > 200 ? 1.6 : 2.4, fill: harmed ? theme.harm : colour, "fill-opacity": harmed ? 0.85 : 0.55 });
          frame.tell(dot, () => ({ title: `${name(client.id, client.run)}, seed ${client.run.seed}`, rows: [[set.cell.label, gain ? `${points(client.value)} points` : percent(client.value)]] }));
        });
        frame.line(x(q2), middle - half, x(q2), middle + half, theme.ink, { "stroke-width": 2.2 });
        const told = (v) => (gain ? points(v) : percent(v));
        frame.tell(box, () => ({ title: set.cell.label, rows: [["median", told(q2)], ["middle half", `${told(q1)} to ${told(q3)}`], ["lowest", told(sorted[0])], ["highest", told(sorted[sorted.length - 1])], ["clients", String(sorted.length)]] }));
      });
      frame.end(area.bottom + 42);
      return gain ? [{ label: "harmed: below training alone", colour: theme.harm, dot: true }] : null;
    },
  },
  {
    id: "gain", section: "clients", wide: true,
    title: () => `Who gains and who is harmed: ${aboutRun()}`,
    how: "Accuracy of each client minus its accuracy when it trains alone, worst first. Striped red bars are harmed clients, named below. A ring is the same client under the plain mean.",
    choices: () => [choose.setting(), choose.cell(), choose.seed()],
    there: () => rivals().some((cell) => runsOf(cell).some((run) => gains(run).length)),
    draw(frame) {
      const { theme } = frame, run = focusRun(), clients = gains(run);
      if (!clients.length) return nothing(frame, "Nobody knows yet how the clients of this run do alone.");
      const base = plainOf(focus()), other = base && base !== focus() ? runsOf(base).find((r) => r.seed === run.seed) : null;
      const before = new Map(other ? gains(other).map((c) => [c.id, c.gain]) : []);
      const area = { left: 40, right: frame.width - 4, top: 30, bottom: frame.narrow ? 230 : 290 };
      const [low, high] = roomy([0, ...clients.map((c) => c.gain), ...clients.map((c) => before.get(c.id))], { air: 0.08 });
      const y = linear(low, high, area.bottom, area.top), step = (area.right - area.left) / clients.length, wide = Math.min(30, step * 0.74);
      frame.yAxis(area, y, ticks(low, high, 6), (v) => minus(`${+(100 * v).toFixed(1)}`), "points above or below training alone");
      const stripes = `stripes-${theme.name}`;
      const pattern = frame.add("pattern", { id: stripes, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, frame.add("defs", {}));
      frame.add("rect", { width: 5, height: 5, fill: theme.harm }, pattern);
      frame.add("rect", { width: 1.4, height: 5, fill: theme.page, "fill-opacity": 0.55 }, pattern);
      clients.forEach((client, place) => {
        const x = area.left + step * (place + 0.5), harmed = client.gain < 0, top = Math.min(y(0), y(client.gain)), tall = Math.abs(y(client.gain) - y(0));
        const bar = frame.mark("rect", { x: (x - wide / 2).toFixed(1), y: top.toFixed(1), width: wide.toFixed(1), height: Math.max(1, tall).toFixed(1), rx: Math.min(2, wide / 4), fill: harmed ? `url(#${stripes})` : theme.gain });
        const tall_ = frame.add("rect", { x: x - step / 2, y: area.top, width: step, height: area.bottom - area.top, fill: "transparent" });
        const samples = Math.round(client.gain * client.test);
        frame.tell(tall_, () => ({ title: name(client.id, run), rows: [["gain", `${points(client.gain)} points`], ["of its test samples", `${samples > 0 ? "+" : ""}${fixed(samples, 0)} of ${client.test}`], ["together", percent(client.acc)], ["alone", percent(client.alone)], ...(before.has(client.id) ? [["gain with Mean", `${points(before.get(client.id))} points`]] : []), ["training samples", brief(client.train)]] }));
        bar.style.pointerEvents = "none";
        if (before.has(client.id) && step > 5) frame.add("circle", { cx: x.toFixed(1), cy: y(before.get(client.id)).toFixed(1), r: Math.min(3.6, step / 3), fill: theme.page, "fill-opacity": 0.7, stroke: theme.ink, "stroke-width": 1.3, "pointer-events": "none" });
        if (place % every(step, 15) === 0 || (harmed && step > 11)) frame.text(x, area.bottom + 15, String(client.id), { anchor: "middle", size: step < 17 ? 9.5 : 11, colour: harmed ? theme.harm : theme.soft, weight: harmed ? 700 : 400 });
      });
      frame.line(area.left, y(0), area.right, y(0), theme.axis, { "stroke-width": 1.5 });
      const average = mean(clients.map((c) => c.gain));
      frame.line(area.left, y(average), area.right, y(average), theme.ink, { "stroke-dasharray": "3 3", "stroke-opacity": 0.6, "pointer-events": "none" });
      frame.text(area.left + 4, y(average) - 5, `mean ${points(average)}`, { colour: theme.ink });
      frame.text((area.left + area.right) / 2, area.bottom + 34, "client", { anchor: "middle", weight: 600, colour: theme.ink });
      frame.end(area.bottom + 42);
      return [{ label: "gains", colour: theme.gain, box: true }, { label: "harmed", colour: theme.harm, box: true, striped: true }, before.size ? { label: `with ${base.rule}`, colour: theme.ink, ring: true } : null].filter(Boolean);
    },
  },
  {
    id: "harmed", section: "clients", wide: true, words: true,
    title: () => `The harmed clients, and what goes with it: ${aboutRun()}`,
    how: "What is known of each client that does worse than alone. A client with few samples, classes that nobody else has, or updates that the others' updates oppose is pulled away from its own optimum. These go together; they prove no cause.",
    choices: () => [choose.setting(), choose.cell(), choose.seed()],
    there: () => rivals().some((cell) => runsOf(cell).some((run) => gains(run).length)),
    write: (node) => harmedTable(node),
  },
  {
    id: "partition", section: "clients", wide: true,
    title: () => { const part = data.partitions[focusRun().part]; return part ? `Who holds what: ${part.name}, ${part.how}, seed ${focusRun().seed}` : "Who holds what"; },
    how: "A row is a client, a column a class; the area of a dot is the number of samples, the bar its total. Rows of harmed clients are red. Short rows and lonely dots are what makes a federation heterogeneous.",
    choices: () => [choose.setting(), choose.cell(), choose.seed()],
    there: () => data.partitions.length > 0,
    draw: (frame) => partition(frame),
  },
  {
    id: "reasons", section: "conflict",
    title: () => `What goes with the gain: ${REASONS[state.reason][0]}`,
    how: "A dot is a client, its size the training samples. If the dots rise to the right, clients with more of it gain more.",
    choices: () => [choose.setting(), choose.cell(), choose.seed(), { label: "against", key: "reason", options: Object.keys(REASONS).filter((key) => data.runs.some((run) => run.ids.some((id, i) => known(REASONS[key][2](run, i, id))))).map((key) => [key, REASONS[key][0]]) }],
    there: () => rivals().some((cell) => runsOf(cell).some((run) => gains(run).length)),
    draw(frame) {
      const { theme } = frame, run = focusRun(), [, label, of, told] = REASONS[state.reason];
      const dots = gains(run).map((c) => ({ ...c, x: of(run, c.i, c.id) })).filter((c) => known(c.x));
      if (!dots.length) return nothing(frame, "This run has not noted it.");
      const area = { left: 40, right: frame.width - 10, top: 30, bottom: Math.min(430, Math.max(260, frame.width * 0.82)) };
      const x = linear(...roomy(dots.map((c) => c.x)), area.left, area.right), [low, high] = roomy([0, ...dots.map((c) => c.gain)], { air: 0.1 }), y = linear(low, high, area.bottom, area.top);
      frame.yAxis(area, y, ticks(low, high, 6), (v) => minus(`${+(100 * v).toFixed(1)}`), "gain over training alone, points");
      frame.xAxis(area, x, ticks(...x.domain, 5), told, label);
      frame.line(area.left, y(0), area.right, y(0), theme.axis, { "stroke-width": 1.5 });
      const most = Math.max(...dots.map((c) => c.train), 1);
      for (const c of [...dots].sort((a, b) => b.train - a.train)) {
        const harmed = c.gain < 0, r = 3 + 8 * Math.sqrt(c.train / most);
        const dot = frame.mark("circle", { cx: x(c.x).toFixed(1), cy: y(c.gain).toFixed(1), r: r.toFixed(1), fill: harmed ? theme.harm : theme.gain, "fill-opacity": 0.6, stroke: harmed ? theme.harm : theme.gain });
        frame.tell(dot, () => ({ title: name(c.id, run), rows: [["gain", `${points(c.gain)} points`], [REASONS[state.reason][0], told(c.x)], ["training samples", brief(c.train)]] }));
        if (harmed && dots.length <= 60) frame.text(x(c.x), y(c.gain) + r + 11, String(c.id), { anchor: "middle", size: 10, weight: 700, colour: theme.harm });
      }
      const rho = correlation(dots.map((c) => [c.x, c.gain])), bound = 1.96 / Math.sqrt(Math.max(1, dots.length - 1));
      if (known(rho)) frame.text(area.right, frame.narrow ? area.top + 4 : area.top - 12, `rank correlation ${fixed(rho, 2)}${Math.abs(rho) < bound ? ", no more than chance" : ""}`, { anchor: "end" });
      frame.end(area.bottom + 42);
      return [{ label: "gains", colour: theme.gain, dot: true }, { label: "harmed", colour: theme.harm, dot: true }];
    },
  },
  {
    id: "cosines", section: "conflict",
    title: () => `Who pulls against whom: ${aboutRun()}`,
    how: "Cosine of two clients' updates. Blue: both want the same change. Red: what helps one hurts the other. White: not related. Labels of harmed clients are red.",
    choices: () => { const cos = focusRun().cos; return [choose.setting(), choose.cell(), choose.seed(), cos && { label: "round", key: "matrix", options: [["mean", "mean over rounds"], ...cos.rounds.map((r) => [String(r), `round ${r}`])] }, { label: "order", key: "order", options: [["id", "by number"], ["like", "alike together"], ["gain", "by gain"]] }]; },
    there: () => data.runs.some((run) => run.cos),
    draw(frame) {
      const { theme } = frame, run = focusRun(), cosines = cosinesOf(run);
      if (!cosines) return nothing(frame, "This run has not noted it.");
      const gain = new Map(gains(run).map((c) => [c.id, c.gain])), ids = Array.from({ length: cosines.n }, (_, i) => i);
      const order = state.order === "like" ? alike(cosines) : state.order === "gain" ? ids.sort((a, b) => (gain.get(a) ?? 9) - (gain.get(b) ?? 9)) : ids;
      const pairs = order.flatMap((i) => order.map((j) => cosines.of(i, j))), largest = Math.max(0.05, ...pairs.filter(known).map(Math.abs)), colour = ramp(theme.both);
      const left = 30, size = Math.min(frame.width - left - 4, 460), top = 22, step = size / cosines.n, x0 = left + Math.max(0, (frame.width - left - size) / 2);
      order.forEach((id, place) => {
        const harmed = gain.get(id) < 0, style = { size: step < 13 ? 9 : 10.5, colour: harmed ? theme.harm : theme.soft, weight: harmed ? 700 : 400 };
        if (place % every(step, 12) === 0 || (harmed && step >= 9)) frame.text(x0 - 7, top + step * (place + 0.5) + 3.5, String(id), { ...style, anchor: "end" });
        if (place % every(step, 15) === 0) frame.text(x0 + step * (place + 0.5), top - 7, String(id), { ...style, anchor: "middle" });
      });
      frame.heat({
        x: x0, y: top, width: size, height: size, rows: cosines.n, columns: cosines.n,
        colour: (r, c) => { const v = cosines.of(order[r], order[c]); return known(v) ? colour(0.5 + v / largest / 2) : null; },
        describe: (r, c) => {
          const [a, b] = [order[r], order[c]], v = cosines.of(a, b);
          return a === b ? { title: name(a, run), rows: gain.has(a) ? [["gain", `${points(gain.get(a))} points`]] : [] }
            : { title: `${name(a, run)} and ${name(b, run)}`, rows: [["cosine", known(v) ? fixed(v, 2) : "never together"], ["", known(v) ? (v < 0 ? "pull against each other" : "pull the same way") : ""]] };
        },
      });
      frame.scaleBar(x0, top + size + 14, Math.min(220, size * 0.5), colour, [fixed(-largest, 2), "0", fixed(largest, 2)], "cosine of updates");
      frame.end(top + size + 42);
      return null;
    },
  },
  {
    id: "conflict", section: "conflict",
    title: () => `How often updates conflict${wherever()}`,
    how: "Share of the pairs of clients whose updates point against each other (negative cosine), a mean over layers. The plain mean lets these cancel each other.",
    choices: () => [choose.setting()],
    there: () => cellsHere().some((cell) => cell.curves.conflict),
    draw: (frame) => { const across = state.across; state.across = "r"; const key = lines(frame, "conflict", "pairs in conflict", true); state.across = across; return key; },
  },
  {
    id: "layers", section: "conflict",
    title: () => `Where they conflict: ${focus().label}${wherever()}`,
    how: "Share of pairs in conflict for each layer (row, input first) over the rounds. Dark rows are the layers that clients disagree about.",
    choices: () => [choose.setting(), choose.cell()],
    there: () => rivals().some((cell) => cell.layers),
    draw(frame) {
      const { theme } = frame, layers = focus().layers;
      if (!layers) return nothing(frame, "This run has not noted it.");
      const bytes = bytesOf(layers.data), columns = layers.rounds.length, rows = layers.names.length, colour = ramp(theme.heat), of = (r, c) => (bytes[r * columns + c] === 255 ? null : bytes[r * columns + c] / 250);
      const most = Math.max(0.05, ...Array.from(bytes).filter((b) => b !== 255).map((b) => b / 250));
      const step = Math.max(frame.narrow ? 7 : 8, Math.min(24, 290 / rows)), tall = step * rows, plain = layers.names.map((layer) => layer.replace(/^body\./, ""));
      const left = Math.min(frame.width * 0.36, 10 + Math.max(...plain.map((n) => widthOf(n, 10.5)))), area = { left, right: frame.width - 4, top: 6, bottom: 6 + tall };
      plain.forEach((layer, r) => { if (r % every(step, 12) === 0) frame.text(left - 7, area.top + step * (r + 0.5) + 3.5, shorten(layer, left - 8, 10.5), { anchor: "end", size: 10.5 }); });
      frame.heat({ x: left, y: area.top, width: area.right - left, height: tall, rows, columns, colour: (r, c) => (known(of(r, c)) ? colour(of(r, c) / most) : null), describe: (r, c) => ({ title: layers.names[r], rows: [["round", String(layers.rounds[c])], ["pairs in conflict", percent(of(r, c))]] }) });
      roundsBelow(frame, area, layers.rounds);
      frame.scaleBar(left, area.bottom + 46, Math.min(220, (area.right - left) * 0.5), colour, ["0 %", "", percent(most, 0)], "pairs in conflict");
      frame.end(area.bottom + 74);
      return null;
    },
  },
  {
    id: "weights", section: "weights", wide: true,
    title: () => { const w = weightsOf(focusRun()); return `How much each client counts: ${focus().label}${w ? `, ${w.layer}` : ""}`; },
    how: "The rule's coefficient for each client (row) in each round; darker counts more, blank was not in that round's cohort. Bars are means over rounds, the tick the share of the samples, which the plain mean would give.",
    choices: () => { const w = focusRun().w; return [choose.setting(), choose.cell(), choose.seed(), w && w.names.length > 1 && { label: "layer", key: "layer", value: weightsOf(focusRun()).layer, steps: true, options: w.names.map((layer) => [layer, layer]) }]; },
    there: () => data.runs.some((run) => run.w),
    note: () => { const w = focusRun().w; return w && w.left ? `${w.left} layers in the middle are left out to keep this page small.` : ""; },
    draw: (frame) => weights(frame),
  },
  {
    id: "general", section: "general",
    title: () => `Own tests against ${state.general === "G" ? "everybody's" : "some others'"} tests${wherever()}`,
    how: "Up: a client's model is good at its own data. Right: it is also good at what other clients have. The dotted line joins those that no other beats in both. Crosses are standard deviations over seeds.",
    choices: () => [choose.setting(), { label: "against", key: "general", options: [["G", "everybody's (G)"], ["S", "some others' (S)"]] }],
    there: () => cellsHere().some((cell) => cell.numbers.G),
    draw: (frame) => general(frame),
  },
  {
    id: "slopes", section: "general",
    title: () => `Local, some others', everybody's${wherever()}`,
    how: "The same three accuracies side by side: L on own tests, S on own and some others', G on everybody's. A level line is a model that serves all; a steep one is a specialist.",
    choices: () => [choose.setting()],
    there: () => cellsHere().some((cell) => cell.numbers.G && cell.numbers.S),
    draw: (frame) => slopes(frame),
  },
  {
    id: "time", section: "cost",
    title: () => `Seconds a round${wherever()}`,
    how: "Training of all clients of a round on this machine, and the server's aggregation. Evaluation is ours and left out.",
    choices: () => [choose.setting()],
    there: () => cellsHere().some((cell) => known(cell.numbers.train)),
    draw: (frame) => stacked(frame, [{ key: "train", label: "training", colour: (t) => t.gain }, { key: "aggregate", label: "aggregation", colour: (t) => t.series[1] }], "s"),
  },
  {
    id: "bytes", section: "cost",
    title: () => `Megabytes a round${wherever()}`,
    how: "What all clients of a round receive (down) and send (up) together.",
    choices: () => [choose.setting()],
    there: () => cellsHere().some((cell) => known(cell.numbers.up)),
    draw: (frame) => stacked(frame, [{ key: "down", label: "down", colour: (t) => t.gain }, { key: "up", label: "up", colour: (t) => t.series[2] }], "MB"),
  },
];

// ---- the longer ones ----------------------------------------------------------------------------------------------

function nothing(frame, words) {
  frame.text(frame.width / 2, 60, words, { anchor: "middle", size: 12.5 });
  frame.end(110);
  return null;
}

function roundsBelow(frame, area, rounds) {
  const step = (area.right - area.left) / rounds.length, wanted = new Set(ticks(rounds[0], rounds[rounds.length - 1], frame.narrow ? 4 : 8));
  const at = rounds.map((round, c) => [round, c]).filter(([round]) => wanted.has(round));
  const place = new Map(at.length ? at : [[rounds[0], 0], [rounds[rounds.length - 1], rounds.length - 1]]);
  frame.xAxis(area, (round) => area.left + step * (place.get(round) + 0.5), [...place.keys()], String, "round");
}

function sweptCurves() {
  const here = data.settings[state.setting].options, curves = new Map(), ofSetting = !/^(method|rule)\./.test(state.sweep);
  for (const cell of data.cells) {
    const conditions = data.settings[cell.setting].options, options = { ...conditions, ...cell.options };
    if (Object.keys(here).some((key) => key !== state.sweep && conditions[key] !== here[key])) continue;
    if (cell.ref && !ofSetting) continue;
    const rest = Object.entries(cell.options).filter(([key]) => key !== state.sweep && /^(method|rule)\./.test(key)).map(([key, value]) => `${key.split(".")[1]}=${value}`);
    const label = [cell.methodName, cell.ruleName].filter(Boolean).join(" + ") + (rest.length ? ` (${rest.join(", ")})` : "");
    if (!curves.has(label)) curves.set(label, { label, cell, at: [] });
    curves.get(label).at.push([options[state.sweep], cell]);
  }
  const list = [...curves.values()], methods = [...new Set(list.filter((c) => !c.cell.ref).map((c) => c.cell.methodName))], rules = [...new Set(list.filter((c) => c.cell.ruleName && !c.cell.plain).map((c) => c.label.replace(c.cell.methodName, "")))];
  for (const curve of list) {
    const { cell } = curve, rule = rules.indexOf(curve.label.replace(cell.methodName, ""));
    curve.style = (theme) => cell.ref ? styleOf(cell, theme) : {
      colour: theme.series[(methods.length > 1 ? methods.indexOf(cell.methodName) : list.indexOf(curve)) % theme.series.length],
      dash: cell.plain ? DASHES.plain : DASHES.rules[Math.max(0, rule) % DASHES.rules.length],
      shape: cell.plain ? "ring" : ["circle", "square", "diamond", "triangle"][Math.max(0, rule) % 4],
    };
  }
  return list;
}

const nth = (n) => (n === 1 ? "" : `${n}${{ 1: "st", 2: "nd", 3: "rd" }[n % 100 > 10 && n % 100 < 14 ? 0 : n % 10] || "th"}`);

function harmedTable(node) {
  const run = focusRun(), all = gains(run), harmed = all.filter((c) => c.gain < 0);
  if (!all.length) return node.replaceChildren(html("p", { class: "quiet" }, "Nobody knows yet how the clients of this run do alone."));
  if (!harmed.length) return node.replaceChildren(html("p", { class: "quiet" }, `Nobody: all ${all.length} clients do at least as well as alone.`));
  const was = state.matrix;
  state.matrix = "mean";
  const cosines = cosinesOf(run), part = data.partitions[run.part];
  state.matrix = was;
  const ranks = [...all].sort((a, b) => a.train - b.train).map((c) => c.id);
  const opponents = (id) => (cosines ? run.ids.map((other) => [other, cosines.of(id, other)]).filter(([, v]) => known(v) && v < 0).sort((a, b) => a[1] - b[1]) : []);
  const held = (id) => { const row = part.counts[id], total = sum(row), top = row.map((n, k) => [n, k]).filter(([n]) => n).sort((a, b) => b[0] - a[0]); return top.slice(0, 3).map(([n, k]) => `${k} (${Math.round((100 * n) / total)} %)`).join(", ") + (top.length > 3 ? ` +${top.length - 3}` : ""); };
  const columns = [
    ["client", (c) => html("b", { class: "harm" }, String(c.id))],
    ["loss, points", (c) => html("span", { class: "harm" }, points(c.gain))],
    ["test samples lost", (c) => `${Math.max(0, Math.round(-c.gain * c.test))} of ${c.test}`],
    ["training samples", (c) => `${brief(c.train)} (${`${nth(ranks.indexOf(c.id) + 1)} smallest`.trim()})`],
    part && ["classes (share)", (c) => held(c.id)],
    run.overlap && ["class overlap", (c) => percent(run.overlap[c.id], 0)],
    cosines && ["agreement", (c) => (known(run.agree[c.id]) ? fixed(run.agree[c.id], 2) : "–")],
    cosines && ["opposed most by", (c) => opponents(c.id).slice(0, 3).map(([other, v]) => `${other} (${fixed(v, 2)})`).join(", ") || "nobody"],
  ].filter(Boolean);
  const head = html("tr", {}, columns.map(([label]) => html("th", { scope: "col" }, label)));
  const rows = harmed.slice(0, 40).map((c) => html("tr", {}, columns.map(([, cell]) => html("td", {}, cell(c)))));
  const parts = [html("div", { class: "scroll" }, html("table", { class: "facts" }, html("thead", {}, head), html("tbody", {}, rows)))];
  if (harmed.length > 40) parts.push(html("p", { class: "quiet" }, `and ${harmed.length - 40} more`));
  return node.replaceChildren(...parts);
}

function partition(frame) {
  const { theme } = frame, run = focusRun(), part = data.partitions[run.part];
  if (!part) return nothing(frame, "This run has not noted it.");
  const harmed = new Set(gains(run).filter((c) => c.gain < 0).map((c) => c.id)), counts = part.counts.slice(0, 200), classes = counts[0].length, most = Math.max(...counts.flat(), 1), sizes = counts.map(sum), largest = Math.max(...sizes, 1);
  const bars = frame.narrow ? 54 : 110, left = 34, across = (frame.width - left - bars - (frame.narrow ? 36 : 56)) / classes, down = Math.max(counts.length > 60 ? 6 : 11, Math.min(26, 520 / counts.length));
  const area = { left, right: left + across * classes, top: 18, bottom: 18 + down * counts.length }, radius = Math.min(0.6 * down, Math.max(across, 0.5 * down) * 0.62), from = area.right + (frame.narrow ? 8 : 18);
  frame.text(from, 10, "samples", { weight: 600, colour: theme.ink });
  const hue = (k) => theme.series[k % theme.series.length];
  counts.forEach((row, client) => {
    const y = area.top + down * (client + 0.5), red = harmed.has(client);
    frame.line(left, y, area.right, y);
    if (client % every(down, 12) === 0 || (red && down >= 9)) frame.text(left - 8, y + 3.5, String(client), { anchor: "end", size: down < 13 ? 9.5 : 11, colour: red ? theme.harm : theme.soft, weight: red ? 700 : 400 });
    frame.add("rect", { x: from, y: y - Math.min(0.5 * down, 10) / 2, width: Math.max(1, (bars * sizes[client]) / largest).toFixed(1), height: Math.min(0.5 * down, 10), rx: 2, fill: red ? theme.harm : theme.quiet });
    if (down >= 11) frame.text(from + (bars * sizes[client]) / largest + 6, y + 3.5, brief(sizes[client]), { size: 10 });
  });
  for (let k = 0; k < classes; k++) {
    if (k % every(across, 20) === 0) frame.text(left + across * (k + 0.5), area.bottom + 14, String(k), { anchor: "middle", size: 10 });
    const group = frame.add("g", { fill: hue(k), "fill-opacity": 0.8 });
    counts.forEach((row, client) => { if (row[k]) frame.mark("circle", { cx: (left + across * (k + 0.5)).toFixed(1), cy: (area.top + down * (client + 0.5)).toFixed(1), r: Math.max(0.8, radius * Math.sqrt(row[k] / most)).toFixed(2) }, group); });
  }
  frame.text((area.left + area.right) / 2, area.bottom + 33, "class", { anchor: "middle", weight: 600, colour: theme.ink });
  const pad = frame.add("rect", { x: left, y: area.top, width: area.right - left, height: area.bottom - area.top, fill: "transparent" });
  pad.addEventListener("pointermove", (event) => {
    const box = pad.getBoundingClientRect(), k = Math.min(classes - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * classes))), client = Math.min(counts.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * counts.length)));
    tip.show(event, name(client, run), [[`class ${k}`, brief(counts[client][k])], ["all its samples", brief(sizes[client])], ["classes held", `${counts[client].filter(Boolean).length} of ${classes}`]]);
  });
  pad.addEventListener("pointerleave", () => tip.hide());
  frame.end(area.bottom + 40);
  return harmed.size ? [{ label: "harmed client", colour: theme.harm, box: true }] : null;
}

function weights(frame) {
  const { theme } = frame, run = focusRun(), w = weightsOf(run);
  if (!w) return nothing(frame, runsOf(focus()).some((other) => other.w) ? "To keep this page small it holds the weights of another seed only." : "This run has not noted it.");
  const part = data.partitions[run.part], every_ = [], low = { value: 0 };
  for (let i = 0; i < w.clients; i++) for (let c = 0; c < w.columns; c++) { const v = w.of(i, c); if (known(v)) { every_.push(v); low.value = Math.min(low.value, v); } }
  every_.sort((a, b) => a - b);
  const high = Math.max(quantile(every_, 0.995), 1e-9), clipped = every_[every_.length - 1] > high * 1.001, signed = low.value < -1e-6, colour = ramp(signed ? theme.both : theme.ramp);
  // by the square root: the many small coefficients stay visible beside the few large ones
  const root = (v) => Math.sign(v) * Math.sqrt(Math.abs(v) / high), shade = (v) => (signed ? colour(0.5 + root(v) / 2) : colour(root(v)));
  const means = Array.from({ length: w.clients }, (_, i) => mean(Array.from({ length: w.columns }, (_, c) => w.of(i, c)).filter(known)));
  const shares = part ? part.counts.map((row) => sum(row) / sum(part.counts.map(sum))) : [];
  const side = frame.narrow ? 54 : 120, step = Math.max(w.clients > 60 ? 5 : 10, Math.min(22, 440 / w.clients)), area = { left: 34, right: frame.width - side - 14, top: 20, bottom: 20 + step * w.clients };
  const longest = Math.max(...means.filter(known), ...shares, 1e-9), from = area.right + 12;
  const harmed = new Set(gains(run).filter((c) => c.gain < 0).map((c) => c.id));
  frame.text(0, 10, "client", { weight: 600, colour: theme.ink });
  frame.text(from, 10, "mean", { weight: 600, colour: theme.ink });
  for (let i = 0; i < w.clients; i++) {
    const y = area.top + step * (i + 0.5), tall = Math.min(0.6 * step, 10), red = harmed.has(i);
    if (i % every(step, 11) === 0) frame.text(area.left - 7, y + 3.5, String(i), { anchor: "end", size: 10, colour: red ? theme.harm : theme.soft, weight: red ? 700 : 400 });
    if (known(means[i])) {
      const bar = frame.mark("rect", { x: from, y: y - tall / 2, width: Math.max(1, (side * Math.max(0, means[i])) / longest).toFixed(1), height: tall, rx: 1.5, fill: theme.series[0], "fill-opacity": 0.75 });
      frame.tell(bar, () => ({ title: name(i, run), rows: [["mean coefficient", fixed(means[i], 3)], ...(shares.length ? [["share of samples", fixed(shares[i], 3)]] : [])] }));
    }
    if (shares.length) frame.line(from + (side * shares[i]) / longest, y - tall / 2 - 1, from + (side * shares[i]) / longest, y + tall / 2 + 1, theme.ink, { "stroke-width": 1.6 });
  }
  frame.heat({
    x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, rows: w.clients, columns: w.columns,
    colour: (r, c) => { const v = w.of(r, c); return known(v) ? shade(v) : null; },
    describe: (r, c) => ({ title: name(r, run), rows: [["round", String(w.rounds[c])], ["coefficient", known(w.of(r, c)) ? fixed(w.of(r, c), 3) : "not in this round"]] }),
  });
  roundsBelow(frame, area, w.rounds);
  frame.scaleBar(area.left, area.bottom + 46, Math.min(220, (area.right - area.left) * 0.5), colour, [signed ? brief(-high) : "0", signed ? "0" : brief(high / 4), `${clipped ? "≥ " : ""}${brief(high)}`], "coefficient");
  frame.end(area.bottom + 74);
  return shares.length ? [{ label: "share of the samples", colour: theme.ink, tick: true }] : null;
}

function general(frame) {
  const { theme } = frame, key = state.general, cells = shown(cellsHere().filter((cell) => cell.numbers[key] && cell.numbers.acc)), all = cellsHere().filter((cell) => cell.numbers[key]);
  const area = { left: 46, right: frame.width - 12, top: 30, bottom: 320 };
  const both = (of) => cells.flatMap((cell) => { const [m, d] = cell.numbers[of]; return [m - (d || 0), m + (d || 0)]; });
  const x = linear(...roomy(both(key), { floor: 0, ceiling: 1, air: 0.1 }), area.left, area.right), [low, high] = roomy(both("acc"), { floor: 0, ceiling: 1, air: 0.1 }), y = linear(low, high, area.bottom, area.top), told = (v) => `${+(100 * v).toFixed(1)} %`;
  frame.yAxis(area, y, ticks(low, high, 6), told, "own tests (L-acc)");
  frame.xAxis(area, x, ticks(...x.domain, 5), told, key === "G" ? "everybody's tests (G-acc)" : "own and some others' tests (S-acc)", { grid: true });
  const front = cells.filter((cell) => !cells.some((other) => other !== cell && other.numbers[key][0] >= cell.numbers[key][0] && other.numbers.acc[0] >= cell.numbers.acc[0] && (other.numbers[key][0] > cell.numbers[key][0] || other.numbers.acc[0] > cell.numbers.acc[0]))).sort((a, b) => a.numbers[key][0] - b.numbers[key][0]);
  if (front.length > 1) frame.add("path", { d: pathOf(front.map((cell) => x(cell.numbers[key][0])), front.map((cell) => y(cell.numbers.acc[0]))), fill: "none", stroke: theme.faint, "stroke-width": 1.3, "stroke-dasharray": "1.5 4", "stroke-linecap": "round" });
  for (const cell of cells) {
    const [gx, dx] = cell.numbers[key], [gy, dy] = cell.numbers.acc, { colour, shape } = styleOf(cell, theme);
    if (dx) frame.line(x(gx - dx), y(gy), x(gx + dx), y(gy), colour, { "stroke-opacity": 0.45, "stroke-width": 1.3 });
    if (dy) frame.line(x(gx), y(gy - dy), x(gx), y(gy + dy), colour, { "stroke-opacity": 0.45, "stroke-width": 1.3 });
  }
  for (const cell of cells) {
    const { colour, shape } = styleOf(cell, theme), said = (number) => (number ? percent(number[0]) + (number[1] ? ` ± ${fixed(100 * number[1], 1)}` : "") : "–");
    frame.tell(frame.marker(x(cell.numbers[key][0]), y(cell.numbers.acc[0]), shape, colour, 5.5), () => ({ title: cell.label, rows: [["own tests (L)", said(cell.numbers.acc)], ["own and some others' (S)", said(cell.numbers.S)], ["everybody's (G)", said(cell.numbers.G)]] }));
  }
  frame.end(area.bottom + 42);
  return all.map((cell) => ({ ...keyOf(cell, theme), point: true }));
}

function slopes(frame) {
  const { theme } = frame, all = cellsHere().filter((cell) => cell.numbers.G && cell.numbers.S && cell.numbers.acc), cells = shown(all), kinds = ["acc", "S", "G"];
  const area = { left: 46, right: frame.width - 12, top: 30, bottom: 320 }, at = (k) => area.left + 30 + (k * (area.right - area.left - 60)) / 2;
  const [low, high] = roomy(cells.flatMap((cell) => kinds.map((kind) => cell.numbers[kind][0])), { floor: 0, ceiling: 1 }), y = linear(low, high, area.bottom, area.top);
  frame.yAxis(area, y, ticks(low, high, 6), (v) => `${+(100 * v).toFixed(1)} %`, "accuracy");
  ["own (L)", "some (S)", "all (G)"].forEach((label, k) => {
    frame.line(at(k), area.top, at(k), area.bottom, theme.axis);
    frame.text(at(k), area.bottom + 18, label, { anchor: "middle", weight: 600, colour: theme.ink });
  });
  for (const cell of cells) {
    const { colour, dash, shape } = styleOf(cell, theme);
    frame.mark("path", { d: pathOf(kinds.map((_, k) => at(k)), kinds.map((kind) => y(cell.numbers[kind][0]))), fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash });
    kinds.forEach((kind, k) => frame.tell(frame.marker(at(k), y(cell.numbers[kind][0]), shape, colour, 3.8), () => ({ title: cell.label, rows: [["own tests (L)", percent(cell.numbers.acc[0])], ["own and some others' (S)", percent(cell.numbers.S[0])], ["everybody's (G)", percent(cell.numbers.G[0])]] })));
  }
  frame.end(area.bottom + 42);
  return all.map((cell) => ({ ...keyOf(cell, theme), point: true }));
}
