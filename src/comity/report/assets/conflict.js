// Why: updates that pull against each other, and what the rule makes of them.

const REASONS = {
  agree: [
    "agreement",
    "mean cosine of its updates with the others'",
    (run, _, id) => run.agree?.[id],
    (v) => fixed(v, 2),
  ],
  overlap: [
    "class overlap",
    "part of its class mix that the others have too",
    (run, _, id) => run.overlap?.[id],
    (v) => percent(v, 0),
  ],
  train: ["training samples", "training samples", (run, i) => run.train[i], brief],
  pull: [
    "weight",
    "part of all the weight ÷ part of all samples",
    (run, _, id) => pullOf(run, id),
    (v) => `${fixed(v, 2)}×`,
  ],
  alone: ["accuracy alone", "accuracy when it trains alone", (run, i) => run.alone?.[i], (v) => percent(v, 0)],
};

// Spearman's: whether two things rise together, whatever their scales.
function rankCorrelation(pairs) {
  const count = (values, test) => values.filter(test).length;
  const ranks = (values) => values.map((v) => count(values, (w) => w < v) + (count(values, (w) => w === v) + 1) / 2);
  const [a, b] = [0, 1].map((k) => ranks(pairs.map((pair) => pair[k]))).map((list) => list.map((v) => v - mean(list)));
  const size = Math.sqrt(sum(a.map((v) => v * v)) * sum(b.map((v) => v * v)));
  return size ? sum(a.map((v, i) => v * b[i])) / size : NaN;
}

const STEPS = { against: ["the step taken"], mean_against: ["the plain mean instead"] };

PLOTS.push({
  id: "against",
  section: "conflict",
  title: () => `Clients whose loss ${state.against === "against" ? "the step" : "the plain mean"} increases${here()}`,
  how: "Share of a round's clients whose own update the aggregated step points against (a negative inner product), so that it undoes what they have just learnt. Compare the step that the rule took with the plain mean of the same updates.",
  there: () => cellsHere().some((cell) => cell.curves.against),
  choices: () => [choose.setting(), choose.of("step", "against", STEPS, Object.keys(STEPS))],
  draw: (frame) => lines(frame, state.against, { across: "r", label: "clients", share: true }),
});

PLOTS.push({
  id: "reasons",
  section: "conflict",
  title: () => `What goes with the gain: ${REASONS[state.reason][0]}`,
  how: "A dot is a client, its size the training samples. If the dots rise to the right, clients with more of it gain more.",
  there: anyGains,
  choices: () => [
    ...choose.run(),
    choose.of(
      "against",
      "reason",
      REASONS,
      Object.keys(REASONS).filter((key) =>
        data.runs.some((run) => run.ids.some((id, i) => known(REASONS[key][2](run, i, id)))),
      ),
    ),
  ],
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      [name, label, of, told] = REASONS[state.reason];
    const clients = gains(run)
      .map((client) => ({ ...client, x: of(run, client.i, client.id) }))
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
    frame.yAxis(area, y, ticks(low, high, 6), inPoints, "gain over training alone, points");
    frame.xAxis(area, x, ticks(...x.domain, 5), told, label);
    frame.line(area.left, y(0), area.right, y(0), theme.axis, { "stroke-width": 1.5 });
    const most = Math.max(1, ...clients.map(({ train }) => train));
    for (const client of clients.sort((a, b) => b.train - a.train)) {
      const { harmed } = client,
        r = 3 + 8 * Math.sqrt(client.train / most),
        colour = harmed ? theme.harm : theme.gain;
      const dot = frame.dot(x(client.x), y(client.gain), r, colour, { "fill-opacity": 0.6, stroke: colour });
      frame.tell(dot, () => ({
        title: nameOf(client.id, run),
        rows: [
          ["gain", `${points(client.gain)} points`],
          [name, told(client.x)],
          ["training samples", brief(client.train)],
        ],
      }));
      if (harmed && clients.length <= 60)
        frame.text(x(client.x), y(client.gain) + r + 11, String(client.id), {
          anchor: "middle",
          ...idStyle(theme, true, 20),
        });
    }
    const rho = rankCorrelation(clients.map((client) => [client.x, client.gain])),
      chance = Math.abs(rho) < 1.96 / Math.sqrt(Math.max(1, clients.length - 1));
    const said = `rank correlation ${fixed(rho || 0, 2)}${chance ? ", no more than chance" : ""}`;
    if (known(rho)) frame.text(area.right, frame.narrow ? area.top + 4 : area.top - 12, said, { anchor: "end" });
    frame.end(area.bottom + 42);
    return [
      { label: "gains", colour: theme.gain, dot: true },
      { label: "harmed", colour: theme.harm, dot: true },
    ];
  },
});

