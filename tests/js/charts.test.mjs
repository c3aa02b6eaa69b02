// The report's pure functions: numbers, scales, ranks, styles. `make js` runs them; the browser tests do the rest.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const assets = new URL("../../src/comity/report/assets/", import.meta.url);
const read = (name) => readFileSync(new URL(name, assets), "utf8");
const THEMES = JSON.parse(read("palette.json"));

// The scripts share one scope on the page, and so they do here; `data` is what Python would have put into the page.
const METRIC = { label: "accuracy", share: true, digits: 1, curve: "acc", margin: 0.02 };
const plain = {
  focus: 0,
  seed: null,
  cells: [{ setting: 0 }],
  settings: [{ label: "", metric: METRIC }],
  themes: THEMES,
};
function load(data = plain) {
  const document = {
    createElement: () => ({ getContext: () => ({ measureText: (text) => ({ width: 6 * text.length }) }) }),
    getElementById: () => ({ textContent: JSON.stringify(data) }),
  };
  const names = "ticks roomy quantile brief fixed percent linear logarithmic ramp every pathOf bandOf tabled";
  const more = "rankCorrelation styleOf clientsOf gains worseIn inMetric gainOf interval roundsBelow upper";
  const code = ["basics.js", "charts.js", "state.js", "learning.js", "clients.js", "conflict.js"].map(read).join("\n");
  return new Function("document", `${code}\nreturn {${`${names} ${more}`.split(" ").join(",")}};`)(document);
}

const page = load();

