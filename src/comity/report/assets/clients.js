// Who gains, who is harmed.

PLOTS.push({
  id: "clients",
  section: "clients",
  wide: true,
  title: () => `${state.box === "acc" ? "Accuracy" : "Gain over training alone"} of every client${here()}`,
  how: "A dot is a client (all seeds); the box holds the middle half of them with the median, the whiskers reach to the last client within one and a half boxes. A box further right and shorter is better and fairer.",
  there: () => cellsHere().some((cell) => runsOf(cell).some((run) => run.acc.length)),
  choices: () => [
    choose.setting(),
    anyGains() && {
      label: "show",
      key: "box",
      options: [
        ["acc", "accuracy"],
        ["gain", "gain over Local"],
      ],
    },
  ],
  draw(frame) {
    const { theme } = frame,
      gain = state.box === "gain",
      told = (value) => (gain ? points(value) : percent(value));
    const clientsOf = (cell) =>
      counted(cell).flatMap((run) => {
        if (gain) return gains(run).map(({ id, gain: value, harmed }) => ({ id, run, value, harmed }));
        return run.ids.map((id, i) => ({ id, run, value: run.acc[i] })).filter(({ value }) => known(value));
      });
    const sets = cellsHere()
      .map((cell) => ({ cell, clients: clientsOf(cell) }))
      .filter(({ clients }) => clients.length);
    const rows = rowsOf(
      frame,
      sets.map(({ cell }) => cell),
      { wide: 38, narrow: 50 },
    );
    const area = { ...rows, left: rows.left + 4, right: frame.width - 10 };
    const [low, high] = roomy(
      sets.flatMap(({ clients }) => clients.map(({ value }) => value)),
      gain ? {} : { floor: 0, ceiling: 1 },
    );
    const x = linear(low, high, area.left + 4, area.right - 4);
    const label = gain ? "points above or below training alone" : "accuracy on own tests";
    frame.xAxis(area, x, ticks(low, high, frame.narrow ? 4 : 8), gain ? inPoints : inPercent, label, { grid: true });
    if (gain && low < 0 && high > 0) frame.line(x(0), area.top, x(0), area.bottom, theme.axis, { "stroke-width": 1.5 });
    sets.forEach(({ cell, clients }, row) => {
      const { colour } = styleOf(cell, theme),
        y = rows.middle(row),
        half = 9,
        thin = { "stroke-width": 1.4 };
      const sorted = clients.map(({ value }) => value).sort((a, b) => a - b);
      const [q1, q2, q3] = [0.25, 0.5, 0.75].map((p) => quantile(sorted, p)),
        reach = 1.5 * (q3 - q1);
      const inside = sorted.filter((value) => value >= q1 - reach && value <= q3 + reach),
        [first, last] = [inside[0], inside[inside.length - 1]];
      frame.line(x(first), y, x(q1), y, colour, thin);
      frame.line(x(q3), y, x(last), y, colour, thin);
      for (const end of [first, last]) frame.line(x(end), y - 4, x(end), y + 4, colour, thin);
      const filled = { "fill-opacity": cell.plain ? 0.06 : 0.2, stroke: colour, rx: 2, ...thin };
      const box = frame.bar(x(q1), y - half, Math.max(1, x(q3) - x(q1)), 2 * half, colour, filled);
      frame.tell(box, () => ({
        title: cell.label,
        rows: [
          ["median", told(q2)],
          ["middle half", `${told(q1)} to ${told(q3)}`],
          ["lowest", told(sorted[0])],
          ["highest", told(sorted[sorted.length - 1])],
          ["clients", String(sorted.length)],
        ],
      }));
      clients.forEach(({ id, run, value, harmed }, i) => {
        const up = (((i * 0.618) % 1) - 0.5) * 1.7 * half; // spread evenly, the same every time
        const dot = frame.dot(x(value), y + up, clients.length > 200 ? 1.6 : 2.4, harmed ? theme.harm : colour, {
          "fill-opacity": harmed ? 0.85 : 0.55,
        });
        frame.tell(dot, () => ({
          title: `${nameOf(id, run)}, seed ${run.seed}`,
          rows: [[cell.label, told(value) + (gain ? " points" : "")]],
        }));
      });
      frame.line(x(q2), y - half, x(q2), y + half, theme.ink, { "stroke-width": 2.2 });
    });
    frame.end(area.bottom + 42);
    return gain ? [{ label: "worse than alone", colour: theme.harm, dot: true }] : null;
  },
});

