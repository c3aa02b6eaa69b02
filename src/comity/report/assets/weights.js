// What the rule does: the weight of each client, and what a rule that chooses among others chose.

PLOTS.push({
  id: "weights",
  section: "weights",
  wide: true,
  title: () => `Weight of each client: ${aboutRun()}${weightsOf(focusRun()) ? `, ${weightsOf(focusRun()).layer}` : ""}`,
  how: "The rule's weight of each client (row) in each round; for CALM, λ of the client's constraint. Stronger colour: more weight. Blank: the client was not in that round. Bars are means over rounds; ticks are shares of the samples, which are the weights of the plain mean.",
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
      worse = worseIn(run);
    if (!w)
      return nothing(
        frame,
        runsOf(focus()).some((other) => other.w)
          ? "To keep this page small, it contains the weights of another seed only."
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
    // square root: many small coefficients stay visible beside a few large ones
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
        frame.text(area.left - 7, y + 3.5, String(i), { anchor: "end", ...idStyle(theme, worse.has(i), step) });
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

// The selected run if its rule chooses among others, otherwise another run whose rule does.
function choosing() {
  const runs = [focus(), ...rivals()].flatMap((cell) => [cell === focus() ? focusRun() : null, ...runsOf(cell)]);
  return runs.find((run) => run?.choice && run.seed === focusRun().seed) || runs.find((run) => run?.choice);
}

PLOTS.push({
  id: "choice",
  section: "weights",
  wide: true,
  title: () => `What the rule chose: ${data.cells[choosing().cell].label}, seed ${choosing().seed}${here()}`,
  how: "Rows are the rules and step lengths to choose from; columns are rounds. Stronger colour: more weight. Line: the choice that made the step. Triangles above: rounds in which clients reported the effect of each step on their losses.",
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
        verdict = verdicts[last]?.[names[row]];
      const said = verdict
        ? [
            [`reported in round`, String(asked[last])],
            ["change of the mean loss", known(verdict[0]) ? fixed(verdict[0], 4) : "–"],
            ["clients whose loss rises", String(verdict[1])],
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
      { label: "choice taken", colour: line },
      { label: "clients reported", colour: theme.soft, point: true, shape: "triangle" },
    ];
  },
});
