// Two classes: sensitivity and specificity, ROC and calibration curves of the recommended configuration's clients.

const twoClasses = data.binary?.clients || [];
const binaryNow = () => twoClasses.find(({ name }) => name === state.client) || twoClasses[0];
const chooseClient = () => [
  { label: "client", key: "client", value: binaryNow().name, options: twoClasses.map(({ name }) => [name, name]) },
];
const SHARES = { sens: "sensitivity", spec: "specificity", ppv: "positive predictive value" };

// A square from 0 to 1 in both directions.
function unitSquare(frame, across, up) {
  const size = Math.min(frame.width - 60, 330),
    area = { left: 46, right: 46 + size, top: 30, bottom: 30 + size };
  const x = linear(0, 1, area.left, area.right),
    y = linear(0, 1, area.bottom, area.top);
  frame.yAxis(area, y, ticks(0, 1, 5), inPercent, up);
  frame.xAxis(area, x, ticks(0, 1, 5), inPercent, across, { grid: true });
  frame.curve([x(0), x(1)], [y(0), y(1)], frame.theme.faint, "2 3", { "stroke-width": 1.2 });
  frame.end(area.bottom + 42);
  return { x, y };
}

PLOTS.push({
  id: "binary",
  section: "binary",
  wide: true,
  title: () => `Sensitivity, specificity and predictive value for class ${data.binary.positive}`,
  how: "Sensitivity: share of the positive samples that it predicts as positive. Specificity: share of the negative samples that it predicts as negative. Positive predictive value: share of its positive predictions that are correct.",
  there: () => twoClasses.length > 0,
  choices: () => [],
  write(node) {
    const headings = ["client", "predictions", "truly positive", ...Object.values(SHARES)];
    const cells = (client) => [
      String(client.n),
      String(client.positive),
      ...Object.keys(SHARES).map((key) => percent(client[key])),
    ];
    const rows = twoClasses.map((client) => rowOf(client.name, cells(client)));
    const table = tableOf("facts", headings, rows.slice(0, state.all ? rows.length : MOST_ROWS));
    node.replaceChildren(html("div", scrolling(this.title()), table), foldOf(rows.length));
  },
});

PLOTS.push({
  id: "roc",
  section: "binary",
  title: () => `ROC curve: ${binaryNow().name}`,
  how: "Sensitivity and false positive rate at every threshold. Closer to the upper left corner is better. Grey: the other clients.",
  there: () => twoClasses.some(({ roc }) => roc),
  choices: chooseClient,
  draw(frame) {
    const { x, y } = unitSquare(frame, "false positive rate", "sensitivity"),
      now = binaryNow();
    const curve = ({ roc }, colour, more) =>
      frame.curve(
        roc.map(([alarms]) => x(alarms)),
        roc.map(([, hits]) => y(hits)),
        colour,
        "",
        more,
      );
    for (const other of twoClasses)
      if (other.roc && other !== now) curve(other, frame.theme.quiet, { "stroke-width": 1.2 });
    if (!now.roc) return [{ label: "no curve: its tests hold one class", colour: frame.theme.faint }];
    curve(now, frame.theme.series[0]);
    for (const [alarms, hits] of now.roc)
      frame.tell(frame.circle(x(alarms), y(hits), 5, "transparent"), () => ({
        title: now.name,
        rows: [
          ["sensitivity", percent(hits)],
          ["false positive rate", percent(alarms)],
        ],
      }));
    return null;
  },
});

PLOTS.push({
  id: "calibration",
  section: "binary",
  title: () => `Calibration: ${binaryNow().name}`,
  how: "Observed share of positives for groups of similar predicted probabilities. On the diagonal the two are equal.",
  there: () => twoClasses.length > 0,
  choices: chooseClient,
  draw(frame) {
    const { x, y } = unitSquare(frame, "predicted probability", "share of positives"),
      now = binaryNow(),
      colour = frame.theme.series[0];
    frame.curve(
      now.calibration.map(([p]) => x(p)),
      now.calibration.map(([, seen]) => y(seen)),
      colour,
      "",
    );
    for (const [p, seen, n] of now.calibration)
      frame.tell(frame.dot(x(p), y(seen), 4.5, colour), () => ({
        title: now.name,
        rows: [
          ["predicted", percent(p)],
          ["observed", percent(seen)],
          ["tests", String(n)],
        ],
      }));
    return null;
  },
});
