// The page itself: figures with their choices and legends, the sortable table, light and dark, following a run.

// ---- the reader's choices, kept over a reload ---------------------------------------------------------------------

// The history entry survives a reload also on file://, where storage may not.
const kept = history.state?.comity ? history.state : null;
if (kept) {
  Object.assign(state, kept.state);
  // by name: a new run may have changed the indices
  state.setting = Math.max(
    0,
    data.settings.findIndex((setting) => setting.label === kept.setting),
  );
  state.cell = data.cells.findIndex((cell) => cell.setting === state.setting && cell.label === kept.cell);
  if (state.cell < 0) state.cell = data.focus;
}
function keep() {
  const open = [...document.querySelectorAll("details")].map((node) => node.open);
  const named = { setting: data.settings[state.setting].label, cell: focus().label };
  history.replaceState({ comity: true, state, ...named, scroll: scrollY, open }, "");
}

function settle() {
  if (!data.settings[state.setting]) state.setting = 0;
  if (!focus() || focus().setting !== state.setting || focus().ref) {
    const wanted = focus()?.label,
      here = rivals();
    state.cell = data.cells.indexOf(
      here.find((cell) => cell.label === wanted) || here[here.length - 1] || data.cells[0],
    );
  }
  if (!runsOf(focus()).some((run) => run.seed === state.seed)) state.seed = null;
  if (!sweepable().some((option) => option.key === state.sweep)) state.sweep = sweepable()[0]?.key;
  if (state.matrix !== "mean" && !focusRun().cos?.rounds.includes(Number(state.matrix))) state.matrix = "mean";
  if (!focusRun().agree && state.reason === "agree") state.reason = "train";
}

// ---- light and dark -----------------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let paper = 0; // the width of a plot while the page is printed
const themeNow = () => THEMES[paper ? "light" : state.theme || (prefersDark.matches ? "dark" : "light")];

function applyTheme() {
  document.documentElement.dataset.theme = themeNow().name;
  document.getElementById("theme").textContent = themeNow().name === "dark" ? "Light" : "Dark";
}

document.getElementById("theme").addEventListener("click", () => {
  state.theme = themeNow().name === "dark" ? "light" : "dark";
  refresh();
});
prefersDark.addEventListener("change", () => refresh());

// ---- figures ------------------------------------------------------------------------------------------------------

const figures = [];

function build() {
  for (const plot of PLOTS) {
    const caption = html("figcaption", {}, html("h3", {}), html("p", {}));
    const tools = html("div", { class: "save" });
    if (!plot.write) {
      tools.append(
        html("button", { type: "button", title: "Save this plot as SVG", onclick: () => save(plot, "svg") }, "SVG"),
      );
      tools.append(
        html("button", { type: "button", title: "Save this plot as PNG", onclick: () => save(plot, "png") }, "PNG"),
      );
    }
    const choices = html("div", { class: "choices" }),
      canvas = html("div", { class: "canvas" }),
      legend = html("div", { class: "legend" }),
      note = html("p", { class: "quiet" }),
      values = html("details", { class: "values", hidden: Boolean(plot.write) }, html("summary", {}, "Show numbers"));
    const node = html(
      "figure",
      { id: `plot-${plot.id}`, class: plot.wide ? "wide" : null },
      html("div", { class: "head" }, caption, tools),
      choices,
      canvas,
      legend,
      note,
      values,
    );
    values.addEventListener("toggle", () => listValues(figure));
    const figure = { plot, node, caption, choices, canvas, legend, note, values };
    document.querySelector(`#${plot.section} .plots`).append(node);
    figures.push(figure);
  }
  // A section without plots is hidden.
  for (const section of document.querySelectorAll("section[data-plots]")) {
    const empty = !PLOTS.some((plot) => plot.section === section.id && plot.there());
    section.hidden = empty;
    const link = document.querySelector(`nav a[href="#${section.id}"]`);
    if (link) link.hidden = empty;
  }
}

function paint(figure) {
  const { plot } = figure;
  figure.node.hidden = !plot.there();
  if (figure.node.hidden) return;
  figure.caption.children[0].textContent = plot.title();
  figure.caption.children[1].textContent = plot.how;
  const wanted = (plot.choices() || []).filter((choice) => choice && choice.options.length > 1);
  for (const choice of wanted) {
    const now = choice.value ?? state[choice.key];
    if (!choice.options.some(([value]) => String(value) === String(now))) state[choice.key] = choice.options[0][0];
  }
  figure.choices.replaceChildren(...wanted.map(control));
  figure.note.textContent = plot.note ? plot.note() : "";
  if (plot.write) return void legend(figure, plot.write(figure.canvas));
  const room = paper && !plot.wide ? (paper - 30) / 2 : paper;
  const frame = new Frame(room || Math.max(260, Math.floor(figure.canvas.clientWidth)), themeNow());
  const key = plot.draw(frame);
  frame.root.setAttribute("aria-label", `${plot.title()}. ${plot.how}`);
  figure.canvas.replaceChildren(frame.root);
  figure.canvas.dataset.marks = frame.marks;
  legend(figure, key);
  figure.frame = frame;
  listValues(figure);
}

