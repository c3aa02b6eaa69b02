// Personal or general, and what it costs.

const spread = (number) => (number ? percent(number[0]) + (number[1] ? ` ± ${fixed(100 * number[1], 1)}` : "") : "–");
const threeOf = (cell) => ({
  title: cell.label,
  rows: [
    ["own tests (L)", spread(cell.numbers.acc)],
    ["own and some others' (S)", spread(cell.numbers.S)],
    ["all clients' (G)", spread(cell.numbers.G)],
  ],
});
const generalCells = () => cellsHere().filter((cell) => cell.numbers.acc && cell.numbers.S && cell.numbers.G);

PLOTS.push({
  id: "general",
  section: "general",
  title: () => `Accuracy on own and on ${state.general === "G" ? "all clients'" : "some others'"} tests${here()}`,
  how: "Up: accurate on the client's own data. Right: also accurate on other clients' data. Dotted line: the Pareto front, configurations that no other one beats in both accuracies. Crosses show standard deviations over seeds.",
  there: () => generalCells().length > 0,
  choices: () => [
    choose.setting(),
    {
      label: "against",
      key: "general",
      options: [
        ["G", "all clients' (G)"],
        ["S", "some others' (S)"],
      ],
    },
  ],
  draw(frame) {
    const { theme } = frame,
      all = generalCells(),
      area = { left: 46, right: frame.width - 12, top: 30, bottom: 320 };
    const dots = shown(all).map((cell) => {
      const [[gx, dx], [gy, dy]] = [cell.numbers[state.general], cell.numbers.acc];
      return { cell, gx, gy, dx: dx || 0, dy: dy || 0, ...styleOf(cell, theme) };
    });
    const limits = { floor: 0, ceiling: 1, air: 0.1 };
    const x = linear(
      ...roomy(
        dots.flatMap(({ gx, dx }) => [gx - dx, gx + dx]),
        limits,
      ),
      area.left,
      area.right,
    );
    const y = linear(
      ...roomy(
        dots.flatMap(({ gy, dy }) => [gy - dy, gy + dy]),
        limits,
      ),
      area.bottom,
      area.top,
    );
    frame.yAxis(area, y, ticks(...y.domain, 6), inPercent, "own tests (L-acc)");
    const label = state.general === "G" ? "all clients' tests (G-acc)" : "own and some others' tests (S-acc)";
    frame.xAxis(area, x, ticks(...x.domain, 5), inPercent, label, { grid: true });
    const beats = (a, b) => a.gx >= b.gx && a.gy >= b.gy && (a.gx > b.gx || a.gy > b.gy);
    const front = dots.filter((dot) => !dots.some((other) => beats(other, dot))).sort((a, b) => a.gx - b.gx);
    const thin = { "stroke-opacity": 0.45, "stroke-width": 1.3 };
    const dotted = {
      fill: "none",
      stroke: theme.faint,
      "stroke-width": 1.3,
      "stroke-dasharray": "1.5 4",
      "stroke-linecap": "round",
    };
    if (front.length > 1)
      frame.add("path", {
        d: pathOf(
          front.map(({ gx }) => x(gx)),
          front.map(({ gy }) => y(gy)),
        ),
        ...dotted,
      });
    for (const { gx, gy, dx, dy, colour } of dots) {
      if (dx) frame.line(x(gx - dx), y(gy), x(gx + dx), y(gy), colour, thin);
      if (dy) frame.line(x(gx), y(gy - dy), x(gx), y(gy + dy), colour, thin);
    }
    for (const { cell, gx, gy, colour, shape } of dots)
      frame.tell(frame.marker(x(gx), y(gy), shape, colour, 5.5), () => threeOf(cell));
    frame.end(area.bottom + 42);
    return all.map((cell) => keyOf(cell, theme, { point: true }));
  },
});