// Clients that agree side by side: each next one is the most like the last three.
function alike(cosines) {
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
  title: () => `Who pulls against whom: ${aboutRun()}`,
  how: "Cosine of two clients' updates. Blue: both want the same change. Red: what helps one hurts the other. No colour: unrelated, or never in the same round. Numbers of harmed clients are red.",
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
        ["like", "alike together"],
        ["gain", "by gain"],
      ],
    },
  ],
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      cosines = cosinesOf(run);
    if (!cosines)
      return nothing(frame, run.agree ? "To keep this page small it holds this of other runs only." : undefined);
    const harmedOnes = harmedIn(run),
      gain = new Map(gains(run).map((client) => [client.id, client.gain])),
      ids = Array.from({ length: cosines.n }, (_, i) => i);
    const order =
      state.order === "like"
        ? alike(cosines)
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
      const harmed = harmedOnes.has(id),
        style = idStyle(theme, harmed, step),
        at = step * (place + 0.5);
      if (place % every(step, 12) === 0 || (harmed && step >= 9))
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
      if (a === b)
        return { title: nameOf(a, run), rows: gain.has(a) ? [["gain", `${points(gain.get(a))} points`]] : [] };
      const words = !known(value)
        ? "never in the same round"
        : value < 0
          ? "pull against each other"
          : "pull the same way";
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
  return most ? `Where rules see sketches, ± ${fixed(100 * most, 1)} % of pairs may be on the wrong side of 0.` : "";
}

PLOTS.push({
  id: "conflict",
  section: "conflict",
  title: () => `How often updates conflict${here()}`,
  how: "Share of the pairs of clients whose updates point against each other (negative cosine), a mean over layers. They cancel each other in the plain mean; that alone harms nobody.",
  there: () => cellsHere().some((cell) => cell.curves.conflict),
  note: misjudged,
  choices: () => [choose.setting()],
  draw: (frame) => lines(frame, "conflict", { across: "r", label: "pairs in conflict", share: true }),
});