PLOTS.push({
  id: "gain",
  section: "clients",
  wide: true,
  title: () => `Who gains and who is harmed: ${aboutRun()}`,
  how: "Accuracy of each client minus its accuracy when it trains alone, worst first. Red bars are clients worse than alone, striped where that may be chance; the one that the headline names is marked. A ring is the same client under the rule that is compared with.",
  there: anyGains,
  choices: choose.run,
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      clients = gains(run),
      base = baseOf(focus());
    if (!clients.length) return nothing(frame, "How these clients do alone is not known yet.");
    const other = base && runsOf(base).find(({ seed }) => seed === run.seed);
    const before = new Map(other ? gains(other).map(({ id, gain }) => [id, gain]) : []);
    const area = { left: 40, right: frame.width - 4, top: 30, bottom: frame.narrow ? 230 : 290 };
    const [low, high] = roomy([0, ...clients.flatMap(({ id, gain }) => [gain, before.get(id)])], { air: 0.08 });
    const y = linear(low, high, area.bottom, area.top),
      step = (area.right - area.left) / clients.length,
      width = Math.min(30, step * 0.74);
    frame.yAxis(area, y, ticks(low, high, 6), inPoints, "points above or below training alone");
    const stripes = stripesOf(frame),
      names = partitionOf(run)?.clients ?? [];
    clients.forEach(({ id, gain, harmed, sure, only, acc, alone, train, test }, place) => {
      const x = area.left + step * (place + 0.5),
        samples = Math.round(gain * test);
      if (isNamed(id, run))
        frame.rect(x - step / 2, area.top, step, area.bottom - area.top + 20, theme.line, { rx: 3 });
      frame.bar(
        x - width / 2,
        Math.min(y(0), y(gain)),
        width,
        Math.max(1, Math.abs(y(gain) - y(0))),
        harmed ? (sure ? theme.harm : stripes) : theme.gain,
        { rx: Math.min(2, width / 4) },
      );
      if (before.has(id) && step > 5)
        frame.circle(x, y(before.get(id)), Math.min(3.6, step / 3), theme.page, {
          "fill-opacity": 0.7,
          stroke: theme.ink,
          "stroke-width": 1.3,
        });
      if (place % every(step, 15) === 0 || (harmed && step > 11))
        frame.text(x, area.bottom + 15, fitting(names[id], id, step), {
          anchor: "middle",
          ...idStyle(theme, harmed, step),
        });
      const column = frame.rect(x - step / 2, area.top, step, area.bottom - area.top, "transparent");
      frame.tell(column, () => ({
        title: nameOf(id, run),
        rows: [
          ["gain", `${points(gain)} points`],
          ["of its test samples", `${samples > 0 ? "+" : ""}${fixed(samples, 0)} of ${test}`],
          ...(known(only[0]) ? [["right alone only, joined only", `${only[0]}, ${only[1]}`]] : []),
          ...(harmed && sure !== null ? [["beyond chance", sure ? "yes" : "no"]] : []),
          ["together", percent(acc)],
          ["alone", percent(alone)],
          ...(before.has(id) ? [[`gain with ${base.rule}`, `${points(before.get(id))} points`]] : []),
          ["training samples", brief(train)],
        ],
      }));
    });
    frame.line(area.left, y(0), area.right, y(0), theme.axis, { "stroke-width": 1.5 });
    const average = mean(clients.map(({ gain }) => gain)),
      faint = { "stroke-dasharray": "3 3", "stroke-opacity": 0.6 };
    frame.line(area.left, y(average), area.right, y(average), theme.ink, faint);
    // where no bar is: losses hang on the left, gains stand on the right
    const [x, down, anchor] = average < 0 ? [area.right - 4, 13, "end"] : [area.left + 4, -5, "start"];
    frame.text(x, y(average) + down, `mean ${points(average)}`, { colour: theme.ink, anchor });
    frame.text((area.left + area.right) / 2, area.bottom + 34, "client", {
      anchor: "middle",
      weight: 600,
      colour: theme.ink,
    });
    frame.end(area.bottom + 42);
    const ring = before.size ? [{ label: `with ${base.rule}`, colour: theme.ink, ring: true }] : [];
    return [
      { label: "gains", colour: theme.gain, box: true },
      ...(clients.some(({ harmed, sure }) => harmed && !sure)
        ? [{ label: "worse than alone", colour: theme.harm, box: true, striped: true }]
        : []),
      ...(clients.some(({ sure }) => sure) ? [{ label: "worse beyond chance", colour: theme.harm, box: true }] : []),
      ...ring,
    ];
  },
});