// Folded names are shown by a button.
function legend(figure, key) {
  const folded = (key || []).filter(({ label }) => state.hidden[label] === "folded");
  const open = (key || []).filter((entry) => !folded.includes(entry));
  const unfold = () => {
    for (const [label, how] of Object.entries(state.hidden)) if (how === "folded") delete state.hidden[label];
    refresh();
  };
  const more = html("button", { type: "button", class: "fold", onclick: unfold }, `Show ${folded.length} more`);
  figure.legend.replaceChildren(...open.map(legendEntry), ...(folded.length ? [more] : []));
}

// The tooltips of a plot as a table, for the keyboard and for screen readers, built when it is opened.
const MOST_VALUES = 1000;
function listValues({ plot, values, frame }) {
  while (values.children.length > 1) values.lastChild.remove();
  if (!values.open || !frame) return;
  const entries = frame.values.flatMap((list) => list());
  const tables = tabled(entries.slice(0, MOST_VALUES)).map(({ labels, rows }) =>
    tableOf(
      "facts",
      ["of", ...labels].map((label) => label || "value"),
      rows.map(([title, cells]) => rowOf(title, cells)),
    ),
  );
  values.append(html("div", scrolling(`Values: ${plot.title()}`), tables));
  if (entries.length > MOST_VALUES)
    values.append(
      html("p", { class: "quiet" }, `The first ${MOST_VALUES} of ${entries.length}; the run folders have all.`),
    );
}

function refresh() {
  settle();
  applyTheme();
  tip.hide();
  figures.forEach(paint);
  showRows();
  keep();
}

// A few short choices are buttons, many are a list.
function control(choice) {
  const now = String(choice.value ?? state[choice.key]);
  const set = (value) => {
    const found = choice.options.find(([option]) => String(option) === String(value));
    state[choice.key] = found[0];
    refresh();
  };
  if (choice.options.length <= 6 && sum(choice.options.map(([, label]) => label.length)) < 44) {
    return html(
      "div",
      { class: "segments", role: "group", "aria-label": choice.label },
      choice.options.map(([value, label]) =>
        html(
          "button",
          { type: "button", "aria-pressed": String(String(value) === now), onclick: () => set(value) },
          label,
        ),
      ),
    );
  }
  const select = html(
    "select",
    { "aria-label": choice.label, onchange: (event) => set(event.target.value) },
    choice.options.map(([value, label]) => html("option", { value, selected: String(value) === now }, label)),
  );
  if (!choice.steps) return html("label", {}, select);
  const move = (by) => {
    const at = choice.options.findIndex(([value]) => String(value) === now),
      next = choice.options[(at + by + choice.options.length) % choice.options.length];
    set(next[0]);
  };
  return html(
    "span",
    { class: "steps" },
    html("button", { type: "button", title: "previous", onclick: () => move(-1) }, "‹"),
    html("label", {}, select),
    html("button", { type: "button", title: "next", onclick: () => move(1) }, "›"),
  );
}

function swatch(entry, theme) {
  const picture = new Frame(24, theme);
  if (entry.box) {
    picture.rect(5, 2, 14, 10, entry.colour, { rx: 2 });
    if (entry.striped)
      for (const x of [8, 12, 16])
        picture.line(x - 2, 12, x + 2, 2, theme.page, { "stroke-width": 1.2, "stroke-opacity": 0.6 });
  } else if (entry.dot) picture.circle(12, 7, 4.5, entry.colour);
  else if (entry.ring) picture.circle(12, 7, 4, "none", { stroke: entry.colour, "stroke-width": 1.4 });
  else if (entry.tick) picture.line(12, 1, 12, 13, entry.colour, { "stroke-width": 1.8 });
  else {
    if (!entry.point) picture.curve([0, 24], [7, 7], entry.colour, entry.dash);
    else picture.marker(12, 7, entry.shape, entry.colour, 4.5);
  }
  return picture.end(14).root;
}

