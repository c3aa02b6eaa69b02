// Learning curves over rounds, and results over the values of an option.

const CURVES = data.curves; // by key: label, whether it is a share
const ACROSS = {
  r: ["round", "round"],
  s: ["seconds", "seconds of training and aggregation"],
  b: ["MB", "MB sent and received"],
};
const SWEPT = {
  value: ["deciding metric", (cell) => cell.numbers.value],
  gain: ["gain over local training", ({ mean: found }) => found && [found.gain, (found.high - found.low) / 2]],
  diff: [`difference to ${data.base}`, (cell) => cell.diff],
  worst: ["worst tenth", (cell) => cell.numbers.worst],
  conflict: ["conflict rate", (cell) => [cell.numbers.conflict, null]],
};

// Mean and band of every method: `what` is a curve of data.cells, `across` its x; shares are percentages.
function lines(frame, what, { across, label, share }) {
  const { theme } = frame,
    all = cellsHere().filter((cell) => cell.curves[what]);
  const sets = shown(all).map((cell) => ({ cell, ...cell.curves[what], xs: cell.curves[what][across] }));
  const area = { left: 46, right: frame.width - 8, top: 30, bottom: frame.narrow || paper ? 250 : 330 };
  const reach = sets.flatMap((set) => set.m.flatMap((m, i) => (set.d ? [m - set.d[i], m + set.d[i]] : [m])));
  const [low, high] = roomy(reach, { floor: 0, ceiling: share ? 1 : Infinity });
  const x = linear(...(sets.length ? extent(sets.flatMap((set) => set.xs)) : [0, 1]), area.left, area.right);
  const y = linear(low, high, area.bottom, area.top),
    clipped = (value) => y(Math.max(low, Math.min(high, value)));
  frame.yAxis(area, y, ticks(low, high, 6), share ? inPercent : brief, label);
  const steps = ticks(...x.domain, frame.narrow ? 4 : 8).filter((step) => across !== "r" || Number.isInteger(step));
  frame.xAxis(area, x, steps, brief, ACROSS[across][1]);
  for (const set of sets) {
    const { colour, dash } = styleOf(set.cell, theme),
      xs = set.xs.map(x),
      mine = { "data-of": set.cell.label };
    if (set.d) {
      const [below, above] = [-1, 1].map((side) => set.m.map((m, i) => clipped(m + side * set.d[i])));
      const faint = sets.length > 5 ? 0.08 : 0.14;
      frame.add("path", { d: bandOf(xs, below, above), fill: colour, "fill-opacity": faint, ...mine });
    }
    if (xs.length === 1) frame.marker(xs[0], y(set.m[0]), "circle", colour, 3);
    else frame.curve(xs, set.m.map(y), colour, dash, mine);
  }
  const grid = [...new Set(sets.flatMap((set) => set.xs))].sort((a, b) => a - b);
  const format = (value) => (share ? fixed(100 * value, 1) : brief(value));
  frame.follow(area, grid.map(x), (at) => {
    const near = sets
      .map((set) => {
        const off = set.xs.map((value) => Math.abs(value - grid[at])),
          i = off.indexOf(Math.min(...off));
        return { set, m: set.m[i], d: set.d?.[i], exact: !off[i], colour: styleOf(set.cell, theme).colour };
      })
      .filter(({ exact }) => exact || across !== "r")
      .sort((a, b) => b.m - a.m);
    return {
      title: `${ACROSS[across][0]} ${brief(grid[at])}`,
      rows: near.slice(0, 14).map(({ set, m, d, colour }) => {
        return [set.cell.label, `${format(m)}${known(d) ? ` ± ${format(d)}` : ""}${share ? " %" : ""}`, colour];
      }),
      at: near.filter(({ exact }) => exact).map(({ m, colour }) => [y(m), colour]),
    };
  });
  frame.end(area.bottom + 42);
  return all.map((cell) => keyOf(cell, theme));
}

// Cells that differ only in the swept option, under the chosen conditions, form a curve.
function sweptCurves(swept = state.sweep) {
  const conditions = data.settings[state.setting].options,
    curves = new Map();
  const part = (key) => key.split(".")[0],
    own = (key) => ["method", "rule"].includes(part(key));
  for (const cell of data.cells) {
    const options = data.settings[cell.setting].options;
    if (Object.keys(conditions).some((key) => key !== swept && conditions[key] !== options[key])) continue;
    if (cell.ref && own(swept)) continue;
    const rest = Object.entries(cell.options).filter(([key]) => own(key) && key !== swept);
    const more = rest.length ? ` (${rest.map(([key, value]) => `${key.split(".")[1]}=${value}`).join(", ")})` : "";
    const label = [cell.methodName, cell.ruleName].filter(Boolean).join(" + ") + more;
    if (!curves.has(label)) curves.set(label, { label, cell, rule: cell.ruleName + more, at: [] });
    curves.get(label).at.push([{ ...options, ...cell.options }[swept], cell]);
  }
  const list = [...curves.values()],
    others = list.filter((curve) => !curve.cell.ref);
  const methods = [...new Set(others.map((curve) => curve.cell.methodName))];
  const rules = [...new Set(others.filter((curve) => !curve.cell.plain).map((curve) => curve.rule))];
  list.forEach((curve) => {
    const place = { line: curve, lines: others, method: curve.cell.methodName, methods, rule: curve.rule, rules };
    curve.style = (theme) => looks(theme, curve.cell, place);
  });
  return list;
}

// Options with several values for some method and rule; tuning alone leaves one value for each.
function sweepable() {
  const several = ({ at }) => new Set(at.map(([value]) => value).filter((value) => value !== undefined)).size > 1;
  return data.varying.filter((option) => sweptCurves(option.key).some(several));
}

