// What Python put into the page, what the reader chose, and how a method and its rule look everywhere.

const data = JSON.parse(document.getElementById("data").textContent);
const THEMES = data.themes;

const state = {
  setting: data.cells[data.focus].setting, // place in data.settings
  cell: data.focus, // place in data.cells: the method and rule that the client plots are about
  seed: data.seed, // where the headline's client loses most
  against: "against",
  hidden: {}, // labels that were switched off
  theme: null,
  curve: "acc",
  across: "r",
  sweep: null,
  sweepOf: "acc",
  box: "acc",
  reason: "agree",
  matrix: "mean",
  order: "id",
  layer: null,
  general: "G",
};

const cellsHere = () => data.cells.filter((cell) => cell.setting === state.setting);
const rivals = () => cellsHere().filter((cell) => !cell.ref);
const shown = (cells) => cells.filter((cell) => !state.hidden[cell.label]);
const focus = () => data.cells[state.cell];
const runsOf = (cell) => cell.runs.map((place) => data.runs[place]);
const counted = (cell) =>
  runsOf(cell).some((run) => run.done) ? runsOf(cell).filter((run) => run.done) : runsOf(cell);
const partitionOf = (run) => data.partitions[run.part];

function focusRun() {
  const runs = runsOf(focus());
  return runs.find((run) => run.seed === state.seed) || runs.find((run) => run.done) || runs[0];
}

// What a cell is compared with: the same method with the plain mean, or with the rule that was asked for.
const baseOf = (cell) => data.cells[cell.base];

function nameOf(client, run) {
  const name = partitionOf(run)?.clients[client];
  return `client ${client}${name ? `, ${name}` : ""}${run.bad.includes(client) ? " (malicious)" : ""}`;
}
const classOf = (part, k) => part.classes[k] || String(k);
// A name where there is room for it, else the number.
const fitting = (name, number, width) => (name && 6.5 * name.length < width ? name : String(number));
const here = () => (data.settings.length > 1 ? ` (${data.settings[state.setting].label})` : "");
const aboutRun = () => `${focus().label}, seed ${focusRun().seed}${here()}`;

// As long as there are enough, every line has a colour of its own; more lines share their method's. Dashes and shape
// say the rule in any case. `line`, `method` and `rule` are their places in `lines`, `methods` and `rules`.
function looks(theme, cell, { line, lines, method, methods, rule, rules }) {
  if (cell.ref) return { colour: theme.local, dash: DASHES.local, shape: SHAPES.local };
  const own = lines.length <= theme.series.length || methods.length === 1;
  const which = own ? lines.indexOf(line) : methods.indexOf(method);
  const place = Math.max(0, rules.indexOf(rule));
  return {
    colour: theme.series[which % theme.series.length],
    dash: cell.plain ? DASHES.plain : DASHES.rules[place % DASHES.rules.length],
    shape: cell.plain ? SHAPES.plain : SHAPES.rules[place % SHAPES.rules.length],
  };
}

function styleOf(cell, theme) {
  const others = data.cells.filter((other) => other.setting === cell.setting && !other.ref);
  const unique = (values) => [...new Set(values)];
  const rules = unique(others.filter((other) => other.rule && !other.plain).map((other) => other.ruleName));
  const lines = unique(others.map((other) => other.label)),
    methods = unique(others.map((other) => other.method));
  return looks(theme, cell, { line: cell.label, lines, method: cell.method, methods, rule: cell.ruleName, rules });
}

const keyOf = (cell, theme, more = {}) => ({ cell, label: cell.label, ...styleOf(cell, theme), ...more });

// Choices that several plots share: what is chosen in one holds in all.
const choose = {
  setting: () =>
    data.settings.length > 1 && {
      label: "setting",
      key: "setting",
      options: data.settings.map((setting, place) => [place, setting.label]),
    },
  cell: () => ({
    label: "method and rule",
    key: "cell",
    options: rivals().map((cell) => [data.cells.indexOf(cell), cell.label]),
  }),
  seed: () => ({
    label: "seed",
    key: "seed",
    value: focusRun().seed,
    options: runsOf(focus()).map((run) => [run.seed, `seed ${run.seed}`]),
  }),
  run: () => [choose.setting(), choose.cell(), choose.seed()],
  of: (label, key, table, keys) => ({ label, key, options: keys.map((name) => [name, table[name][0]]) }),
};

// ---- what is known of a run's clients -----------------------------------------------------------------------------