PLOTS.push({
  id: "slopes",
  section: "general",
  title: () => `Accuracy on the client's own, on some and on all tests${here()}`,
  how: "Accuracy on the client's own tests (L), on its own and some others' (S), and on all clients' (G). A flat line is a general model, a steep line a personal model.",
  there: () => generalCells().length > 0,
  choices: () => [choose.setting()],
  draw(frame) {
    const { theme } = frame,
      all = generalCells(),
      cells = shown(all),
      kinds = ["acc", "S", "G"];
    const area = { left: 46, right: frame.width - 12, top: 30, bottom: 320 },
      at = (k) => area.left + 30 + (k * (area.right - area.left - 60)) / 2;
    const [low, high] = roomy(
      cells.flatMap((cell) => kinds.map((kind) => cell.numbers[kind][0])),
      { floor: 0, ceiling: 1 },
    );
    const y = linear(low, high, area.bottom, area.top);
    frame.yAxis(area, y, ticks(low, high, 6), inPercent, "accuracy");
    ["own (L)", "some (S)", "all (G)"].forEach((label, k) => {
      frame.line(at(k), area.top, at(k), area.bottom, theme.axis);
      frame.text(at(k), area.bottom + 18, label, { anchor: "middle", weight: 600, colour: theme.ink });
    });
    for (const cell of cells) {
      const { colour, dash, shape } = styleOf(cell, theme),
        ys = kinds.map((kind) => y(cell.numbers[kind][0]));
      frame.curve(
        kinds.map((_, k) => at(k)),
        ys,
        colour,
        dash,
        { "stroke-width": 1.8, "data-of": cell.label },
      );
      for (const [k, place] of ys.entries())
        frame.tell(frame.marker(at(k), place, shape, colour, 3.8), () => threeOf(cell));
    }
    frame.end(area.bottom + 42);
    return all.map((cell) => keyOf(cell, theme, { point: true }));
  },
});

// Parts of a cost one after another in a bar.
function stacked(frame, unit, parts) {
  const { theme } = frame,
    cells = cellsHere().filter((cell) => parts.every(([key]) => known(cell.numbers[key])));
  const rows = rowsOf(frame, cells, { wide: 30, narrow: 38 }),
    total = (cell) => sum(parts.map(([key]) => cell.numbers[key]));
  const x = linear(0, Math.max(1e-9, ...cells.map(total)), rows.left, frame.width - 66),
    tall = 14;
  cells.forEach((cell, row) => {
    const y = rows.middle(row) - tall / 2,
      facts = parts.map(([key, label, colour]) => [label, `${brief(cell.numbers[key])} ${unit}`, colour(theme)]);
    let from = 0;
    for (const [key, , colour] of parts) {
      const bar = frame.bar(x(from), y, Math.max(0.5, x(from + cell.numbers[key]) - x(from)), tall, colour(theme), {
        rx: 1.5,
      });
      frame.tell(bar, () => ({ title: cell.label, rows: [...facts, ["total", `${brief(total(cell))} ${unit}`]] }));
      from += cell.numbers[key];
    }
    frame.text(x(from) + 8, y + tall - 3, `${brief(from)} ${unit}`);
  });
  frame.end(rows.bottom + 6);
  return parts.map(([, label, colour]) => ({ label, colour: colour(theme), box: true }));
}

PLOTS.push({
  id: "time",
  section: "cost",
  title: () => `Seconds per round${here()}`,
  how: "Training of all clients in a round, and the server's aggregation, on the machine that ran them. Evaluation is not included.",
  there: () => cellsHere().some((cell) => known(cell.numbers.train)),
  choices: () => [choose.setting()],
  draw: (frame) =>
    stacked(frame, "s", [
      ["train", "training", (theme) => theme.gain],
      ["aggregate", "aggregation", (theme) => theme.series[1]],
    ]),
});

PLOTS.push({
  id: "bytes",
  section: "cost",
  title: () => `Megabytes per round${here()}`,
  how: "Received (down) and sent (up) by all clients in a round.",
  there: () => cellsHere().some((cell) => known(cell.numbers.up)),
  choices: () => [choose.setting()],
  draw: (frame) =>
    stacked(frame, "MB", [
      ["down", "down", (theme) => theme.gain],
      ["up", "up", (theme) => theme.series[2]],
    ]),
});