PLOTS.push({
  id: "convergence",
  section: "learning",
  wide: true,
  title: () => `${upper(CURVES[state.curve][0])} by ${ACROSS[state.across][0]}${here()}`,
  how: "Each line is the mean over seeds, and its band is ± one standard deviation. Dashed: configurations with the rule Mean. Grey: local training. Click a name to hide or show it.",
  there: () => cellsHere().some((cell) => Object.keys(CURVES).some((key) => cell.curves[key])),
  choices: () => [
    choose.setting(),
    choose.of(
      "show",
      "curve",
      CURVES,
      Object.keys(CURVES).filter((key) => cellsHere().some((cell) => cell.curves[key])),
    ),
    choose.of("over", "across", ACROSS, Object.keys(ACROSS)),
  ],
  draw: (frame) =>
    lines(frame, state.curve, { across: state.across, label: CURVES[state.curve][0], share: CURVES[state.curve][1] }),
});

// The metric that decides is called by its name.
const sweptLabel = () => (state.sweepOf === "value" ? deciding().label : SWEPT[state.sweepOf][0]);
const sweptName = () => data.varying.find((option) => option.key === state.sweep).name;

PLOTS.push({
  id: "sweep",
  section: "learning",
  wide: true,
  title: () => `${upper(sweptLabel())} by ${sweptName()}`,
  how: "One curve per method and rule, with the standard deviation over seeds (for gains and differences: the 95 % interval). A horizontal line is a rule that does not have this option.",
  there: () => sweepable().length > 0,
  choices: () => [
    { label: "option", key: "sweep", options: sweepable().map((option) => [option.key, option.name]) },
    data.varying.length > 1 && choose.setting(),
    choose.of(
      "show",
      "sweepOf",
      SWEPT,
      Object.keys(SWEPT).filter((key) => data.cells.some((cell) => known(SWEPT[key][1](cell)?.[0]))),
    ),
  ],
  draw(frame) {
    const { theme } = frame,
      label = sweptLabel(),
      number = SWEPT[state.sweepOf][1],
      difference = ["gain", "diff"].includes(state.sweepOf),
      plain = !deciding().share && state.sweepOf === "value"; // in the metric's own unit
    const all = sweptCurves(),
      curves = all.filter((curve) => !state.hidden[curve.label]);
    const values = [...new Set(all.flatMap((curve) => curve.at.map(([value]) => value)))].filter(
      (value) => value !== undefined,
    );
    const numeric = values.every((value) => typeof value === "number");
    if (numeric) values.sort((a, b) => a - b);
    const area = { left: 50, right: frame.width - 14, top: 30, bottom: frame.narrow ? 250 : 320 };
    const [first, last] = [values[0], values[values.length - 1]],
      from = area.left + 18,
      to = area.right - 18;
    const x = !numeric
      ? (value) => area.left + ((values.indexOf(value) + 0.5) / values.length) * (area.right - area.left)
      : (first > 0 && last / first >= 30 ? logarithmic : linear)(first, last, from, to);
    const reach = curves.flatMap((curve) => curve.at.map(([, cell]) => number(cell)).filter((n) => known(n?.[0])));
    const [low, high] = roomy(reach.flatMap(([m, d]) => [m - (d || 0), m + (d || 0)])),
      y = linear(low, high, area.bottom, area.top);
    frame.yAxis(
      area,
      y,
      ticks(low, high, 6),
      difference ? gainTick : plain ? brief : inPercent,
      difference ? `${label}, ${gainUnit()}` : label,
    );
    frame.xAxis(area, x, values, (value) => (numeric ? brief(value) : String(value)), sweptName());
    if (low < 0 && high > 0) frame.line(area.left, y(0), area.right, y(0), theme.axis);
    const range = (m, d) => (d ? ` ${interval({ low: m - d, high: m + d })}` : "");
    const format = ([m, d]) => (difference ? gainOf(m) + range(m, d) : plain ? brief(m) : spread([m, d]));
    const apart = Math.min(4, 26 / Math.max(1, curves.length)); // so that error bars stand side by side
    curves.forEach((curve, place) => {
      const { colour, dash, shape } = curve.style(theme),
        at = (value) => x(value) + (place - (curves.length - 1) / 2) * apart;
      const there = curve.at.filter(([, cell]) => known(number(cell)?.[0])),
        mine = { "data-of": curve.label };
      const steps = there
        .filter(([value]) => value !== undefined)
        .sort((a, b) => values.indexOf(a[0]) - values.indexOf(b[0]));
      for (const [, cell] of there.filter(([value]) => value === undefined)) {
        const level = y(number(cell)[0]),
          line = frame.curve([area.left, area.right], [level, level], colour, dash, mine);
        frame.tell(line, () => ({ title: curve.label, rows: [[label, format(number(cell))]] }));
      }
      if (steps.length > 1)
        frame.curve(
          steps.map(([value]) => at(value)),
          steps.map(([, cell]) => y(number(cell)[0])),
          colour,
          dash,
          mine,
        );
      for (const [value, cell] of steps) {
        const [m, d] = number(cell);
        if (d)
          frame.line(at(value), y(m - d), at(value), y(m + d), colour, {
            "stroke-width": 1.5,
            "stroke-opacity": 0.55,
            ...mine,
          });
        const mark = frame.marker(at(value), y(m), shape, colour, 4.5);
        frame.tell(mark, () => ({
          title: curve.label,
          rows: [
            [sweptName(), numeric ? brief(value) : String(value)],
            [label, format([m, d])],
          ],
        }));
      }
    });
    frame.end(area.bottom + 42);
    return all.map((curve) => ({ cell: curve.cell, label: curve.label, ...curve.style(theme) }));
  },
});
