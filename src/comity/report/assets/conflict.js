// Reasons: conflicting updates.

const REASONS = {
  agree: [
    "agreement of updates",
    "mean cosine of its updates with the others'",
    (run, { id }) => run.agree?.[id],
    (v) => fixed(v, 2),
  ],
  overlap: [
    "class overlap",
    "overlap of its class shares with the other clients'",
    (run, { id }) => run.overlap?.[id],
    (v) => percent(v, 0),
  ],
  train: ["training samples", "training samples", (_, { train }) => train, brief],
  pull: [
    "weight",
    "share of the weight ÷ share of the samples",
    (run, { id }) => pullOf(run, id),
    (v) => `${fixed(v, 2)}×`,
  ],
  local: ["local training", "metric of local training", (_, { local }) => local, inMetric],
};

// Spearman's rank correlation.
function rankCorrelation(pairs) {
  const count = (values, test) => values.filter(test).length;
  const ranks = (values) => values.map((v) => count(values, (w) => w < v) + (count(values, (w) => w === v) + 1) / 2);
  const [a, b] = [0, 1].map((k) => ranks(pairs.map((pair) => pair[k]))).map((list) => list.map((v) => v - mean(list)));
  const size = Math.sqrt(sum(a.map((v) => v * v)) * sum(b.map((v) => v * v)));
  return size ? sum(a.map((v, i) => v * b[i])) / size : NaN;
}

const STEPS = { against: ["the rule's step"], mean_against: ["the plain mean"] };

PLOTS.push({
  id: "against",
  section: "conflict",
  title: () => `Clients whose loss ${state.against === "against" ? "the step" : "the plain mean"} increases${here()}`,
  how: "Share of a round's clients whose update has a negative inner product with the aggregated step. Compare the rule's step with the plain mean of the same updates.",
  there: () => cellsHere().some((cell) => cell.curves.against),
  choices: () => [choose.setting(), choose.of("step", "against", STEPS, Object.keys(STEPS))],
  draw: (frame) => lines(frame, state.against, { across: "r", label: "clients", share: true }),
});

PLOTS.push({
  id: "reasons",
  section: "conflict",
  title: () => `Gain against ${REASONS[state.reason][0]}`,
  how: "Each dot is a client; its size shows the number of training samples. If the dots rise to the right, clients with a larger value gain more.",
  there: anyGains,
  choices: () => [
    ...choose.run(),
    choose.of(
      "against",
      "reason",
      REASONS,
      Object.keys(REASONS).filter((key) =>
        data.runs.some((run) => gains(run).some((row) => known(REASONS[key][2](run, row)))),
      ),
    ),
  ],
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      [name, label, of, format] = REASONS[state.reason];
    const clients = gains(run)
      .map((client) => ({ ...client, x: of(run, client) }))
      .filter((client) => known(client.x));
    if (!clients.length) return nothing(frame);
    const area = {
      left: 40,
      right: frame.width - 10,
      top: 30,
      bottom: Math.min(430, Math.max(260, frame.width * 0.82)),
    };
    const x = linear(...roomy(clients.map((client) => client.x)), area.left, area.right);
    const [low, high] = roomy([0, ...clients.map(({ gain }) => gain)], { air: 0.1 }),
      y = linear(low, high, area.bottom, area.top);
    frame.yAxis(area, y, ticks(low, high, 6), gainTick, `gain over local training, ${gainUnit()}`);
    frame.xAxis(area, x, ticks(...x.domain, 5), format, label);
    frame.line(area.left, y(0), area.right, y(0), theme.axis, { "stroke-width": 1.5 });
    const most = Math.max(1, ...clients.map(({ train }) => train));
    for (const client of clients.sort((a, b) => b.train - a.train)) {
      const r = 3 + 8 * Math.sqrt(client.train / most),
        colour = theme[STATES[client.state]];
      const dot = frame.dot(x(client.x), y(client.gain), r, colour, { "fill-opacity": 0.6, stroke: colour });
      frame.tell(dot, () => ({
        title: client.name,
        rows: [
          ["gain", `${gainOf(client.gain)} ${interval(client)}`],
          [name, format(client.x)],
          ["training samples", brief(client.train)],
        ],
      }));
      if (client.state === "worse" && clients.length <= 60)
        frame.text(x(client.x), y(client.gain) + r + 11, String(client.id), {
          anchor: "middle",
          ...idStyle(theme, true, 20),
        });
    }
    const rho = rankCorrelation(clients.map((client) => [client.x, client.gain])),
      chance = Math.abs(rho) < 1.96 / Math.sqrt(Math.max(1, clients.length - 1));
    const said = `rank correlation ${fixed(rho || 0, 2)}${chance ? ", not significant" : ""}`;
    if (known(rho)) frame.text(area.right, frame.narrow ? area.top + 4 : area.top - 12, said, { anchor: "end" });
    frame.end(area.bottom + 42);
    return Object.entries(STATES).map(([label, colour]) => ({ label, colour: theme[colour], dot: true }));
  },
});

