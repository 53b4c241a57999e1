// The charts of runs: losses and other curves, speed against memory, memory, bytes, timelines, and
// the measured beside the predicted.

const mostBars = 30; // of a chart: more cannot be read

// The groups that a chart of bars shows: the fastest, and what it says of those left out.
function fastestGroups(has) {
  const all = data.groups.filter(has);
  const speed = (g) => mean(g, "tokens") ?? mean(g, "p_tokens") ?? -1;
  all.sort((a, b) => speed(b) - speed(a));
  return { all, shown: all.slice(0, mostBars),
    note: all.length > mostBars ? note(`The ${mostBars} fastest of ${all.length} are drawn; the numbers below have all on this page.`) : null };
}

function curveSection(id, title, lead, unit, given) {
  const into = section(id, title, lead);
  const groups = [...new Set(given.map((curve) => data.cells[curve.cell].group))];
  const repeats = new Map();
  for (const curve of given) { const g = data.cells[curve.cell].group; repeats.set(g, (repeats.get(g) || 0) + 1); }
  const first = 10, most = 200, speed = (g) => mean(data.groups[g], "tokens") ?? -1;
  const on = new Set(groups.slice().sort((a, b) => speed(b) - speed(a)).slice(0, first));
  if (data.fastest >= 0 && groups.includes(data.fastest)) on.add(data.fastest);
  const curves = given.map((curve) => {
    const cell = data.cells[curve.cell], group = data.groups[cell.group];
    return { label: repeats.get(cell.group) > 1 ? `${group.name}, seed ${cell.seed ?? "?"}` : group.name, group: cell.group,
      index: groups.indexOf(cell.group), on: () => on.has(cell.group),
      points: curve.steps.map((step, i) => ({ x: step, y: curve.values[i] === null ? NaN : curve.values[i] })) };
  });
  const state = { log: false };
  const box = lines(title, unit, () => curves, state);
  const log = make("input", { type: "checkbox", on: { change: () => { state.log = log.checked; box.redraw(); } } });
  const toggles = make("div", { class: "toggles", role: "group", "aria-label": "Curves that are drawn", "data-legend": true });
  function fill() {
    toggles.replaceChildren(...groups.map((g, index) => {
      const input = make("input", { type: "checkbox", on: { change: () => { if (input.checked) on.add(g); else on.delete(g); box.redraw(); } } });
      input.checked = on.has(g);
      return make("label", {}, input, swatch(colour(index), true), data.groups[g].name);
    }));
    toggles.querySelectorAll(".swatch").forEach((s, index) => { if (dash(index).length) s.style.borderTopStyle = "dashed"; });
  }
  toggles.addEventListener("theme", fill);
  fill();
  const set = (all) => () => { on.clear(); if (all) groups.slice(0, most).forEach((g) => on.add(g)); fill(); box.redraw(); };
  into.append(make("div", { class: "controls" }, make("label", {}, log, "logarithmic"),
    make("button", { type: "button", on: { click: set(true) } }, groups.length > most ? `The first ${most}` : "All"), make("button", { type: "button", on: { click: set(false) } }, "None"),
    groups.length > first ? make("span", { class: "lead" }, `At first the ${first} fastest of ${groups.length} mixes are drawn.`) : null), toggles, box);
  const broken = curves.filter((c) => c.points.some((p) => !known(p.y))).map((c) => c.label);
  if (broken.length) into.append(note(`Not finite in some steps, so with gaps: ${shorter(broken.join(", "), 300)}.`));
  into.append(numbers("each point that is drawn", [
    { name: "run", value: (r) => r.run }, { name: "step", value: (r) => r.step, num: true },
    { name: unit, value: (r) => r.value, text: (r) => known(r.value) ? digits(r.value, 6) : "not finite", num: true },
  ], () => curves.flatMap((c) => c.points.map((p) => ({ run: c.label, step: p.x, value: p.y })))));
}

function showLosses() {
  if (data.losses.length) curveSection("loss", "Loss", "Training loss of each step. A colour is a mix; its runs with other seeds have the same colour.", "loss (nats a token)", data.losses);
  data.series.forEach((series, i) => {
    const held = series.name === "held_out_loss";
    curveSection("series-" + i, held ? "Held-out loss" : series.name, held ? `Loss on data that is not trained on (${series.name}).` : "A metric of the script's own.",
      held ? "loss (nats a token)" : series.name, series.curves);
  });
}