PLOTS.push({
  id: "layers",
  section: "conflict",
  title: () => `Where they conflict: ${focus().label}${here()}`,
  how: "Share of pairs in conflict in each layer (row, input first) over the rounds. Rows of strong colour are the layers that clients disagree about.",
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

PLOTS.push({
  id: "weights",
  section: "weights",
  wide: true,
  title: () =>
    `How much each client counts: ${aboutRun()}${weightsOf(focusRun()) ? `, ${weightsOf(focusRun()).layer}` : ""}`,
  how: "The rule's coefficient for each client (row) in each round (for CALM λ, what the client's constraint adds to it); the stronger the colour the more it counts, blank was not in that round's cohort. Bars are means over rounds, the tick is the share of the samples, which the plain mean would give.",
  there: () => data.runs.some((run) => run.w),
  choices: () => {
    const names = focusRun().w?.names || [];
    return [
      ...choose.run(),
      {
        label: "layer",
        key: "layer",
        steps: true,
        value: weightsOf(focusRun())?.layer,
        options: names.map((name) => [name, name]),
      },
    ];
  },
  note: () =>
    focusRun().w?.left ? `${focusRun().w.left} layers in the middle are left out to keep this page small.` : "",
  draw(frame) {
    const { theme } = frame,
      run = focusRun(),
      w = weightsOf(run),
      word = run.w?.lambda ? "λ" : "coefficient",
      part = run.w?.lambda ? null : partitionOf(run),
      harmed = harmedIn(run);
    if (!w)
      return nothing(
        frame,
        runsOf(focus()).some((other) => other.w)
          ? "To keep this page small it holds the weights of another seed only."
          : undefined,
      );
    const rows = Array.from({ length: w.clients }, (_, i) => Array.from({ length: w.columns }, (_, c) => w.of(i, c)));
    const sorted = rows
        .flat()
        .filter(known)
        .sort((a, b) => a - b),
      signed = sorted[0] < -1e-6;
    const high = Math.max(quantile(sorted, 0.995), 1e-9),
      cut = sorted[sorted.length - 1] > high * 1.001,
      colour = ramp(signed ? theme.both : theme.ramp);
    // by the square root: the many small coefficients stay visible beside the few large ones
    const root = (value) => Math.sign(value) * Math.sqrt(Math.abs(value) / high);
    const shade = (value) => colour(signed ? 0.5 + root(value) / 2 : root(value));
    const means = rows.map((row) => mean(row.filter(known))),
      total = part ? sum(part.counts.map(sum)) : 0;
    const shares = part ? part.counts.map((row) => sum(row) / total) : [];
    const side = frame.narrow ? 54 : 120,
      step = Math.max(w.clients > 60 ? 5 : 10, Math.min(22, 440 / w.clients));
    const area = { left: 34, right: frame.width - side - 14, top: 20, bottom: 20 + step * w.clients },
      from = area.right + 12;
    const longest = Math.max(1e-9, ...means.filter(known), ...shares),
      length = (value) => (side * Math.max(0, value)) / longest;
    frame.text(0, 10, "client", { weight: 600, colour: theme.ink });
    frame.text(from, 10, "mean", { weight: 600, colour: theme.ink });
    rows.forEach((_, i) => {
      const y = area.top + step * (i + 0.5),
        tall = Math.min(0.6 * step, 10);
      if (i % every(step, 11) === 0)
        frame.text(area.left - 7, y + 3.5, String(i), { anchor: "end", ...idStyle(theme, harmed.has(i), step) });
      if (known(means[i])) {
        const bar = frame.bar(from, y - tall / 2, Math.max(1, length(means[i])), tall, theme.series[0], {
          rx: 1.5,
          "fill-opacity": 0.75,
        });
        const share = shares.length ? [["share of samples", fixed(shares[i], 3)]] : [];
        frame.tell(bar, () => ({ title: nameOf(i, run), rows: [[`mean ${word}`, fixed(means[i], 3)], ...share] }));
      }
      if (shares.length)
        frame.line(from + length(shares[i]), y - tall / 2 - 1, from + length(shares[i]), y + tall / 2 + 1, theme.ink, {
          "stroke-width": 1.6,
        });
    });
    frame.heat(area, w.clients, w.columns, (i, c) => (known(rows[i][c]) ? shade(rows[i][c]) : null));
    frame.cells(area, w.clients, w.columns, (i, c) => ({
      title: nameOf(i, run),
      rows: [
        ["round", String(w.rounds[c])],
        [word, known(rows[i][c]) ? fixed(rows[i][c], 3) : "not in this round"],
      ],
    }));
    roundsBelow(frame, area, w.rounds);
    const labels = [signed ? brief(-high) : "0", signed ? "0" : brief(high / 4), `${cut ? "≥ " : ""}${brief(high)}`];
    frame.scaleBar(area.left, area.bottom + 46, Math.min(220, (area.right - area.left) * 0.5), colour, labels, word);
    frame.end(area.bottom + 74);
    return shares.length ? [{ label: "share of the samples", colour: theme.ink, tick: true }] : null;
  },
});

// The run that is looked at if its rule chooses among others, or else one beside it whose rule does.
function choosing() {
  const runs = [focus(), ...rivals()].flatMap((cell) => [cell === focus() ? focusRun() : null, ...runsOf(cell)]);
  return runs.find((run) => run?.choice && run.seed === focusRun().seed) || runs.find((run) => run?.choice);
}

PLOTS.push({
  id: "choice",
  section: "weights",
  wide: true,
  title: () => `What the rule chose: ${data.cells[choosing().cell].label}, seed ${choosing().seed}${here()}`,
  how: "The rules and step lengths that it chooses from (rows) over the rounds; the stronger the colour the more weight what clients said gives to it, and the line is what made the step. Marks above are the rounds in which clients were asked what each step would do to their losses.",
  there: () => Boolean(choosing()),
  choices: () => choose.run(),
  note: () => choosing().choice.words,
  draw(frame) {
    const { theme } = frame,
      { names, rounds, taken, weights, asked, verdicts } = choosing().choice,
      bytes = bytesOf(weights),
      columns = rounds.length,
      colour = ramp(theme.ramp),
      top = bytes.reduce((most, byte) => Math.max(most, byte / 250), 0.05);
    const of = (row, column) => bytes[row * columns + column] / 250,
      step = Math.max(12, Math.min(20, 360 / names.length));
    const left = Math.min(frame.width * 0.42, 10 + Math.max(...names.map((name) => widthOf(name, 10.5, 700))));
    const area = { left, right: frame.width - 6, top: 14, bottom: 14 + step * names.length },
      wide = (area.right - area.left) / columns;
    names.forEach((name, row) => {
      frame.text(left - 7, area.top + step * (row + 0.5) + 3.5, shorten(name, left - 8, 10.5), {
        anchor: "end",
        size: 10.5,
        weight: row === taken[columns - 1] ? 700 : 400,
        colour: row === taken[columns - 1] ? theme.ink : theme.soft,
      });
    });
    frame.heat(area, names.length, columns, (row, column) => colour(of(row, column) / top));
    for (const round of asked) {
      const at = rounds.indexOf(round);
      if (at >= 0) frame.marker(area.left + wide * (at + 0.5), area.top - 8, "triangle", theme.soft, 3.5);
    }
    const line = theme.series[1],
      style = { "stroke-width": 2.5, "stroke-linecap": "square" };
    taken.forEach((row, column) => {
      const y = area.top + step * (row + 0.5);
      frame.line(area.left + wide * column, y, area.left + wide * (column + 1), y, line, style);
    });
    frame.cells(area, names.length, columns, (row, column) => {
      const last = asked.findLastIndex((round) => round <= rounds[column]),
        told = verdicts[last]?.[names[row]];
      const said = told
        ? [
            [`asked in round`, String(asked[last])],
            ["change of the mean loss", known(told[0]) ? fixed(told[0], 4) : "–"],
            ["clients harmed", String(told[1])],
          ]
        : [];
      return {
        title: names[row],
        rows: [["round", String(rounds[column])], ["weight", percent(of(row, column))], ...said],
      };
    });
    roundsBelow(frame, area, rounds);
    const length = Math.min(220, (area.right - left) * 0.5);
    frame.scaleBar(left, area.bottom + 46, length, colour, ["0 %", "", percent(top, 0)], "weight");
    frame.end(area.bottom + 74);
    return [
      { label: "what was taken", colour: line },
      { label: "clients were asked", colour: theme.soft, point: true, shape: "triangle" },
    ];
  },
});
