// Data from Python, the reader's choices, and the style of each method and rule.

const data = JSON.parse(document.getElementById("data").textContent);
const THEMES = data.themes;

const state = {
  setting: data.cells[data.focus].setting, // place in data.settings
  cell: data.focus, // place in data.cells: the method and rule that the client plots are about
  seed: data.seed, // of the first client's row, where each seed has its own clients
  all: false, // whether every client has its row
  client: null, // whose ROC curve is drawn
  against: "against",
  hidden: {}, // labels that were switched off, or "folded" until all are asked for
  theme: null,
  curve: data.settings[data.cells[data.focus].setting].metric?.curve,
  across: "r",
  sweep: null,
  sweepOf: "value",
  box: "gain",
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
const partitionOf = (run) => data.partitions[run.part];

function focusRun() {
  const runs = runsOf(focus());
  return runs.find((run) => run.seed === state.seed) || runs.find((run) => run.done) || runs[0];
}

function nameOf(client, run) {
  const name = partitionOf(run)?.clients[client];
  return `client ${client}${name ? `, ${name}` : ""}${run.bad.includes(client) ? " (malicious)" : ""}`;
}
// A name if there is room, otherwise the index.
const fitting = (name, number, width) => (name && 6.5 * name.length < width ? name : String(number));
const here = () => (data.settings.length > 1 ? ` (${data.settings[state.setting].label})` : "");
const aboutRun = () => `${focus().label}, seed ${focusRun().seed}${here()}`;

// If there are enough colours, every line has its own; otherwise one per method. Dashes and shape always show the rule.
// `line`, `method` and `rule` are indices in `lines`, `methods` and `rules`.
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

// Choices that several plots share.
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

// ---- a run's clients ----------------------------------------------------------------------------------------------

// The rows of a cell's clients, worse ones first: the numbers of the verdict, over all repetitions.
function clientsOf(cell) {
  cell.rows ||= cell.clients.id.map((_, i) =>
    Object.fromEntries(Object.entries(cell.clients).map(([key, list]) => [key, list[i]])),
  );
  return cell.rows;
}

// The clients of one run with a known gain.
const gains = (run) =>
  clientsOf(data.cells[run.cell]).filter(({ seed, gain }) => known(gain) && (seed ?? run.seed) === run.seed);
const worseIn = (run) => new Set(gains(run).flatMap(({ id, state: found }) => (found === "worse" ? [id] : [])));
const anyGains = () => rivals().some((cell) => clientsOf(cell).some(({ gain }) => known(gain)));

// The metric that decides in the chosen setting: a share in percent and its gains in points, others in their own unit.
const deciding = () => data.settings[state.setting].metric;
const gainUnit = () => (deciding().share ? "points" : deciding().label);
function inMetric(value) {
  return deciding().share ? percent(value) : known(value) ? fixed(value, deciding().digits) : "–";
}
const inGain = (value) => fixed((deciding().share ? 100 : 1) * value, deciding().digits);
const gainOf = (value) =>
  known(value) ? `${value > 0 && !/^[0.]*$/.test(inGain(value)) ? "+" : ""}${inGain(value)}` : "–";
const gainTick = (value) => (deciding().share ? minus(`${+(100 * value).toFixed(1)}`) : brief(value));
const interval = ({ low, high }) => (known(low) ? `[${inGain(low)}, ${inGain(high)}]` : "");
const STATES = { worse: "harm", "not worse": "gain", undecided: "local" }; // their colours in a theme

// Style of a client's label: worse ones stand out.
const idStyle = (theme, worse, step) => ({
  size: step < 14 ? 9.5 : 10.5,
  colour: worse ? theme.harm : theme.soft,
  weight: worse ? 700 : 400,
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

// A client's weight relative to its share of samples.
function pullOf(run, id) {
  const part = partitionOf(run);
  if (!run.w || !part || !known(run.w.share[id])) return null;
  return (run.w.share[id] * sum(part.counts.map(sum))) / sum(part.counts[id]);
}

// ---- shared shapes ------------------------------------------------------------------------------------------------

const PLOTS = [];

function nothing(frame, words = "This run has not recorded it.") {
  frame.text(frame.width / 2, 60, words, { anchor: "middle", size: 12.5 });
  frame.end(110);
  return null;
}

const inPercent = (value) => `${+(100 * value).toFixed(1)} %`;

// Rows with labels: beside them if there is room, above them on a phone.
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

// The round axis of a heat map, whose columns may skip rounds.
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