function showEdge() {
  const points = data.groups.map((g, index) => ({ g, index, x: mean(g, peakKey()), y: mean(g, speedKey()) })).filter((p) => known(p.x) && known(p.y));
  if (points.length < 2) return;
  const good = data.predicted ? "predicted" : "right";
  const into = section("edge", "Speed against memory", `Up and to the left is better. The Pareto front joins the mixes that no other ${data.checked ? "correct " : ""}mix${data.kinds > 1 ? " of equal work" : ""} beats in both. ${data.predicted ? "All predicted." : ""}`);
  const edge = points.filter((p) => p.g.edge).sort((a, b) => a.x - b.x);
  const scale = byteScale(Math.max(...points.map((p) => p.x)));
  const at = (p) => ({ x: p.x / scale.by, y: p.y, p });
  // Whiskers lie within the chart.
  const ends = points.flatMap(({ g, y }) => known(g.half) ? [y * (1 - g.half), y * (1 + g.half)] : []);
  const spread = ends.length > 0, around = spread ? { suggestedMin: Math.min(...ends), suggestedMax: Math.max(...ends) } : {};
  const kinds = [
    ["on the Pareto front", () => colour(0), "circle", points.filter((p) => p.g.edge)],
    [data.predicted ? "not on it" : `${verdictText(good)}, not on the Pareto front`, () => look("--muted"), "circle", points.filter((p) => !p.g.edge && p.g.verdict === good)],
    ["with failed or open cells", () => colour(1), "crossRot", points.filter((p) => !p.g.edge && p.g.verdict !== good)],
  ].filter(([, , , list]) => list.length);
  into.append(colouredLegend(() => [...kinds.map(([name, fill]) => [name, fill()]),
    ...(spread ? [["95 % interval", look("--muted"), true]] : [])]));
  const whiskers = { id: "whiskers", beforeDatasetsDraw(drawn) {
    const { ctx, scales: { x, y } } = drawn;
    ctx.save();
    ctx.strokeStyle = look("--muted");
    for (const p of points) {
      if (!known(p.g.half)) continue;
      const px = x.getPixelForValue(p.x / scale.by);
      ctx.beginPath(); ctx.moveTo(px, y.getPixelForValue(p.y * (1 - p.g.half))); ctx.lineTo(px, y.getPixelForValue(p.y * (1 + p.g.half))); ctx.stroke();
    }
    ctx.restore();
  } };
  into.append(chart("Speed against memory", () => narrow() ? 300 : 420, () => ({
    type: "scatter",
    data: { datasets: [...kindsOfPoints(kinds, at, points.length > 200), edgeLine(data.kinds > 1 ? [] : edge.map(at))] },
    options: {
      parsing: false,
      scales: { x: { title: axisTitle(`peak memory of a rank (${scale.unit})`), grace: "8%" }, y: { title: axisTitle("tokens/s"), grace: "8%", ...around, ticks: { callback: (v) => tickText(v) } } },
      plugins: { tooltip: { filter: (item) => item.raw.p && item.dataset.label !== "edge", callbacks: { label: ({ raw: { p } }) =>
        [p.g.name, `${spreadText(p.g.m[speedKey()], countText)} tokens/s`, `${bytesText(p.x)} peak`] } } },
    },
    plugins: [whiskers, namedPoints((set, raw) => set.label === "on the Pareto front" ? raw.p.g.name : null)],
  })));
  into.append(numbers("speed and memory", [
    { name: "mix", value: (p) => p.g.name }, { name: "peak memory", num: true, value: (p) => p.x, text: (p) => spreadText(p.g.m[peakKey()], bytesText) },
    { name: "tokens/s", num: true, value: (p) => p.y, text: (p) => spreadText(p.g.m[speedKey()], countText) },
    { name: "on the Pareto front", value: (p) => p.g.edge ? "yes" : "no" },
  ], () => points, { sort: [2, "descending"] }));
}

