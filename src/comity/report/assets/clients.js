// Every client: the effect of joining, over all repetitions. Numbers and states are those of the verdict.

const MOST_ROWS = 12;

PLOTS.push({
  id: "rows",
  section: "clients",
  wide: true,
  title: () => `${focus().label} against local training${here()}`,
  how: "Dot and line: the gain with its 95 % confidence interval. Worse: the loss is significant. Not worse: a loss above the margin is ruled out. Undecided: neither; the tests detect only losses of the size given or more.",
  there: anyGains,
  choices: () => [choose.setting(), choose.cell()],
  note() {
    const rows = clientsOf(focus()),
      count = (name) => rows.filter((row) => row.state === name).length;
    return known(rows[0]?.gain)
      ? `${rows.length} clients: ${Object.keys(STATES)
          .map((name) => `${count(name)} ${name}`)
          .join(", ")}.`
      : "";
  },
  write(node) {
    const rows = clientsOf(focus());
    if (!known(rows[0]?.gain)) {
      const words = "Not compared with local training yet.";
      node.replaceChildren(html("p", { class: "quiet" }, words));
      return null;
    }
    const average = (key) => mean(rows.map((row) => row[key]).filter(known)),
      whole = { name: "mean of all clients", ...focus().mean, value: average("value"), local: average("local") };
    const visible = [...(focus().mean ? [whole] : []), ...rows.slice(0, state.all ? rows.length : MOST_ROWS)],
      reach = visible.flatMap((row) => [row.gain, row.low, row.high]),
      width = paper ? 120 : node.clientWidth < 620 ? node.clientWidth : Math.round(0.36 * node.clientWidth),
      x = linear(...roomy([0, -deciding().margin, ...reach], { air: 0.04 }), 6, width - 6);
    const labels = ["client", `${deciding().label}: local → joined`, `gain, ${gainUnit()}`, "95 % interval", "state"];
    const axis = rowOf("", ["", "", scaleOf(x, width), ""]);
    const table = tableOf(
      "clients",
      labels,
      visible.map((row) => clientRow(row, x, width)),
      html("tfoot", { "aria-hidden": "true" }, axis),
    );
    node.replaceChildren(html("div", scrolling(this.title()), table), foldOf(rows.length));
    const present = Object.entries(STATES).filter(([name]) => visible.some((row) => row.state === name));
    return [
      ...present.map(([label, colour]) => ({ label, colour: themeNow()[colour], dot: true })),
      { label: `margin, ${inGain(-deciding().margin)}`, colour: themeNow().faint, dash: "2 3" },
    ];
  },
});

// The button that switches between all clients and the first ones.
function foldOf(count) {
  if (count <= MOST_ROWS) return "";
  const turn = () => {
    state.all = !state.all;
    refresh();
  };
  const words = state.all ? `Show the first ${MOST_ROWS}` : `Show all ${count} clients`;
  return html("button", { type: "button", class: "fold", onclick: turn }, words);
}

function clientRow(row, x, width) {
  const small = (words, kind) => (words ? html("small", { class: kind }, words) : null);
  const size = row.id === undefined ? "" : `${brief(row.train)} samples, ${brief(row.tests)} tests`;
  const unseen = !known(row.detectable) || (deciding().share && row.detectable >= 1),
    power = unseen ? "too few tests" : `detects losses ≥ ${inGain(row.detectable)}`;
  return rowOf(
    [row.name, small(size)],
    [
      [`${inMetric(row.local)} → ${inMetric(row.value)}`, small(row.constant && "one class for all", "harm")],
      [gainOf(row.gain), small(interval(row))],
      barOf(row, x, width),
      [
        html("span", { class: `state ${row.state.replace(" ", "-")}` }, row.state),
        small(row.state === "undecided" && power),
      ],
    ],
  );
}

// A gain with its interval, between zero and the margin.
function barOf(row, x, width) {
  const frame = new Frame(width, themeNow()),
    colour = frame.theme[STATES[row.state]];
  frame.line(x(0), 0, x(0), 26, frame.theme.faint);
  const edge = x(-deciding().margin);
  frame.line(edge, 0, edge, 26, frame.theme.faint, { "stroke-dasharray": "2 3" });
  if (known(row.low))
    frame.line(x(row.low), 13, x(row.high), 13, colour, {
      "stroke-width": 3,
      "stroke-opacity": 0.55,
      "stroke-linecap": "round",
    });
  frame.dot(x(row.gain), 13, 4.5, colour);
  frame.end(26).root.setAttribute("aria-hidden", "true");
  return frame.root;
}