test("ticks are round, inside, and about as many as asked for", () => {
  assert.deepEqual(page.ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(page.ticks(-0.3, 0.3, 4), [-0.2, 0, 0.2]);
  assert.deepEqual(page.ticks(3, 3, 4), [3]);
  for (const [low, high] of [
    [0.013, 0.9],
    [-17, 1234],
    [1e-6, 3e-6],
  ])
    for (const count of [4, 5, 8]) {
      const found = page.ticks(low, high, count);
      assert.ok(found.length >= 2 && found.length <= count + 1, `${found}`);
      assert.ok(found.every((tick) => tick >= low && tick <= high));
    }
});

test("rounds have whole numbers below a heat map, whichever rounds there are", () => {
  for (const rounds of [[1, 2, 3], [2, 4, 6, 8], Array.from({ length: 20 }, (_, i) => i + 1), [7]]) {
    const frame = { narrow: false, xAxis: (_area, _scale, values) => (frame.told = values) };
    page.roundsBelow(frame, { left: 0, right: 100 }, rounds);
    assert.ok(frame.told.length);
    assert.ok(
      frame.told.every((round) => rounds.includes(round)),
      `${frame.told}`,
    );
  }
});

test("numbers are short, with a true minus, and never minus zero", () => {
  assert.equal(page.fixed(-0.04, 1), "0.0");
  assert.equal(page.fixed(-1.26, 1), "−1.3");
  assert.equal(page.percent(0.5), "50.0 %");
  assert.deepEqual([1234, 12345, 2.5e6, -0.123456, undefined].map(page.brief), [
    "1234",
    "12.3k",
    "2.5M",
    "−0.123",
    "–",
  ]);
  assert.equal(page.upper("log-loss"), "Log-loss");
});

test("scales go there and back", () => {
  const scale = page.linear(2, 4, 10, 30);
  assert.equal(scale(3), 20);
  assert.equal(scale.back(20), 3);
  assert.equal(page.linear(1, 1, 0, 10)(1), 0);
  assert.ok(Math.abs(page.logarithmic(1, 100, 0, 2)(10) - 1) < 1e-12);
  assert.deepEqual(page.roomy([0.2, 0.8], { floor: 0.19, ceiling: 1, air: 0.1 }), [0.19, 0.8600000000000001]);
  assert.deepEqual(page.roomy([]), [0, 1]);
});

test("quantiles, and ranks that rise together", () => {
  assert.equal(page.quantile([1, 2, 3, 4], 0.5), 2.5);
  assert.equal(page.quantile([7], 0.25), 7);
  const pairs = [1, 2, 3, 4].map((x) => [x, x ** 3]);
  assert.ok(Math.abs(page.rankCorrelation(pairs) - 1) < 1e-12);
  assert.ok(Math.abs(page.rankCorrelation(pairs.map(([x, y]) => [x, -y])) + 1) < 1e-12);
  assert.ok(
    Number.isNaN(
      page.rankCorrelation([
        [1, 1],
        [1, 2],
      ]),
    ),
  );
});

test("paths leave gaps where nothing is known", () => {
  assert.equal(page.pathOf([0, 1, 2, 3], [5, null, 6, 7]), "M0.0 5.0M2.0 6.0L3.0 7.0");
  assert.equal(page.bandOf([0, 1], [1, null], [2, null]), "");
  assert.equal(page.bandOf([0, 1], [1, 1], [2, 2]), "M0.0 2.0L1.0 2.0L1.0 1.0L0.0 1.0Z");
  assert.deepEqual(page.ramp(["#000000", "#ffffff"])(0.5), [128, 128, 128]);
  assert.deepEqual(page.ramp(["#000000", "#ffffff"])(7), [255, 255, 255]);
});

test("what marks tell becomes tables without losing anything", () => {
  const told = [
    { title: "client 0", rows: [["A", "1"]] },
    { title: "client 1", rows: [["A", "2"]] },
    { title: "client 0", rows: [["B", "3"]] },
    { title: "client 1", rows: [["B", "4"]] },
    {
      title: "client 2",
      rows: [
        ["round", "1"],
        ["w", "5"],
      ],
    },
    {
      title: "client 2",
      rows: [
        ["round", "2"],
        ["w", "6"],
      ],
    },
  ];
  assert.deepEqual(page.tabled(told), [
    {
      labels: ["A", "B"],
      rows: [
        ["client 0", ["1", "3"]],
        ["client 1", ["2", "4"]],
      ],
    },
    {
      labels: ["round", "w"],
      rows: [
        ["client 2", ["1", "5"]],
        ["client 2", ["2", "6"]],
      ],
    },
  ]);
});

function lines(methods, rules) {
  const cells = methods.flatMap((method) =>
    rules.map((rule) => ({
      setting: 0,
      label: `${method} + ${rule}`,
      method,
      rule,
      ruleName: rule,
      plain: rule === "Mean",
    })),
  );
  const { styleOf } = load({ ...plain, cells });
  return cells.map((cell) => ({ cell, ...styleOf(cell, THEMES.light) }));
}

test("every line looks like itself, by colour alone as long as there are enough", () => {
  const few = lines(["FedAvg", "FedRep"], ["Mean", "ConFREE", "CALM"]);
  assert.equal(new Set(few.map(({ colour }) => colour)).size, 6);
  const many = lines(["FedAvg", "FedRep", "Ditto"], ["Mean", "ConFREE", "CALM", "MGDA"]);
  assert.equal(new Set(many.map(({ colour }) => colour)).size, 3);
  assert.equal(new Set(many.map(({ colour, dash }) => colour + dash)).size, 12);
  const rules = lines(["FedAvg"], ["Mean", "ConFREE", "CALM"]);
  assert.equal(new Set(rules.map(({ colour }) => colour)).size, 3);
});

test("the clients of a run are those of its cell, over all seeds or of its own", () => {
  const clients = {
    id: [1, 0, 0],
    seed: [null, 4, 5],
    name: ["Basel", "client 0, seed 4", "client 0, seed 5"],
    state: ["worse", "undecided", "not worse"],
    gain: [-0.2, 0.1, null],
  };
  const cells = [{ setting: 0, clients }];
  const { gains, worseIn } = load({ ...plain, cells });
  const names = (seed) => gains({ cell: 0, seed }).map(({ name }) => name);
  assert.deepEqual([names(4), names(5), names(6)], [["Basel", "client 0, seed 4"], ["Basel"], ["Basel"]]);
  assert.deepEqual([...worseIn({ cell: 0, seed: 4 })], [1]);
});

test("a share is shown in percent and its gains in points, anything else in its own unit", () => {
  assert.deepEqual([0.5, null].map(page.inMetric), ["50.0 %", "–"]);
  assert.deepEqual([0.021, -0.4, 0.0001, null].map(page.gainOf), ["+2.1", "−40.0", "0.0", "–"]);
  assert.equal(page.interval({ low: -0.051, high: 0.2 }), "[−5.1, 20.0]");
  assert.equal(page.interval({ low: null, high: null }), "");
  const metric = { label: "log-loss", share: false, digits: 3, margin: 0.02 };
  const loss = load({ ...plain, settings: [{ label: "", metric }] });
  assert.deepEqual([loss.inMetric(0.5), loss.gainOf(0.0214)], ["0.500", "+0.021"]);
});