// Gain over training alone of every client, worst first; empty where nobody knows how they do alone.
function gains(run) {
  if (!run.gain) return [];
  const clients = run.ids.map((id, i) => ({
    id,
    i,
    gain: run.gain[i],
    harmed: run.harmed.includes(id),
    sure: run.sure ? run.harmed.includes(id) && run.sure.includes(id) : null,
    only: run.only?.[i] || [null, null],
    acc: run.acc[i],
    alone: run.alone[i],
    train: run.train[i],
    test: run.test[i],
  }));
  return clients.filter((client) => known(client.gain)).sort((a, b) => a.gain - b.gain);
}

// Whom the headline names.
const isNamed = (id, run) => id === data.client && state.cell === data.focus && run.seed === (data.seed ?? run.seed);
const harmedIn = (run) => new Set(run.harmed);
const anyGains = () => rivals().some((cell) => runsOf(cell).some((run) => gains(run).length));

// Letters of a client's number: harmed ones stand out.
const idStyle = (theme, harmed, step) => ({
  size: step < 14 ? 9.5 : 10.5,
  colour: harmed ? theme.harm : theme.soft,
  weight: harmed ? 700 : 400,
});

function cosinesOf(run, which = state.matrix) {
  if (!run.cos) return null;
  const at = run.cos.rounds.indexOf(Number(which)),
    n = run.cos.n;
  const bytes = bytesOf(which === "mean" || at < 0 ? run.cos.mean : run.cos.each[at]);
  return { n, of: (i, j) => (i === j || bytes[i * n + j] === 255 ? null : bytes[i * n + j] / 120 - 1) };
}

// The rule's coefficients in one layer, clients × rounds.
function weightsOf(run) {
  if (!run.w?.maps.length) return null;
  const at = Math.max(0, run.w.names.indexOf(state.layer)),
    [top, packed] = run.w.maps[at];
  const bytes = bytesOf(packed),
    columns = run.w.rounds.length;
  const of = (client, column) => {
    const level = (bytes[client * columns + column] - 127) / 127;
    return bytes[client * columns + column] === 255 ? null : Math.sign(level) * level ** 2 * top;
  };
  return { layer: run.w.names[at], rounds: run.w.rounds, columns, clients: bytes.length / columns, of };
}

// How much more a client counts than its samples would make it count.
function pullOf(run, id) {
  const part = partitionOf(run);
  if (!run.w || !part || !known(run.w.share[id])) return null;
  return (run.w.share[id] * sum(part.counts.map(sum))) / sum(part.counts[id]);
}

// ---- shapes that several plots have -------------------------------------------------------------------------------

const PLOTS = [];

function nothing(frame, words = "This run has not noted it.") {
  frame.text(frame.width / 2, 60, words, { anchor: "middle", size: 12.5 });
  frame.end(110);
  return null;
}

const inPercent = (value) => `${+(100 * value).toFixed(1)} %`;
const inPoints = (value) => minus(`${+(100 * value).toFixed(1)}`);

// Rows with a label each: beside them where there is room, above them on a phone.
function rowsOf(frame, cells, { wide, narrow }) {
  const widest = Math.max(30, ...cells.map((cell) => widthOf(cell.label, 12)));
  const left = frame.narrow ? 0 : Math.min(230, 16 + widest),
    step = frame.narrow ? narrow : wide,
    top = 10;
  cells.forEach((cell, row) => {
    const y = top + step * row,
      colour = frame.theme.ink;
    if (frame.narrow) frame.text(0, y + 12, shorten(cell.label, frame.width, 11.5), { size: 11.5, colour });
    else
      frame.text(left - 8, y + step / 2 + 4, shorten(cell.label, left - 10, 12), { anchor: "end", size: 12, colour });
  });
  const middle = (row) => top + step * (row + 0.5) + (frame.narrow ? 8 : 0);
  return { left, top, bottom: top + step * cells.length, middle };
}

// The rounds under a heat map whose columns may leave some out.
function roundsBelow(frame, area, rounds) {
  const step = (area.right - area.left) / rounds.length;
  const wanted = new Set(ticks(rounds[0], rounds[rounds.length - 1], frame.narrow ? 4 : 8));
  const there = rounds.map((number, column) => [number, column]).filter(([number]) => wanted.has(number));
  const ends = [
    [rounds[0], 0],
    [rounds[rounds.length - 1], rounds.length - 1],
  ];
  const place = new Map(there.length ? there : ends);
  frame.xAxis(area, (number) => area.left + step * (place.get(number) + 0.5), [...place.keys()], String, "round");
}
