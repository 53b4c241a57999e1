// The page of runs and sweeps: its head, the table of mixes and policies, cells, machines.

const groupName = (g) => g.name;
const mean = (g, key) => g.m[key] ? g.m[key][0] : null;
// Mean ± standard deviation, with units of its own.
function spreadText(spread, text) {
  if (!spread) return none;
  const [value, deviation, n] = spread;
  return known(deviation) && n > 1 ? `${text(value)} ${deviationText(spread, text)}` : text(value);
}
function deviationText(spread, text) {
  if (!spread || !known(spread[1]) || spread[2] < 2) return "";
  const [value, deviation] = spread;
  if (deviation === 0) return "± 0";
  return `± ${text === countText && Math.abs(value) >= 1000 ? Math.round(deviation).toLocaleString("en-US") : text(deviation)}`;
}
// Half of the 95 % interval, which tokens/s and step times have; else the standard deviation.
function halfText(g, key, text) {
  const spread = g.m[key];
  if (!spread || g.half === undefined || (key !== "tokens" && key !== "step")) return deviationText(spread, text);
  return known(g.half) ? `± ${text(g.half * spread[0])}` : "± ?";
}
const speedText = (g, key, text) => g.m[key] ? [text(g.m[key][0]), halfText(g, key, text)].filter(Boolean).join(" ") : none;
// The tag of the fastest, or of those that are not told apart.
const rankTag = (g) => g.fastest ? tag(data.predicted ? "predicted fastest" : data.checked ? "fastest correct" : "fastest", "right")
  : g.contends ? tag("undecided", "unfinished") : null;
const withRank = (text, g) => { const rank = rankTag(g); return rank ? [text, " ", rank] : text; };
const speedKey = () => data.predicted ? "p_tokens" : "tokens";
const stepKey = () => data.predicted ? "p_step" : "step";
const peakKey = () => data.predicted ? "p_peak" : "peak";
const runsOf = (g) => data.predicted ? g.n : g.ran;
const verdictText = (verdict) => verdict !== "right" ? verdict : data.checked ? "correct" : "ran";
const tag = (text, kind) => make("span", { class: `tag ${(kind || text).replace(/\W/g, "-")}` }, text);

// What a table or a pivot can show of a group.
const measures = () => [
  { key: speedKey(), name: "tokens/s", text: countText, more: true },
  { key: stepKey(), name: "step time", text: secondsText },
  { key: peakKey(), name: "peak memory of a rank", text: bytesText },
  ...(data.predicted ? [] : [
    { key: "loss", name: "last loss (nats a token)", text: lossText },
    { key: "held_out", name: "held-out loss (nats a token)", text: lossText },
    { key: "mfu", name: "MFU", text: percentText },
    { key: "bubble", name: "bubble", text: percentText },
  ]),
].filter((m) => data.groups.some((g) => g.m[m.key]));

function showHead() {
  const main = document.getElementById("main");
  main.append(make("p", { class: "headline" }, data.headline));
  main.append(make("ul", { class: "chips", "aria-label": "Cells by status" },
    make("li", { class: "chip" }, make("b", {}, String(data.all_cells)), data.all_cells === 1 ? " cell" : " cells"),
    Object.entries(data.counts).map(([status, count]) => make("li", { class: "chip" }, make("b", {}, String(count)), " " + status))));
  if (data.asked.length) main.append(facts(data.asked));
  for (const text of data.notes) main.append(note(text));
}

