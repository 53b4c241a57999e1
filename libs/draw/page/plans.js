// The page of plans: the mesh and who holds what, rules, timeline, memory over time, communication.

// Ranks as boxes in boxes: the outermost axis first, adjacent ranks side by side.
function meshBoxes(mesh) {
  const own = mesh.axes.map((axis, index) => ({ ...axis, index })).filter((axis) => !axis.borrowed && axis.ways > 1);
  const box = (ranks, level) => {
    if (level === own.length) {
      const [number, rank] = ranks[0];
      const element = make("div", { class: "rank", title: mesh.axes.map((axis, i) => `${axis.name} ${rank.at[i]}`).join(", ") }, String(number));
      if (mesh.stages > 1) element.style.borderColor = colour(rank.stage), element.style.borderWidth = "2px";
      return element;
    }
    const axis = own[level], inside = make("div", { class: "inside" });
    const by = new Map();
    for (const entry of ranks) { const at = entry[1].at[axis.index]; if (!by.has(at)) by.set(at, []); by.get(at).push(entry); }
    for (const [at, list] of by) {
      if (level + 1 === own.length) inside.append(box(list, level + 1));
      else inside.append(make("div", { class: "axis" }, make("div", { class: "of" }, `${axis.name} ${at}`), box(list, level + 1)));
    }
    if (level + 1 < own.length) return inside;
    return make("div", { class: "axis" }, make("div", { class: "of" }, `${axis.name} 0 to ${axis.ways - 1}`), inside);
  };
  mesh.stages = new Set(mesh.ranks.map((rank) => rank.stage)).size;
  return make("div", { class: mesh.ranks.length > 64 ? "mesh many" : "mesh", tabindex: "0", role: "region", "aria-label": "Ranks by their coordinates" }, box(mesh.ranks.map((rank, i) => [i, rank]), 0));
}

function showMesh(plan, id) {
  const { mesh } = plan;
  const into = section("mesh" + id, "The mesh", `${mesh.size} ${mesh.size === 1 ? "rank" : "ranks"}; those along the last axis are adjacent.`);
  into.append(meshBoxes(mesh));
  if (mesh.ranks.length < mesh.size) into.append(note(`The first ${mesh.ranks.length} of ${mesh.size} ranks are drawn.`));
  if (mesh.axes.length === 0) return;
  into.append(numbers("axes, outermost first", [
    { name: "axis", value: (a) => a.name }, { name: "ranks", num: true, value: (a) => a.ways },
    { name: "splits", value: (a) => a.role || none }, { name: "its ranks", value: (a) => a.borrowed ? "borrowed of the axes above" : "its own" },
  ], () => mesh.axes));
  into.append(numbers("each rank's coordinates", [{ name: "rank", num: true, value: (r) => r.number }, { name: "stage", num: true, value: (r) => r.stage },
    ...mesh.axes.map((axis, i) => ({ name: axis.name, num: true, value: (r) => r.at[i] }))], () => mesh.ranks.map((rank, number) => ({ number, ...rank }))));
}

function showPlacements(plan, id) {
  const into = section("holds" + id, "Who holds what", "The parameters; equal layers share one row. Shape: the part of a parameter that each class of ranks computes with. Sharded: how that part is divided among ranks while no op uses it.");
  // One stage is shown at a time: all stages of a deep pipeline would fill twenty screens.
  oneOf(into, "Of", plan.placements.map((stage) => `stage ${stage.stage}`), 0, (holder, index) => {
    const stage = plan.placements[index], classes = stage.classes.slice(0, 8);
    holder.replaceChildren(table([
      { name: "parameter", value: (r) => r.name }, { name: "dims", value: (r) => r.dims }, { name: "placement", value: (r) => r.placement },
      ...classes.map((c, i) => ({ name: stage.classes.length === 1 ? "shape on each rank" : `shape on ${c.ranks} like rank ${c.first_rank}`, value: (r) => r.shapes[i] })),
      ...(stage.rows.some((r) => r.in_parts) ? [{ name: "sharded", value: (r) => r.in_parts }] : []),
    ], stage.rows, { caption: `${stage.rows.length} kinds of parameters`, rows: 4 }),
    classes.length < stage.classes.length ? note(`${stage.classes.length - classes.length} more classes of ranks; plan --json --placements has all.`) : "");
  });
  if (plan.rules.length === 0) return;
  into.append(numbers("rules: which dim lives on which axis", [
    { name: "dim", value: (r) => r.dim }, { name: "lives on", value: (r) => r.axis }, { name: "for", value: (r) => r.where }, { name: "said by", value: (r) => r.by },
  ], () => plan.rules));
}

