// Timelines of a step: a row for each rank or stage, a bar for each work, all on one axis of time.

const works = {
  F: [0, "forward"], B: [1, "backward"], I: [4, "input gradient"], W: [2, "weight gradient"],
};
function workColour(kind) {
  if (works[kind]) return colour(works[kind][0]);
  if (/^receive/.test(kind)) return faded(look("--muted"), 0.35);
  if (/^(gather|reduce|totals|send)/.test(kind)) return colour(3);
  return colour(6); // the update, and what else ends a step
}
function workName(kind) {
  if (works[kind]) return `${kind} ${works[kind][1]}`;
  if (/^receive/.test(kind)) return "receive (waits included)";
  if (/^(gather|reduce|totals|send)/.test(kind)) return "gather, reduce, totals";
  return "update";
}

// Rows from `first` on of a timeline that packed_timeline() made, as many as are drawn at once. Works
// of a row that go on at once stand in rows of their own, one below the other.
function unpacked(line, first) {
  const end = Math.min(line.rows.length, first + line.at_once), rows = [], bars = [];
  for (let row = first; row < end; row += 1) {
    const packed = line.packed[row], top = rows.length, free = []; // when each of the rows is free
    for (let i = 0, at = 0; i < packed.length; i += 4) {
      const kind = line.kinds[packed[i]], which = packed[i + 1], start = at + packed[i + 2];
      at = start + packed[i + 3];
      let lane = 0;
      while (lane < free.length && free[lane] > start) lane += 1;
      free[lane] = at;
      bars.push([top + lane, packed[i], kind.length === 1 && which >= 0 ? kind + (which & 0xffff) : "",
        start * line.unit, at * line.unit, which < 0 ? 0 : which >> 16]);
    }
    for (let lane = 0; lane < Math.max(1, free.length); lane += 1) rows.push(lane === 0 ? line.rows[row] : `${line.rows[row]}, work ${lane + 1}`);
  }
  return { rows, kinds: line.kinds, bars };
}

// Timelines one above the other. parts: [{ name, line }], each line as timeline_json() makes it. `of`: what their time is counted in.
function timeline(name, parts, of = "step") {
  const rows = [], bars = new Map();
  for (const { name: part, line } of parts) {
    const first = rows.length;
    for (const row of line.rows) rows.push(part ? [part, row] : ["", row]);
    for (const [row, kind, label, start, end, chunk] of line.bars) {
      const what = line.kinds[kind];
      if (!bars.has(what)) bars.set(what, []);
      bars.get(what).push({ x: [start, end], y: first + row, label, chunk: chunk || 0 });
    }
    if (part !== parts[parts.length - 1].name) rows.push(["", ""]);
  }
  let last = 0;
  for (const list of bars.values()) for (const bar of list) last = Math.max(last, bar.x[1]);
  const scale = timeScale(last);
  const text = (value) => `${digits(value * scale[0], 4)} ${scale[1]}`;
  const index = rows.map((_, i) => i);
  const whole = rows.map(([part, row]) => part ? `${part}: ${row}` : row);
  // On a narrow page only the rows of the simulation say what they are.
  const names = () => narrow() ? rows.map(([part, row]) => (part === "simulated" ? `sim. ${row}` : row).replace(/^stage (\d+) \(rank \d+\)/, "stage $1")) : whole;

  // What a work is, written into it where there is room.
  const labels = { id: "labels", afterDatasetsDraw(drawn) {
    const { ctx } = drawn;
    ctx.save();
    ctx.font = `11px ${Chart.defaults.font.family}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = theme() === "dark" ? "#10151b" : "#ffffff";
    drawn.data.datasets.forEach((set, s) => drawn.getDatasetMeta(s).data.forEach((bar, i) => {
      const label = set.data[i].label, width = Math.abs(bar.x - bar.base);
      if (label && width > ctx.measureText(label).width + 5 && bar.height > 12) ctx.fillText(label, (bar.x + bar.base) / 2, bar.y + 0.5);
    }));
    ctx.restore();
  } };

  // Edges would cover bars that are no wider than these.
  const count = [...bars.values()].reduce((sum, list) => sum + list.length, 0), crowded = count > 2 * rows.length * 100;
  const box = chart(name, () => Math.max(150, rows.length * 25 + 66), () => ({
    type: "bar",
    data: { labels: index, datasets: [...bars].map(([kind, list]) => ({
      label: kind, data: list, grouped: false, barPercentage: 0.92, categoryPercentage: 0.92, borderSkipped: false,
      borderWidth: crowded ? 0 : { left: 0.5, right: 0.5, top: 0, bottom: 0 }, borderColor: look("--bg"),
      backgroundColor: list.map((bar) => { const c = workColour(kind); return c[0] === "#" && bar.chunk ? faded(c, Math.max(0.45, 1 - 0.25 * bar.chunk)) : c; }),
    })) },
    options: {
      indexAxis: "y",
      interaction: { mode: "nearest", intersect: true },
      scales: {
        x: { min: 0, max: last, title: axisTitle(`time in the ${of} (${scale[1]})`), ticks: { callback: (value) => tickText(value * scale[0]), maxTicksLimit: narrow() ? 5 : 11, includeBounds: false } },
        y: { type: "category", ticks: nameTicks(names()), grid: { display: false } },
      },
      plugins: { tooltip: { callbacks: {
        title: (items) => whole[items[0].raw.y],
        label: ({ raw, dataset }) => `${raw.label || dataset.label}${works[dataset.label] ? `, ${works[dataset.label][1]}` : ""}${raw.chunk ? `, chunk ${raw.chunk}` : ""}: ${text(raw.x[0])} to ${text(raw.x[1])}, ${text(raw.x[1] - raw.x[0])}`,
      } } },
    },
    plugins: [labels],
  }));

  const entries = () => {
    const seen = new Map();
    for (const kind of bars.keys()) seen.set(workName(kind), workColour(kind));
    const order = ["F forward", "B backward", "I input gradient", "W weight gradient"];
    const rank = ([name]) => { const at = order.indexOf(name); return at < 0 ? order.length : at; };
    return [...seen].sort((a, b) => rank(a) - rank(b));
  };
  const left = parts.filter(({ line }) => line.left_out).map(({ name: part, line }) =>
    note(`${line.left_out} more rows${part ? ` (${part})` : ""} are not drawn; meshwright trace has all.`));
  const flat = () => parts.flatMap(({ name: part, line }) => line.bars.map(([row, kind, label, start, end, chunk]) =>
    ({ part, row: line.rows[row], kind: line.kinds[kind], label, start, end, chunk: chunk || 0 })));
  const table = numbers("each work", [
    ...(parts.length > 1 ? [{ name: "timeline", value: (r) => r.part }] : []),
    { name: "row", value: (r) => r.row }, { name: "work", value: (r) => r.label || r.kind },
    { name: "chunk", value: (r) => r.chunk, num: true },
    { name: "start (ms)", value: (r) => r.start, text: (r) => digits(r.start, 5), num: true },
    { name: "end (ms)", value: (r) => r.end, text: (r) => digits(r.end, 5), num: true },
    { name: "takes (ms)", value: (r) => r.end - r.start, text: (r) => digits(r.end - r.start, 4), num: true },
  ], flat);
  return make("div", {}, colouredLegend(entries), box, ...left, table);
}