function stripesOf(frame) {
  const { theme } = frame,
    id = `stripes-${theme.name}`;
  const turned = { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const pattern = frame.add("pattern", turned, frame.add("defs", {}));
  frame.rect(0, 0, 5, 5, theme.harm, {}, pattern);
  frame.rect(0, 0, 1.4, 5, theme.page, { "fill-opacity": 0.55 }, pattern);
  return `url(#${id})`;
}

PLOTS.push({
  id: "harmed",
  section: "clients",
  wide: true,
  title: () => `The harmed clients, and what goes with it: ${aboutRun()}`,
  how: "What is known of each client that does worse than alone. A client with few samples, with classes that nobody else has, with little weight, or with updates that the others' oppose is pulled away from its own optimum. These go together; they prove no cause.",
  there: anyGains,
  choices: choose.run,
  write(node) {
    const run = focusRun(),
      all = gains(run),
      harmed = all.filter((client) => client.harmed);
    const say = (words) => node.replaceChildren(html("p", { class: "quiet" }, words));
    if (!all.length) return say("How these clients do alone is not known yet.");
    if (!harmed.length) return say(`Nobody: all ${all.length} clients do at least as well as alone.`);
    const columns = facts(run, all);
    const head = html(
      "tr",
      {},
      columns.map(([label]) => html("th", { scope: "col" }, label)),
    );
    const rows = harmed.slice(0, 40).map((client) =>
      html(
        "tr",
        { class: isNamed(client.id, run) ? "named" : null },
        columns.map(([, tell]) => html("td", {}, tell(client))),
      ),
    );
    const table = html("table", { class: "facts" }, html("thead", {}, head), html("tbody", {}, rows));
    const more = harmed.length > 40 ? html("p", { class: "quiet" }, `and ${harmed.length - 40} more`) : "";
    return node.replaceChildren(html("div", scrolling(this.title()), table), more);
  },
});

// Columns of the harmed clients' table: heading, and what it says of a client.
function facts(run, all) {
  const cosines = cosinesOf(run, "mean"),
    part = partitionOf(run);
  const smaller = (train) => all.filter((other) => other.train < train).length;
  const rank = (train) => (smaller(train) ? `${nth(smaller(train) + 1)} smallest` : "the smallest");
  const held = (id) => {
    const row = part.counts[id],
      top = row
        .map((count, label) => [count, label])
        .filter(([count]) => count)
        .sort((a, b) => b[0] - a[0]);
    const told = top
      .slice(0, 2)
      .map(([count, label]) => `${classOf(part, label)} (${Math.round((100 * count) / sum(row))} %)`);
    return told.join(", ") + (top.length > 2 ? ` +${top.length - 2}` : "");
  };
  const opponents = (id) => {
    const against = run.ids
      .map((other) => [other, cosines.of(id, other)])
      .filter(([, value]) => known(value) && value < 0);
    const worst = against.sort((a, b) => a[1] - b[1]).slice(0, 3);
    return worst.map(([other, value]) => `${other} (${fixed(value, 2)})`).join(", ") || "nobody";
  };
  const or = (value, tell) => (known(value) ? tell(value) : "–");
  return [
    ["client", ({ id }) => html("b", { class: "harm" }, nameOf(id, run).replace("client ", ""))],
    ["loss, points", ({ gain }) => html("span", { class: "harm" }, points(gain))],
    ["tests lost", ({ gain, test }) => `${Math.max(0, Math.round(-gain * test))} of ${test}`],
    known(all[0].only[0]) && ["right alone only, joined only", ({ only }) => only.join(", ")],
    run.sure && ["beyond chance", ({ sure }) => (sure ? html("b", { class: "harm" }, "yes") : "no")],
    run.against && ["steps against it", ({ id }) => `${run.against[id][0]} of ${run.against[id][1]}`],
    ["training samples", ({ train }) => `${brief(train)}, ${rank(train)}`],
    part && ["classes (share)", ({ id }) => held(id)],
    run.overlap && ["class overlap", ({ id }) => or(run.overlap[id], (value) => percent(value, 0))],
    run.w && part && ["weight ÷ share of data", ({ id }) => or(pullOf(run, id), (value) => `${fixed(value, 2)}×`)],
    cosines && ["agreement", ({ id }) => or(run.agree[id], (value) => fixed(value, 2))],
    cosines && ["opposed most by", ({ id }) => opponents(id)],
  ].filter(Boolean);
}

const nth = (n) => `${n}${["th", "st", "nd", "rd"][n % 100 > 10 && n % 100 < 14 ? 0 : n % 10] || "th"}`;

PLOTS.push({
  id: "partition",
  section: "clients",
  wide: true,
  title() {
    const part = partitionOf(focusRun());
    return part ? `Who holds what: ${part.name}, ${part.how}, seed ${focusRun().seed}` : "Who holds what";
  },
  how: "A row is a client, a column a class; the area of a dot is the number of samples, the bar their total. The darker a dot, the more of all samples of that class this client holds: nobody else can teach it a class that it has alone. The numbers and bars of harmed clients are red.",
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
      harmed = harmedIn(run);
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
        red = harmed.has(client),
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
    frame.scaleBar(left, area.bottom + 46, scale, colour, ["0 %", "", "100 %"], "of all samples of the class");
    frame.end(area.bottom + 74);
    return harmed.size ? [{ label: "harmed client", colour: theme.harm, box: true }] : null;
  },
});