// Some stages are drawn at a time: all of a deep pipeline are too many bars.
function showTimelineOf(plan, into) {
  const line = plan.timeline, firsts = [];
  for (let first = 0; first < line.rows.length; first += line.at_once) firsts.push(first);
  const names = firsts.map((first) => { const last = Math.min(line.rows.length, first + line.at_once) - 1; return last > first ? `stages ${first} to ${last}` : `stage ${first}`; });
  oneOf(into, "Of", names, 0, (holder, index) => {
    holder.replaceChildren(timeline(`Timeline of ${plan.name}${names.length > 1 ? `, ${names[index]}` : ""}`, [{ name: "", line: unpacked(line, firsts[index]) }]));
  });
  if (line.left_out) into.append(note(`${line.left_out} more stages are not on this page.`));
}

// How a stage interleaves works: a row for each work, and one for each axis that it sends over.
function showBraids(plan, into) {
  if (!plan.braids) return;
  const element = make("details", { class: "braids" }, make("summary", {}, "Works that share a stage: how they are interleaved"),
    make("p", { class: "lead" }, "A run of a braid, simulated by itself. Rows of works show what computes; rows of axes show whose transfers are on their way."));
  let made = false;
  element.fill = () => {
    if (made) return;
    made = true;
    oneOf(element, "Of", plan.braids.map((braid) => `${braid.name} on stage ${braid.stage}`), 0, (holder, index) => {
      const braid = plan.braids[index];
      holder.replaceChildren(note(braid.words), timeline(`Works that share a stage, ${braid.name}`, [{ name: "", line: braid.line }], "run"));
    });
  };
  element.addEventListener("toggle", () => { if (element.open) element.fill(); });
  into.append(element);
}

function showMemoryOver(plan, id) {
  const into = section("memory" + id, "Memory over time", "Predicted memory of the rank that holds most in each stage. Each forward or backward is drawn with its highest memory for its whole duration.");
  const names = plan.memory.map((m) => `stage ${m.stage} (rank ${m.rank}), peak ${bytesText(m.peak)}`);
  const highest = plan.memory.reduce((best, m, i) => m.peak > plan.memory[best].peak ? i : best, 0);
  oneOf(into, "Of", names, highest, (holder, index) => {
    const m = plan.memory[index];
    const base = Object.entries(m.lasting).filter(([, bytes]) => bytes > 0);
    const scale = byteScale(m.peak), end = Math.max(plan.step.ms, ...m.points.map((p) => p[1]));
    const unit = timeScale(end);
    const flat = m.points.length ? m.points.flatMap(([start, stop, activations, rest]) => [[start, activations, rest], [stop, activations, rest]]) : [[0, 0, 0], [end, 0, 0]];
    if (flat[flat.length - 1][0] < end) flat.push([end, flat[flat.length - 1][1], flat[flat.length - 1][2]]);
    if (flat[0][0] > 0) flat.unshift([0, flat[0][1], flat[0][2]]);
    const layers = [...base.map(([label, bytes]) => ({ label, of: () => bytes })), { label: "activations", of: (p) => p[1] }, { label: "buffers and the rest", of: (p) => p[2] }];
    const peak = { id: "peak", afterDatasetsDraw(drawn) {
      const { ctx, scales: { x, y }, chartArea } = drawn, px = x.getPixelForValue(m.peak_at), py = y.getPixelForValue(m.peak / scale.by);
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = look("--text");
      ctx.setLineDash([4, 4]);
      ctx.beginPath(); ctx.moveTo(chartArea.left, py); ctx.lineTo(chartArea.right, py); ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath(); ctx.arc(px, py, 4, 0, 7); ctx.fill();
      const text = `peak ${bytesText(m.peak)}`;
      ctx.font = `12px ${Chart.defaults.font.family}`;
      const width = ctx.measureText(text).width;
      ctx.fillText(text, Math.min(Math.max(px - width / 2, chartArea.left + 2), chartArea.right - width - 2), py - 9);
      ctx.restore();
    } };
    const box = chart(`Memory over time of stage ${m.stage}`, () => narrow() ? 280 : 260, () => ({
      type: "line",
      data: { datasets: layers.map((layer, i) => ({ label: layer.label, // Added up here: Chart.js stacks by x, and where a work ends the next begins.
        data: flat.map((p) => ({ x: p[0], y: layers.slice(0, i + 1).reduce((sum, l) => sum + l.of(p), 0) / scale.by, own: layer.of(p) })), fill: i === 0 ? "origin" : "-1",
        backgroundColor: faded(colour(i), 0.75), borderColor: colour(i), borderWidth: 0.5, pointRadius: 0, pointHitRadius: 4, tension: 0 })) },
      options: { parsing: false, normalized: true, interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: { type: "linear", min: 0, max: end, title: axisTitle(`time in the step (${unit[1]})`), ticks: { callback: (v) => tickText(v * unit[0]), maxTicksLimit: narrow() ? 5 : 11, includeBounds: false } },
          y: { beginAtZero: true, suggestedMax: 1.12 * m.peak / scale.by, title: axisTitle(`bytes of a rank (${scale.unit})`) } },
        plugins: { tooltip: { callbacks: { title: (items) => `at ${digits(items[0].parsed.x * unit[0], 4)} ${unit[1]}`, label: (item) => `${item.dataset.label}: ${bytesText(item.raw.own)}` } } } },
      plugins: [peak],
    }));
    holder.replaceChildren(colouredLegend(() => layers.map((layer, i) => [layer.label, colour(i)])), box,
      m.works > m.points.length ? note(`${m.works} works are drawn as ${m.points.length}: of neighbours the one that holds most.`) : "",
      m.estimated > m.peak / 100 ? note(`Of the peak, ${bytesText(m.estimated)} are an estimate: what a kernel allocates while it runs is not measured here for such large calls.`) : "",
      numbers("memory over time", [{ name: `from (ms)`, num: true, value: (p) => p[0], text: (p) => digits(p[0], 5) }, { name: "to (ms)", num: true, value: (p) => p[1], text: (p) => digits(p[1], 5) },
        { name: "activations", num: true, value: (p) => p[2], text: (p) => bytesText(p[2]) }, { name: "buffers and the rest", num: true, value: (p) => p[3], text: (p) => bytesText(p[3]) },
        { name: "all", num: true, value: (p) => p[2] + p[3] + base.reduce((a, b) => a + b[1], 0), text: (p) => bytesText(p[2] + p[3] + base.reduce((a, b) => a + b[1], 0)) }], () => m.points));
  });
  const categories = Object.keys(plan.memory[0].categories).filter((name) => plan.memory.some((m) => m.categories[name] > 0));
  into.append(numbers("highest memory of a rank by category, and the peak of all categories together, which can be lower than their sum", [{ name: "stage", num: true, value: (m) => m.stage },
    ...categories.map((name) => ({ name, num: true, value: (m) => m.categories[name], text: (m) => bytesText(m.categories[name]) })),
    { name: "peak", num: true, value: (m) => m.peak, text: (m) => bytesText(m.peak) }], () => plan.memory));
}