function scaleOf(x, width) {
  const frame = new Frame(width, themeNow());
  frame.xAxis({ left: 0, right: width, top: 0, bottom: 0 }, x, ticks(...x.domain, 5), gainTick, "");
  return frame.end(20).root;
}

PLOTS.push({
  id: "clients",
  section: "spread",
  wide: true,
  title: () =>
    `${state.box === "gain" ? "Gain over local training" : upper(deciding().label)} of every client${here()}`,
  how: "Each dot is a client, over all repetitions; red clients are worse. The box contains the middle half of the clients, with a line at the median. The whiskers reach to the last client within 1.5 times the length of the box.",
  there: () => cellsHere().some((cell) => clientsOf(cell).length),
  choices: () => [
    choose.setting(),
    anyGains() && {
      label: "show",
      key: "box",
      options: [
        ["gain", "gain"],
        ["value", deciding().label],
      ],
    },
  ],
  draw(frame) {
    const { theme } = frame,
      gain = state.box === "gain" && anyGains(),
      asText = gain ? gainOf : inMetric;
    const clientsIn = (cell) =>
      clientsOf(cell)
        .map((row) => ({ row, value: gain ? row.gain : row.value, worse: row.state === "worse" }))
        .filter(({ value }) => known(value));
    const sets = cellsHere()
      .map((cell) => ({ cell, clients: clientsIn(cell) }))
      .filter(({ clients }) => clients.length);
    const rows = rowsOf(
      frame,
      sets.map(({ cell }) => cell),
      { wide: paper ? 20 : 38, narrow: 50 },
    );
    const area = { ...rows, left: rows.left + 4, right: frame.width - 10 };
    const [low, high] = roomy(
      sets.flatMap(({ clients }) => clients.map(({ value }) => value)),
      gain ? {} : { floor: 0, ceiling: deciding().share ? 1 : Infinity },
    );
    const x = linear(low, high, area.left + 4, area.right - 4);
    const label = gain ? `gain over local training, ${gainUnit()}` : deciding().label;
    frame.xAxis(area, x, ticks(low, high, frame.narrow ? 4 : 8), gain ? gainTick : inMetric, label, { grid: true });
    if (gain && low < 0 && high > 0) frame.line(x(0), area.top, x(0), area.bottom, theme.axis, { "stroke-width": 1.5 });
    sets.forEach(({ cell, clients }, row) => {
      const { colour } = styleOf(cell, theme),
        y = rows.middle(row),
        half = paper ? 6 : 9,
        thin = { "stroke-width": 1.4 };
      const sorted = clients.map(({ value }) => value).sort((a, b) => a - b);
      const [q1, q2, q3] = [0.25, 0.5, 0.75].map((p) => quantile(sorted, p)),
        reach = 1.5 * (q3 - q1);
      const inside = sorted.filter((value) => value >= q1 - reach && value <= q3 + reach),
        [first, last] = [Math.min(q1, inside[0]), Math.max(q3, inside[inside.length - 1])];
      frame.line(x(first), y, x(q1), y, colour, thin);
      frame.line(x(q3), y, x(last), y, colour, thin);
      for (const end of [first, last]) frame.line(x(end), y - 4, x(end), y + 4, colour, thin);
      const filled = { "fill-opacity": cell.plain ? 0.06 : 0.2, stroke: colour, rx: 2, ...thin };
      const box = frame.bar(x(q1), y - half, Math.max(1, x(q3) - x(q1)), 2 * half, colour, filled);
      frame.tell(box, () => ({
        title: cell.label,
        rows: [
          ["median", asText(q2)],
          ["middle half", `${asText(q1)} to ${asText(q3)}`],
          ["lowest", asText(sorted[0])],
          ["highest", asText(sorted[sorted.length - 1])],
          ["clients", String(sorted.length)],
        ],
      }));
      clients.forEach(({ row: client, value, worse }, i) => {
        const up = (((i * 0.618) % 1) - 0.5) * 1.7 * half; // spread evenly, the same every time
        const dot = frame.dot(x(value), y + up, clients.length > 200 ? 1.6 : 2.4, worse ? theme.harm : colour, {
          "fill-opacity": worse ? 0.85 : 0.55,
        });
        frame.tell(dot, () => ({ title: client.name, rows: [[cell.label, asText(value)]] }));
      });
      frame.line(x(q2), y - half, x(q2), y + half, theme.ink, { "stroke-width": 2.2 });
    });
    frame.end(area.bottom + 42);
    return [{ label: "worse", colour: theme.harm, dot: true }];
  },
});