// Stacked bars of parts of a whole, of each group. `marks`: what the whole is.
function stacked(into, name, parts, order, partsOf, marks, title) {
  const { all, shown, note: left } = fastestGroups((g) => partsOf(g) && Object.keys(partsOf(g)).length > 0);
  if (all.length === 0) return;
  const keys = [...new Set(all.flatMap((g) => Object.keys(partsOf(g)).filter((key) => partsOf(g)[key] > 0)))];
  keys.sort((a, b) => (order.indexOf(a) + 99) % 99 - (order.indexOf(b) + 99) % 99 || a.localeCompare(b));
  const scale = byteScale(Math.max(1, ...all.map((g) => Object.values(partsOf(g)).reduce((a, b) => a + (b || 0), 0))));
  into.append(colouredLegend(() => [...keys.map((key, i) => [key, colour(i)]), ...(marks ? [[marks.name, look("--text"), true]] : [])]));
  into.append(bars(name, shown.map(groupName), () => keys.map((key, i) => ({ label: key, stack: "one", backgroundColor: colour(i),
    data: shown.map((g) => known(partsOf(g)[key]) ? partsOf(g)[key] / scale.by : null) })),
  { stacked: true, unit: `${title} (${scale.unit})`, text: (value) => bytesText(value * scale.by),
    footer: marks ? (i) => `${marks.name}: ${bytesText(marks.of(shown[i]))}` : (i) => `together: ${bytesText(Object.values(partsOf(shown[i])).reduce((a, b) => a + (b || 0), 0))}`,
    plugins: marks ? [marksOnBars(() => shown.map((g) => known(marks.of(g)) ? marks.of(g) / scale.by : null))] : [] }));
  if (left) into.append(left);
  into.append(numbers(parts, [{ name: "mix", value: groupName },
    ...keys.map((key) => ({ name: key, num: true, value: (g) => partsOf(g)[key] ?? null, text: (g) => bytesText(partsOf(g)[key]) })),
    ...(marks ? [{ name: marks.name, num: true, value: (g) => marks.of(g), text: (g) => bytesText(marks.of(g)) }] : [])], () => all));
}

function showMemory() {
  const key = data.predicted ? "p_memory" : "memory";
  if (!data.groups.some((g) => g[key] && Object.keys(g[key]).length)) return;
  const into = section("memory", "Memory by category", `${data.predicted ? "Predicted. " : ""}Each category's own highest, of the rank with most of it; the line on a bar is the highest of all together, which is less where the highs come at different moments.${data.groups.some((g) => g[key] && g[key].host > 0) ? " Host memory is beside it." : ""}`);
  stacked(into, "Memory by category", "memory by category", ["parameters", "gradients", "optimizer", "activations", "buffers", "scratch", "host"], (g) => g[key],
    { name: "peak of all together", of: (g) => mean(g, peakKey()) }, "bytes of a rank");
}

// Stacked bars of what the time of a step went to. `rowsOf`: a group's bars, each a name and its parts.
function stepsByParts(id, title, lead, has, rowsOf, order) {
  const { shown, all, note: left } = fastestGroups(has);
  if (all.length === 0) return;
  const into = section(id, title, lead), rows = shown.flatMap(rowsOf), allRows = all.flatMap(rowsOf);
  const keys = order.filter((key) => allRows.some(([, parts]) => parts[key] > 0));
  const total = (parts) => Object.values(parts).reduce((a, b) => a + b, 0), most = Math.max(...rows.map(([, parts]) => total(parts)));
  const unit = timeScale(1e3 * most);
  into.append(colouredLegend(() => keys.map((key, i) => [key, colour(i)])));
  into.append(bars(title, rows.map(([name]) => name), () => keys.map((key, i) => ({ label: key, stack: "one", backgroundColor: colour(i),
    data: rows.map(([, parts]) => known(parts[key]) ? 1e3 * parts[key] * unit[0] : null) })),
  { stacked: true, unit: `time of a step (${unit[1]})`, text: (value) => `${digits(value, 3)} ${unit[1]}`, footer: (i) => `together: ${secondsText(total(rows[i][1]))}` }));
  if (left) into.append(left);
  into.append(numbers(title.toLowerCase(), [{ name: "step", value: ([name]) => name },
    ...keys.map((key) => ({ name: `${key} (s)`, num: true, value: ([, parts]) => parts[key] ?? null, text: ([, parts]) => secondsText(parts[key]) })),
    { name: "together (s)", num: true, value: ([, parts]) => total(parts), text: ([, parts]) => secondsText(total(parts)) }], () => allRows));
}

// What the time of a traced step of each mix went to, beside what was predicted.
function showBreakdown() {
  stepsByParts("breakdown", "Breakdown of a step", "Of a step that was traced: what its time went to, on average of the stages, measured above predicted. Bubble: waits for other stages; other: what lies between instructions.",
    (g) => g.parts, (g) => [[`${groupName(g)}, measured`, g.parts], ...(g.p_parts ? [[`${groupName(g)}, predicted`, g.p_parts]] : [])],
    ["compute", "exposed communication", "exposed host copies", "bubble", "other"]);
}