function showCommunication(plan, id) {
  const into = section("communication" + id, "Communication", "Predicted, of one rank and step. Exposed: time in which the rank does nothing else. With stages, both of the one that spends most.");
  if (plan.communication.length === 0) { into.append(make("p", {}, "No communication.")); return; }
  const rows = plan.communication, mostDrawn = 7, name = (c) => `${c.axis} ${c.op}, ${c.phase}`;
  const most = Math.max(...rows.map((c) => c.ms)), unit = timeScale(most);
  const parts = [["exposed", (c) => Math.min(c.exposed, c.ms)], ["beside compute", (c) => Math.max(0, c.ms - c.exposed)]];
  const drawn = rows.slice().sort((a, b) => b.ms - a.ms).slice(0, mostDrawn);
  into.append(colouredLegend(() => parts.map(([label], i) => [label, colour(i === 0 ? 1 : 5)])));
  into.append(bars("Communication", drawn.map(name), () => parts.map(([label, of], i) => ({ label, stack: "one", backgroundColor: colour(i === 0 ? 1 : 5), data: drawn.map((c) => of(c) * unit[0]) })),
    { stacked: true, unit: `time of a rank and step (${unit[1]})`, text: (value) => `${digits(value, 3)} ${unit[1]}` }));
  if (drawn.length < rows.length) into.append(note(`The ${drawn.length} longest of ${rows.length} are drawn.`));
  into.append(numbers("collectives and transfers of a rank in one step", [
    { name: "axis", value: (c) => c.axis }, { name: "collective", value: (c) => c.op }, { name: "phase", value: (c) => c.phase },
    { name: "calls", num: true, value: (c) => c.calls }, { name: "bytes", num: true, value: (c) => c.bytes, text: (c) => bytesText(c.bytes) },
    { name: "time", num: true, value: (c) => c.ms, text: (c) => secondsText(c.ms / 1e3) },
    { name: "exposed", num: true, value: (c) => c.exposed, text: (c) => secondsText(c.exposed / 1e3) },
    { name: "exposed, of the step", num: true, value: (c) => c.exposed, text: (c) => percentText(c.exposed / plan.step.ms) },
    { name: "basis", title: "how the time is known: measured, fitted, or beyond both", value: (c) => known(c.ms) ? c.basis : none },
  ], () => rows, { sort: [6, "descending"] }));
}