function legendEntry(entry) {
  const picture = swatch(entry, themeNow());
  picture.setAttribute("aria-hidden", "true");
  if (!entry.cell) return html("span", { class: "key" }, picture, entry.label);
  const toggle = () => {
    if (state.hidden[entry.label]) delete state.hidden[entry.label];
    else state.hidden[entry.label] = true;
    refresh();
  };
  const dim = (event) => {
    for (const node of event.target.closest("figure").querySelectorAll("[data-of]")) {
      node.style.opacity = event.type === "pointerenter" && node.dataset.of !== entry.label ? 0.12 : "";
    }
  };
  return html(
    "button",
    {
      type: "button",
      class: "key",
      "aria-pressed": String(!state.hidden[entry.label]),
      onclick: toggle,
      onpointerenter: dim,
      onpointerleave: dim,
    },
    picture,
    entry.label,
  );
}

// ---- the table: sorted by a click, the third click brings back the first order ---------------------------------------

const table = document.querySelector("#results table"),
  body = table.tBodies[0],
  first = [...body.rows];

function sortBy(column, turn) {
  const value = (row) => {
    const raw = row.cells[column].dataset.v;
    return raw === undefined || raw === "" ? null : Number.isNaN(Number(raw)) ? raw : Number(raw);
  };
  const rows = [...first];
  if (turn) {
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * (turn === "descending" ? -1 : 1);
    });
  }
  body.replaceChildren(...rows);
  table.classList.toggle("sorted", Boolean(turn));
  for (const [i, cell] of [...table.tHead.rows[0].cells].entries())
    cell.setAttribute("aria-sort", i === column && turn ? turn : "none");
  state.sort = turn ? [column, turn] : null;
}

[...table.tHead.rows[0].cells].forEach((cell, column) => {
  cell.querySelector("button").addEventListener("click", () => {
    const words = first.some((row) => row.cells[column].dataset.v && Number.isNaN(Number(row.cells[column].dataset.v)));
    const turns = words ? ["ascending", "descending", null] : ["descending", "ascending", null];
    const now = turns.indexOf(cell.getAttribute("aria-sort"));
    sortBy(column, turns[(now + 1) % 3]);
    keep();
  });
});

const only = document.getElementById("only");
function showRows() {
  const all = !only?.checked;
  for (const row of first) row.hidden = !all && Number(row.dataset.setting) !== state.setting;
  if (only) only.nextSibling.textContent = ` only ${data.settings[state.setting].label}`;
}
if (only) only.addEventListener("change", showRows);
document
  .getElementById("more")
  ?.addEventListener("change", (event) => table.classList.toggle("all", event.target.checked));

// ---- start --------------------------------------------------------------------------------------------------------

// Initial curves: local training, the recommended configuration and the closest ones.
const MOST_LINES = 5;
if (!kept) {
  const reached = (cell) => cell.mean?.gain ?? cell.numbers.value?.[0] ?? Infinity,
    away = (cell) => (cell.ref ? -2 : cell === focus() ? -1 : Math.abs(reached(cell) - reached(focus())));
  for (const cell of [...cellsHere()].sort((a, b) => away(a) - away(b)).slice(MOST_LINES))
    state.hidden[cell.label] = "folded";
}
settle();
applyTheme();
build();
refresh();
if (state.sort) sortBy(...state.sort);
if (kept) {
  document.querySelectorAll("details").forEach((node, i) => {
    node.open = Boolean(kept.open[i]);
  });
  scrollTo({ top: kept.scroll, behavior: "instant" });
}
addEventListener("scrollend", keep);
addEventListener("pagehide", keep);

// On paper: light, with the width of A4; the table as large as fits.
function print(on) {
  paper = on ? 640 : 0;
  document.documentElement.classList.toggle("paper", on); // the tables are now as narrow as they can be
  applyTheme();
  figures.forEach(paint);
  for (const wide of document.querySelectorAll("#results table, .canvas table"))
    wide.style.zoom = on ? Math.min(1, paper / wide.getBoundingClientRect().width) : "";
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));

let pending = 0,
  lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return; // a phone's bars come and go
  lastWidth = innerWidth;
  clearTimeout(pending);
  pending = setTimeout(() => figures.forEach(paint), 120);
});

// ---- following a run: the file is rewritten, the page reads it again when nobody is busy with it ----------------------

if (data.live) {
  let touched = 0;
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel"])
    addEventListener(
      kind,
      () => {
        touched = Date.now();
      },
      { passive: true },
    );
  setInterval(() => {
    if (document.hidden || Date.now() - touched < 4000 || document.activeElement?.tagName === "SELECT") return;
    keep();
    location.reload();
  }, data.live * 1000);
}