// Order clients so that similar ones are neighbours: each next one is the most similar to the last three.
function bySimilarity(cosines) {
  const left = new Set(Array.from({ length: cosines.n }, (_, i) => i)),
    order = [];
  const best = (score) => [...left].reduce((a, b) => (score(b) > score(a) ? b : a));
  let next = best((i) => sum([...left].map((j) => cosines.of(i, j) || 0)));
  while (left.size) {
    order.push(next);
    left.delete(next);
    if (left.size) next = best((i) => mean(order.slice(-3).map((j) => cosines.of(i, j) ?? -1)));
  }
  return order;
}

PLOTS.push({
  id: "cosines",
  section: "conflict",
  title: () => `Cosine of clients' updates: ${aboutRun()}`,
  how: "Each cell is a pair of clients. Blue: similar updates. Red: opposed updates. No colour: unrelated updates, or clients that were never in the same round. The numbers of worse clients are red; point at a cell for names.",
  there: () => data.runs.some((run) => run.cos),
  note: () =>
    focusRun().cos?.error ? `From sketches: one standard error is ± ${fixed(focusRun().cos.error, 3)}.` : "",
  choices: () => [
    ...choose.run(),
    {
      label: "round",
      key: "matrix",
      options: [
        ["mean", "mean over rounds"],
        ...(focusRun().cos?.rounds || []).map((round) => [String(round), `round ${round}`]),
      ],
    },
    {
      label: "order",
      key: "order",
      options: [
        ["id", "by number"],
        ["like", "by similarity"],
        ["gain", "by gain"],
      ],
    },
  ],
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      cosines = cosinesOf(run);
    if (!cosines)
      return nothing(frame, run.agree ? "To keep this page small, it has this plot for other runs only." : undefined);
    const worseOnes = worseIn(run),
      gain = new Map(gains(run).map((client) => [client.id, client.gain])),
      ids = Array.from({ length: cosines.n }, (_, i) => i);
    const order =
      state.order === "like"
        ? bySimilarity(cosines)
        : state.order === "gain"
          ? ids.sort((a, b) => (gain.get(a) ?? 9) - (gain.get(b) ?? 9))
          : ids;
    const all = order.flatMap((i) => order.map((j) => cosines.of(i, j))).filter(known),
      colour = ramp(theme.both);
    const most = all.reduce((top, value) => Math.max(top, Math.abs(value)), 0.05);
    const size = Math.min(frame.width - 34, 460),
      top = 22,
      left = 30 + Math.max(0, (frame.width - 34 - size) / 2),
      step = size / cosines.n;
    order.forEach((id, place) => {
      const worse = worseOnes.has(id),
        style = idStyle(theme, worse, step),
        at = step * (place + 0.5);
      if (place % every(step, 12) === 0 || (worse && step >= 9))
        frame.text(left - 7, top + at + 3.5, String(id), { ...style, anchor: "end" });
      if (place % every(step, 15) === 0) frame.text(left + at, top - 7, String(id), { ...style, anchor: "middle" });
    });
    const area = { left, top, right: left + size, bottom: top + size };
    frame.heat(area, cosines.n, cosines.n, (row, column) => {
      const value = cosines.of(order[row], order[column]);
      return known(value) ? colour(0.5 + value / most / 2) : null;
    });
    frame.cells(area, cosines.n, cosines.n, (row, column) => {
      const [a, b] = [order[row], order[column]],
        value = cosines.of(a, b);
      if (a === b) return { title: nameOf(a, run), rows: gain.has(a) ? [["gain", gainOf(gain.get(a))]] : [] };
      const words = !known(value) ? "never in the same round" : value < 0 ? "opposed updates" : "similar updates";
      return {
        title: `${nameOf(a, run)} and ${nameOf(b, run)}`,
        rows: [
          ["cosine", known(value) ? fixed(value, 2) : "–"],
          ["", words],
        ],
      };
    });
    frame.scaleBar(
      left,
      area.bottom + 14,
      Math.min(220, size * 0.5),
      colour,
      [fixed(-most, 2), "0", fixed(most, 2)],
      "cosine of updates",
    );
    frame.end(area.bottom + 42);
    return null;
  },
});