// Rows: the first axis; columns: all combinations of the others. Of each, one measure.
function pivot(into) {
  const [rowAxis, ...others] = data.axes;
  if (!rowAxis || others.length === 0) return;
  const columnOf = (g) => others.length === 1 ? g.values[others[0]] ?? none
    : others.filter((axis) => g.values[axis] !== undefined).map((axis) => `${axis} ${g.values[axis]}`).join(", ") || none;
  const columns = [...new Set(data.groups.map(columnOf))], rows = [...new Set(data.groups.map((g) => g.values[rowAxis] ?? none))];
  if (columns.length < 2 || columns.length > 12 || rows.length < 2) return;
  if (data.groups.length < 0.6 * rows.length * columns.length) return; // mostly holes
  const all = measures(), at = new Map(data.groups.map((g, i) => [JSON.stringify([g.values[rowAxis] ?? none, columnOf(g)]), i]));
  if (at.size < data.groups.length) return; // of several sweeps: one place for two
  let chosen = all[0];
  const holder = make("div");
  const select = make("select", { on: { change: () => { chosen = all[select.selectedIndex]; draw(); } } }, all.map((m) => make("option", {}, m.name)));
  function draw() {
    const found = data.groups.map((g) => mean(g, chosen.key)).filter(known);
    const low = Math.min(...found), high = Math.max(...found);
    const cell = (g) => {
      if (!g) return none;
      const value = g.m[chosen.key];
      if (!value) return tag(verdictText(g.verdict), g.verdict);
      const more = [halfText(g, chosen.key, chosen.text), value[2] > 1 ? `n = ${value[2]}` : "",
        chosen.more && known(g.delta) && g.baseline !== data.groups.indexOf(g) ? changeText(g.delta) : "",
        g.baseline === data.groups.indexOf(g) ? "baseline" : ""].filter(Boolean).join(", ");
      return [chosen.text(value[0]), more ? make("span", { class: "more" }, more) : "", g.verdict === "failed" ? tag("failed") : ""];
    };
    holder.replaceChildren(table([
      { name: rowAxis, value: (row) => row },
      ...columns.map((column) => {
        const of = (row) => data.groups[at.get(JSON.stringify([row, column]))];
        return { name: column, num: true, value: (row) => { const g = of(row); return g ? mean(g, chosen.key) : null; }, cell: (row) => cell(of(row)),
          heat: (row) => { const g = of(row), v = g ? mean(g, chosen.key) : null; return known(v) && high > low ? (v - low) / (high - low) : null; } };
      }),
    ], rows, { caption: `${chosen.name} by ${rowAxis} and ${others.join(", ")}: mean over runs` }));
  }
  draw();
  into.append(make("div", { class: "controls" }, make("label", {}, "Show", select)), holder);
}

function showGroups() {
  // Which steps the numbers are of, and how many runs other programs disturbed.
  const disturbed = data.groups.reduce((n, g) => n + (g.disturbed || 0), 0), ran = data.groups.reduce((n, g) => n + (g.ran || 0), 0);
  const unknown = data.groups.reduce((n, g) => n + (g.unknown || 0), 0);
  const steps = unknown === ran ? "Medians over the steps after the warm-up."
    : disturbed === 0 ? "Medians over the steps after the warm-up that had the cores to themselves."
      : disturbed === ran ? "Other programs used the cores in nearly all steps of every run: these are medians over all steps after the warm-up, and the machine alone would be faster."
        : `Medians over the steps after the warm-up that had the cores to themselves; in ${disturbed} of ${ran} runs other programs used the cores in nearly all steps, and those are medians over all of them.`;
  const load = !unknown ? "" : ` For ${unknown === ran ? "these" : `${unknown} of ${ran}`} runs, it is not known what other programs used of the cores${unknown === ran ? "." : ": all steps count there."}`;
  const wide = data.groups.some((g) => g.half === null) ? " ± ?: the runs are too few, or differ too much, for a 95 % interval that tells anything." : "";
  const what = data.predicted ? "Predictions: nothing was run." : steps + load + " ± is half of a 95 % interval for speeds, and the standard deviation over n runs that differ only in the seed for the other columns." + wide;
  const into = section("mixes", "Mixes and policies", `${what} ${data.groups.some((g) => known(g.delta)) ? "Change: tokens/s compared with the baseline." : ""}`);
  pivot(into);
  const spread = (key, name, text) => ({ name, num: true, value: (g) => mean(g, key), text: (g) => speedText(g, key, text) });
  const columns = [{ name: "mix", value: groupName, cell: (g) => withRank(g.name, g) }];
  const named = data.axes.length > 1 || data.groups.some((g) => data.axes.some((axis) => (g.values[axis] ?? "") !== g.name));
  if (named && data.axes.length) for (const axis of data.axes) columns.push({ name: axis, value: (g) => g.values[axis] ?? "" });
  // A name that is made of the values says nothing beside their columns.
  const rest = (g) => data.axes.reduce((left, a) => left.replace(`${a}=`, "").replace(g.values[a] ?? "", ""), g.name);
  if (data.axes.length > 1 && data.groups.every((g) => /^[\s,]*$/.test(rest(g)))) columns.shift();
  if (columns[0].name !== "mix") {
    const first = columns[0].name;
    columns[0] = { name: first, value: (g) => g.values[first] ?? "", cell: (g) => withRank(g.values[first] ?? "", g) };
  }
  const all = measures();
  for (const m of all) {
    columns.push(spread(m.key, m.name.replace(" of a rank", "").replace(" (nats a token)", ""), m.text));
    if (m.more && data.groups.some((g) => known(g.delta))) {
      columns.push({ name: "change", num: true, value: (g) => known(g.delta) ? g.delta : null,
        cell: (g) => g.baseline === data.groups.indexOf(g) ? "baseline" : make("span", { class: !known(g.delta) ? null : g.delta > 0 ? "up" : g.delta < 0 ? "down" : null }, changeText(g.delta)) });
    }
  }
  const at = columns.findIndex((c) => c.name === "tokens/s");
  const state = [{ name: data.checked ? "correct?" : "state", value: (g) => verdictText(g.verdict), cell: (g) => tag(verdictText(g.verdict), g.verdict) },
    { name: "n", num: true, value: runsOf, title: "runs that are done; of these, those that count for its speed",
      text: (g) => { const fast = g.m.tokens ? g.m.tokens[2] : runsOf(g); return fast === runsOf(g) ? `${fast}` : `${runsOf(g)}, ${fast} of speed`; } }];
  if (disturbed > 0) state.push({ name: "disturbed", num: true, value: (g) => g.disturbed || 0,
    title: "runs in which other programs used the cores in nearly all steps", text: (g) => g.disturbed ? `${g.disturbed} of ${g.ran}` : none });
  columns.splice(at < 0 ? columns.length : at + (columns[at + 1] && columns[at + 1].name === "change" ? 2 : 1), 0, ...state);
  if (data.groups.some((g) => known(g.others))) {
    columns.push({ name: "others", num: true, value: (g) => g.others ?? null, title: "cores that other programs had meanwhile, on average",
      text: (g) => known(g.others) ? g.others.toFixed(1) : none });
  }
  if (data.groups.some((g) => g.parting)) columns.push({ name: "against the prediction", value: (g) => g.parting ?? "", long: true });
  into.append(table(columns, data.groups, { caption: "Every mix and policy", sort: at >= 0 ? [at, "descending"] : null,
    best: (g) => g.fastest, rows: 30 }));
}