// How much a step changes where one value of the machine or plan is changed: the largest change first.
function showWhatIf(plan, id) {
  if (!plan.what_if) return;
  const into = section("whatif" + id, "What if", "The same plan, priced with one value after another changed. A change for which no plan exists has no bar; the table gives the reason.");
  const rows = plan.what_if.rows, priced = rows.filter((r) => known(r.change)), drawn = priced.slice().sort((a, b) => Math.abs(b.change) - Math.abs(a.change)).slice(0, mostBars);
  const shade = () => drawn.map((r) => colour(r.change > 0 ? 1 : 0));
  if (drawn.length) into.append(bars("What if", drawn.map((r) => r.name), () => [{ label: "change of the step", data: drawn.map((r) => 100 * r.change), backgroundColor: shade() }],
    { unit: "change of the step (%)", text: (value) => `${value > 0 ? "+" : ""}${digits(value, 3)} %` }));
  if (drawn.length < priced.length) into.append(note(`The ${drawn.length} largest changes of ${priced.length} are drawn.`));
  const signed = (share) => `${share > 0 ? "+" : ""}${percentText(share)}`;
  into.append(table([
    { name: "what if", value: (r) => r.name }, { name: "value", num: true, value: (r) => r.value },
    { name: "step", num: true, value: (r) => r.step_seconds, text: (r) => known(r.step_seconds) ? secondsText(r.step_seconds) : none },
    { name: "change", num: true, value: (r) => r.change, text: (r) => known(r.change) ? signed(r.change) : none },
    { name: "tokens/s", num: true, value: (r) => r.tokens_per_second, text: (r) => known(r.tokens_per_second) ? countText(r.tokens_per_second) : none },
    { name: "memory", num: true, value: (r) => r.peak_bytes, text: (r) => known(r.peak_bytes) ? bytesText(r.peak_bytes) : none },
    { name: "fits", value: (r) => r.fits === undefined ? none : r.fits ? "yes" : "no" }, { name: "basis", value: (r) => r.basis || none },
    { name: "what changed", value: (r) => r.changed },
  ], rows, { caption: "Each number and each value" }));
  if (plan.what_if.sensitivities.length) into.append(table([
    { name: "a tenth more of", value: (r) => r.knob }, { name: "of the step", num: true, value: (r) => r.worth, text: (r) => signed(r.worth) },
    { name: "of tokens/s", num: true, value: (r) => r.tokens_worth, text: (r) => signed(r.tokens_worth) }, { name: "how", value: (r) => r.by },
  ], plan.what_if.sensitivities, { caption: "Effect of a tenth more" }));
}

function showPlan(plan, index) {
  const many = data.plans.length > 1, id = many ? `-${index}` : "", main = document.getElementById("main");
  main.append(tiles([["step", secondsText(plan.step.ms / 1e3)], ["tokens/s", countText(plan.step.tokens)], ["MFU", percentText(plan.step.mfu)],
    ["bubble", percentText(plan.step.bubble)], ["exposed communication", secondsText(plan.step.exposed / 1e3)],
    ...(plan.step.copies > 0 ? [["exposed host copies", secondsText(plan.step.copies / 1e3)]] : []),
    ["peak of a rank", bytesText(Math.max(...plan.memory.map((m) => m.peak)))]]));
  main.append(facts(plan.facts));
  for (const text of plan.notes) main.append(note(text));
  showWhatIf(plan, id);
  showMesh(plan, id);
  showPlacements(plan, id);
  const into = section("timeline" + id, "Timeline of a step", "Simulated: the slowest rank of each stage.");
  showTimelineOf(plan, into);
  showBraids(plan, into);
  showMemoryOver(plan, id);
  showCommunication(plan, id);
}

function showPlans() {
  const main = document.getElementById("main");
  const show = (index) => {
    forgetCharts(main);
    main.replaceChildren();
    document.getElementById("contents").replaceChildren();
    main.append(make("p", { class: "headline" }, data.plans.length > 1 ? breakable(`Predicted for ${data.plans[index].name}: nothing was run.`) : "Predicted: nothing was run."));
    for (const text of data.notes) main.append(note(text));
    if (data.plans.length > 1) {
      const select = make("select", { on: { change: () => { show(select.selectedIndex); document.querySelector("select").focus(); } } },
        data.plans.map((plan, i) => make("option", {}, `${i + 1}: ${plan.name}`)));
      select.selectedIndex = index;
      main.append(make("div", { class: "controls" }, make("label", {}, `Plan (of ${data.plans.length})`, select)));
    }
    showPlan(data.plans[index], index);
    document.body.dataset.charts = page.charts.length;
    if (document.body.dataset.ready) drawAll();
  };
  show(0);
}