// Where the seconds of a step of each mix went, above what the machine takes for the same work.
function showAccount() {
  stepsByParts("account", "Account of a step", "Of a step of which an account was taken (account = true): where its time went, on average of the ranks; below it the limit: its matrix products alone, and the bytes that it moves at the rate of copies.",
    (g) => g.account, (g) => [[groupName(g), g.account], [`${groupName(g)}, limit`, g.limit]], data.account_parts);
}

function showBytes() {
  const key = data.predicted ? "p_bytes" : "bytes";
  if (!data.groups.some((g) => g[key] && Object.keys(g[key]).length)) return;
  const into = section("bytes", "Bytes sent, by axis", `${data.predicted ? "Predicted. " : ""}Of one rank in one step: for each kind of collective the rank that sends most of it.`);
  stacked(into, "Bytes sent, by axis", "bytes by axis", [], (g) => g[key], null, "bytes of a rank and step");
}

function showTimelines() {
  if (data.timelines.length === 0) return;
  const into = section("timeline", "Timeline of a step", "Measured above, simulated below, on one axis of time. Measured: the step of median duration; simulated: the slowest rank of each stage.");
  oneOf(into, "Run", data.timelines.map((line) => data.cells[line.cell].name), 0, (holder, index) => {
    const line = data.timelines[index], parts = [];
    if (line.measured) parts.push({ name: line.simulated ? "measured" : "", line: line.measured });
    if (line.simulated) parts.push({ name: line.measured ? "simulated" : "", line: line.simulated });
    const name = `Timeline of ${data.cells[line.cell].name}`;
    holder.replaceChildren(make("p", { class: "lead" }, known(line.seconds) ? `Step ${line.step}; the median step took ${secondsText(line.seconds)}.` : ""), timeline(name, parts));
  });
}

function showPredicted() {
  const pairs = [["step time", "step", "p_step", secondsText], ["peak memory", "peak", "p_peak", bytesText]];
  const sum = (parts) => parts && Object.keys(parts).length ? Object.values(parts).reduce((a, b) => a + (b || 0), 0) : null;
  const error = (measured, predicted) => known(measured) && known(predicted) && measured > 0 ? predicted / measured - 1 : null;
  const errors = (g) => [...pairs.map(([, m, p]) => error(mean(g, m), mean(g, p))), error(sum(g.bytes), sum(g.p_bytes))];
  const { all, shown, note: left } = fastestGroups((g) => g.n > 0 && errors(g).some(known) && mean(g, "step") !== null);
  if (all.length === 0) return;
  const names = ["step time", "peak memory", "bytes sent"];
  const into = section("predicted", "Predicted against measured", "How much more (+) or less (−) was predicted than measured. No bar: exact, or within half a percent.");
  into.append(colouredLegend(() => names.map((name, i) => [name, colour(i)])));
  into.append(bars("Predicted against measured", shown.map(groupName), () => names.map((label, i) => ({ label, backgroundColor: colour(i),
    data: shown.map((g) => known(errors(g)[i]) ? 100 * errors(g)[i] : null) })),
  { unit: "predicted over measured (%)", each: 40, x: { suggestedMin: -5, suggestedMax: 5, ticks: { callback: (v) => (v > 0 ? "+" : "") + tickText(v).replace("-", "−"), maxTicksLimit: narrow() ? 6 : 11 } }, text: (value) => changeText(value / 100) }));
  if (left) into.append(left);
  into.append(numbers("predicted and measured", [{ name: "mix", value: groupName },
    ...pairs.flatMap(([name, m, p, text], i) => [
      { name: `${name}, measured`, num: true, value: (g) => mean(g, m), text: (g) => text(mean(g, m)) },
      { name: "predicted", num: true, value: (g) => mean(g, p), text: (g) => text(mean(g, p)) },
      { name: "error", num: true, value: (g) => errors(g)[i], text: (g) => changeText(errors(g)[i]) }]),
    { name: "bytes sent, measured", num: true, value: (g) => sum(g.bytes), text: (g) => bytesText(sum(g.bytes)) },
    { name: "predicted", num: true, value: (g) => sum(g.p_bytes), text: (g) => bytesText(sum(g.p_bytes)) },
    { name: "error", num: true, value: (g) => errors(g)[2], text: (g) => changeText(errors(g)[2]) }], () => all));
}