function showNotDone() {
  const rows = data.cells.filter((c) => !["done", "predicted"].includes(c.status));
  if (rows.length === 0) return;
  const into = section("not-done", "Failed, skipped and refused", "Each with its reason. A mix with a failed cell is not right, however fast its other cells are.");
  into.append(table([
    { name: "cell", value: (c) => c.name },
    { name: "status", value: (c) => c.status, cell: (c) => tag(c.status) },
    { name: "reason", value: (c) => c.reason || "", text: (c) => c.reason || none, long: true },
    { name: "steps", num: true, value: (c) => c.steps ?? null },
    ...(rows.some((c) => known(c.seconds)) ? [{ name: "after", num: true, value: (c) => c.seconds, text: (c) => secondsText(c.seconds) }] : []),
  ], rows, { caption: "Cells that were not done", rows: 20 }));
}

function showCells() {
  const has = (key) => data.cells.some((c) => c[key] !== undefined);
  const into = section("cells", "Every cell", "What was run, one row a run.");
  into.append(table([
    { name: "cell", value: (c) => c.name },
    { name: "status", value: (c) => c.status, cell: (c) => tag(c.status) },
    ...(has("seed") ? [{ name: "seed", num: true, value: (c) => c.seed === undefined ? null : Number(c.seed), text: (c) => c.seed ?? none }] : []),
    ...(has("ranks") ? [{ name: "ranks", num: true, value: (c) => c.ranks ?? null }] : []),
    ...(has("steps") ? [{ name: "steps", num: true, value: (c) => c.steps ?? null }] : []),
    ...(has("tokens") ? [{ name: "tokens/s", num: true, value: (c) => c.tokens ?? null, text: (c) => countText(c.tokens) }] : []),
    ...(has("loss") ? [{ name: "last loss", num: true, value: (c) => c.loss ?? null, text: (c) => lossText(c.loss) }] : []),
    ...(has("held_out") ? [{ name: "held-out loss", num: true, value: (c) => c.held_out ?? null, text: (c) => lossText(c.held_out) }] : []),
    ...(has("seconds") ? [{ name: "took", num: true, value: (c) => c.seconds ?? null, text: (c) => secondsText(c.seconds) }] : []),
    ...(has("hash") ? [{ name: "hash", value: (c) => c.hash ?? "", code: true }] : []),
    { name: "file", value: (c) => c.file },
  ], data.cells, { caption: "Cells", rows: 25 }));
}

function showMachines() {
  if (data.machines.length === 0) return;
  const into = section("machines", "Hardware and versions", "Of the machine that each run was on, as its run says.");
  for (const machine of data.machines) {
    if (data.machines.length > 1) into.append(make("h3", {}, `${machine.cells} ${machine.cells === 1 ? "cell" : "cells"}`));
    into.append(facts(machine.facts));
  }
}

function showRuns() {
  showHead();
  showGroups();
  showNotDone();
  showLosses();
  showEdge();
  showMemory();
  showBytes();
  showBreakdown();
  showAccount();
  showTimelines();
  showPredicted();
  showCells();
  showMachines();
}