PLOTS.push({
  id: "partition",
  section: "spread",
  wide: true,
  title() {
    const part = partitionOf(focusRun());
    return part
      ? `Samples per client and class: ${part.name}, ${part.how}, seed ${focusRun().seed}`
      : "Samples per client and class";
  },
  how: "Each row is a client, each column a class. The area of a dot shows the number of samples; the bar shows their total. The darker a dot, the larger the client's share of all samples of that class. Clients that are worse are red.",
  there: () => data.partitions.length > 0,
  choices: choose.run,
  note() {
    const part = partitionOf(focusRun());
    return part && part.counts.length > 200 ? `The first 200 of ${part.counts.length} clients are drawn.` : "";
  },
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      part = partitionOf(run);
    if (!part) return nothing(frame);
    const counts = part.counts.slice(0, 200),
      classes = counts[0].length,
      sizes = counts.map(sum),
      worse = worseIn(run);
    const most = Math.max(1, ...counts.flat()),
      largest = Math.max(1, ...sizes),
      left = Math.max(
        34,
        Math.min(frame.width / 4, 16 + 6.5 * Math.max(0, ...part.clients.map((name) => name.length))),
      );
    const bars = frame.narrow ? 54 : 110,
      across = (frame.width - left - bars - (frame.narrow ? 36 : 56)) / classes;
    const down = Math.max(counts.length > 60 ? 6 : 11, Math.min(26, 520 / counts.length));
    const area = { left, right: left + across * classes, top: 18, bottom: 18 + down * counts.length },
      from = area.right + (frame.narrow ? 8 : 18);
    // dots may touch neighbours of the same client; they never reach far into another client's row
    const ofClass = Array.from({ length: classes }, (_, k) => sum(part.counts.map((row) => row[k]))),
      colour = ramp(theme.ramp.slice(1));
    const radius = Math.min(0.6 * down, Math.max(across, 0.5 * down) * 0.62),
      tall = Math.min(0.5 * down, 10);
    frame.text(from, 10, "samples", { weight: 600, colour: theme.ink });
    counts.forEach((_, client) => {
      const y = area.top + down * (client + 0.5),
        red = worse.has(client),
        length = (bars * sizes[client]) / largest;
      frame.line(left, y, area.right, y);
      if (client % every(down, 12) === 0 || (red && down >= 9))
        frame.text(left - 8, y + 3.5, fitting(part.clients[client], client, left - 8), {
          anchor: "end",
          ...idStyle(theme, red, down),
        });
      frame.rect(from, y - tall / 2, Math.max(1, length), tall, red ? theme.harm : theme.quiet, { rx: 2 });
      if (down >= 11) frame.text(from + length + 6, y + 3.5, brief(sizes[client]), { size: 10 });
    });
    for (let k = 0; k < classes; k++) {
      const x = left + across * (k + 0.5),
        group = frame.add("g", {});
      if (k % every(across, 20) === 0)
        frame.text(x, area.bottom + 14, fitting(part.classes[k], k, across), { anchor: "middle", size: 10 });
      counts.forEach((row, client) => {
        const r = Math.max(0.8, radius * Math.sqrt(row[k] / most));
        if (row[k]) frame.dot(x, area.top + down * (client + 0.5), r, css(colour(row[k] / ofClass[k])), {}, group);
      });
    }
    frame.text((area.left + area.right) / 2, area.bottom + 33, "class", {
      anchor: "middle",
      weight: 600,
      colour: theme.ink,
    });
    frame.cells(area, counts.length, classes, (client, k) => ({
      title: nameOf(client, run),
      rows: [
        [part.classes[k] || `class ${k}`, brief(counts[client][k])],
        ["of all samples of that class", percent(ofClass[k] ? counts[client][k] / ofClass[k] : 0, 0)],
        ["all its samples", brief(sizes[client])],
        ["classes held", `${counts[client].filter(Boolean).length} of ${classes}`],
      ],
    }));
    const scale = Math.min(220, (area.right - left) * 0.5);
    frame.scaleBar(left, area.bottom + 46, scale, colour, ["0 %", "", "100 %"], "share of all samples of the class");
    frame.end(area.bottom + 74);
    return worse.size ? [{ label: "worse client", colour: theme.harm, box: true }] : null;
  },
});