function misjudged() {
  const most = Math.max(0, ...cellsHere().map((cell) => cell.numbers.conflict_error || 0));
  return most ? `For rules that use sketches, up to ${fixed(100 * most, 1)} % of pairs may have the wrong sign.` : "";
}

PLOTS.push({
  id: "conflict",
  section: "conflict",
  title: () => `How often updates conflict${here()}`,
  how: "Share of the pairs of clients whose updates conflict (negative cosine), averaged over layers. Such updates partly cancel in the plain mean; that alone harms no client.",
  there: () => cellsHere().some((cell) => cell.curves.conflict),
  note: misjudged,
  choices: () => [choose.setting()],
  draw: (frame) => lines(frame, "conflict", { across: "r", label: "pairs in conflict", share: true }),
});

PLOTS.push({
  id: "layers",
  section: "conflict",
  title: () => `Where updates conflict: ${focus().label}${here()}`,
  how: "Share of pairs in conflict per layer (rows, input layer first) and round. A stronger colour means more conflict.",
  there: () => rivals().some((cell) => cell.layers),
  choices: () => [choose.setting(), choose.cell()],
  draw(frame) {
    const { theme } = frame,
      layers = focus().layers;
    if (!layers) return nothing(frame);
    const bytes = bytesOf(layers.data),
      columns = layers.rounds.length,
      rows = layers.names.length,
      colour = ramp(theme.heat);
    const of = (row, column) => (bytes[row * columns + column] === 255 ? null : bytes[row * columns + column] / 250);
    const most = bytes.reduce((top, byte) => (byte === 255 ? top : Math.max(top, byte / 250)), 0.05);
    const names = layers.names.map((layer) => layer.replace(/^body\./, "")),
      step = Math.max(8, Math.min(24, 290 / rows));
    const left = Math.min(frame.width * 0.36, 10 + Math.max(...names.map((name) => widthOf(name, 10.5))));
    const area = { left, right: frame.width - 4, top: 6, bottom: 6 + step * rows };
    names.forEach((name, row) => {
      const y = area.top + step * (row + 0.5) + 3.5;
      if (row % every(step, 12) === 0)
        frame.text(left - 7, y, shorten(name, left - 8, 10.5), { anchor: "end", size: 10.5 });
    });
    frame.heat(area, rows, columns, (row, column) => (known(of(row, column)) ? colour(of(row, column) / most) : null));
    frame.cells(area, rows, columns, (row, column) => ({
      title: layers.names[row],
      rows: [
        ["round", String(layers.rounds[column])],
        ["pairs in conflict", percent(of(row, column))],
      ],
    }));
    roundsBelow(frame, area, layers.rounds);
    frame.scaleBar(
      left,
      area.bottom + 46,
      Math.min(220, (area.right - left) * 0.5),
      colour,
      ["0 %", "", percent(most, 0)],
      "pairs in conflict",
    );
    frame.end(area.bottom + 74);
    return null;
  },
});
