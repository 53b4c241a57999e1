// Charts by Chart.js: built anew when the theme or the width changes, counted for whoever checks.

Chart.defaults.animation = false;
Chart.defaults.responsive = true;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.plugins.legend.display = false;
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;

function themeDefaults() {
  Chart.defaults.color = look("--muted");
  Chart.defaults.borderColor = look("--line");
  Chart.defaults.font.size = narrow() ? 11 : 12;
}

// A chart with a name for those who do not see it. `build` returns Chart.js' configuration.
// `height`: pixels, or a function that says them.
function chart(name, height, build) {
  const canvas = make("canvas", { role: "img", "aria-label": name });
  const button = (kind, picture) => make("button", { type: "button", "aria-label": `Save the chart as ${kind}: ${name}`,
    on: { click: () => saveFile(name, kind.toLowerCase(), picture(entry)) } }, kind);
  const save = make("div", { class: "save" }, "Save ", button("PNG", chartPicture), button("SVG", (one) => dataUrl("image/svg+xml", chartSvg(one))));
  const box = make("div", { class: "chart" }, canvas, save);
  const entry = { name, canvas, box, build, height, chart: null };
  page.charts.push(entry);
  document.body.dataset.charts = page.charts.length;
  entry.draw = () => {
    if (!box.isConnected) return;
    themeDefaults();
    box.style.height = (typeof height === "function" ? height() : height) + "px";
    if (entry.chart) entry.chart.destroy();
    entry.chart = new Chart(canvas, build());
  };
  box.redraw = entry.draw;
  return box;
}
// The chart as a picture, on the page's background colour: a canvas is transparent.
function chartPicture(entry) {
  const { canvas } = entry, copy = make("canvas", { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d");
  context.fillStyle = look("--bg");
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy.toDataURL("image/png");
}
// Takes the charts inside an element off the page's list before they are replaced.
function forgetCharts(holder) {
  page.charts = page.charts.filter((entry) => {
    const inside = holder.contains(entry.box);
    if (inside && entry.chart) entry.chart.destroy();
    return !inside;
  });
}
function drawAll(within = document) {
  for (const entry of page.charts) if (within.contains(entry.box)) entry.draw();
  document.body.dataset.drawn = page.charts.filter((entry) => entry.chart && entry.canvas.width > 0).length;
}

// Shows one of several things, which a select above it chooses: `fill` puts the one of an index into an element.
function oneOf(into, label, names, first, fill) {
  const holder = make("div");
  const show = (index) => {
    forgetCharts(holder);
    fill(holder, index);
    if (document.body.dataset.ready) drawAll(holder);
  };
  const select = make("select", { on: { change: () => show(select.selectedIndex) } }, names.map((name) => make("option", {}, name)));
  select.selectedIndex = first;
  if (names.length > 1) into.append(make("div", { class: "controls" }, make("label", {}, label, select)));
  into.append(holder);
  show(first);
}

const axisTitle = (text) => ({ display: true, text });
// Names at a chart's side: on two lines, and cut to what a third of the width holds, whole in tooltips and tables.
const nameTicks = (names) => ({
  autoSkip: false, crossAlign: "far",
  callback: (value) => onTwoLines(names[value] ?? "", Math.max(9, Math.floor(document.documentElement.clientWidth / (narrow() ? 24 : 22)) + (narrow() ? 0 : 2))),
});
const barHeight = (count, each = 26) => Math.max(130, count * each + 74);

// Horizontal bars, one for each name. sets: { label, data, color, stack, dashed }.
function bars(name, names, sets, options) {
  return chart(name, () => barHeight(names.length, options.each || 26), () => ({
    type: "bar",
    data: { labels: names, datasets: sets().map((set) => ({ borderWidth: 0, barPercentage: 0.86, categoryPercentage: 0.86, ...set })) },
    options: {
      indexAxis: "y",
      interaction: { mode: "index", axis: "y", intersect: false },
      scales: {
        x: { stacked: !!options.stacked, title: axisTitle(options.unit), beginAtZero: true, ...(options.x || {}) },
        y: { stacked: !!options.stacked, ticks: nameTicks(names), grid: { display: false } },
      },
      plugins: { tooltip: { callbacks: {
        title: (items) => names[items[0].dataIndex],
        label: (item) => item.raw === null ? null : `${item.dataset.label}: ${options.text(item.parsed.x)}`,
        footer: options.footer ? (items) => options.footer(items[0].dataIndex) : undefined,
      } } },
    },
    plugins: options.plugins || [],
  }));
}

// A mark on each bar of a chart of horizontal bars: what the bar as a whole is worth.
const marksOnBars = (values) => ({
  id: "marks",
  afterDatasetsDraw(drawn) {
    const { ctx, scales: { x, y } } = drawn;
    ctx.save();
    ctx.strokeStyle = look("--text");
    ctx.lineWidth = 2;
    const half = Math.min(11, (y.getPixelForValue(1) - y.getPixelForValue(0) || 26) * 0.42);
    values().forEach((value, index) => {
      if (!known(value)) return;
      const at = x.getPixelForValue(value), row = y.getPixelForValue(index);
      ctx.beginPath();
      ctx.moveTo(at, row - half);
      ctx.lineTo(at, row + half);
      ctx.stroke();
    });
    ctx.restore();
  },
});

// Points of several kinds, [name, colour, shape, things] each; `at` makes a thing's point.
const kindsOfPoints = (kinds, at, many) => kinds.map(([label, fill, pointStyle, list]) => ({ label, data: list.map(at), pointStyle,
  backgroundColor: fill(), borderColor: fill(), radius: many ? 3 : 5, hoverRadius: 7, borderWidth: pointStyle === "crossRot" ? 2 : 1 }));
// The edge of what no other point beats, as steps.
const edgeLine = (points) => ({ label: "edge", type: "line", data: points, stepped: "before", borderColor: colour(0), borderWidth: 1.5,
  borderDash: [5, 4], pointRadius: 0, pointHitRadius: 0 });

// Names of points, left out where they would lie on one another.
const namedPoints = (which) => ({
  id: "names",
  afterDatasetsDraw(drawn) {
    if (narrow()) return;
    const { ctx, chartArea } = drawn, taken = [];
    ctx.save();
    ctx.font = `12px ${Chart.defaults.font.family}`;
    ctx.fillStyle = look("--text");
    drawn.data.datasets.forEach((set, s) => drawn.getDatasetMeta(s).data.forEach((point, index) => {
      const text = which(set, set.data[index]);
      if (!text) return;
      const shown = shorter(text, 34), width = ctx.measureText(shown).width;
      for (const [dx, dy] of [[9, -7], [-9 - width, -7], [9, 16], [-9 - width, 16]]) {
        const box = [point.x + dx, point.y + dy - 11, point.x + dx + width, point.y + dy + 3];
        const outside = box[0] < chartArea.left || box[2] > chartArea.right || box[1] < chartArea.top || box[3] > chartArea.bottom;
        const hit = taken.some((t) => box[0] < t[2] + 4 && box[2] > t[0] - 4 && box[1] < t[3] && box[3] > t[1]);
        if (outside || hit) continue;
        taken.push(box);
        ctx.fillText(shown, point.x + dx, point.y + dy);
        return;
      }
    }));
    ctx.restore();
  },
});

// Curves over steps. curves: { label, color index, points: [{x, y}], on }. `log`: of the vertical axis.
function lines(name, unit, curves, state) {
  return chart(name, () => narrow() ? 280 : 380, () => ({
    type: "line",
    data: { datasets: curves().filter((curve) => curve.on()).map((curve) => ({
      label: curve.label, data: curve.points, borderColor: colour(curve.index), backgroundColor: colour(curve.index),
      borderDash: dash(curve.index), borderWidth: 1.6, pointRadius: curve.points.length < 3 ? 3 : 0, pointHitRadius: 6, tension: 0,
    })) },
    options: {
      parsing: false, normalized: true,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: { type: "linear", title: axisTitle("step"), ticks: { precision: 0 }, grace: 0 },
        y: { type: state.log ? "logarithmic" : "linear", title: axisTitle(unit) },
      },
      plugins: { tooltip: { itemSort: (a, b) => a.parsed.y - b.parsed.y, filter: (item, index) => index < 12, callbacks: {
        title: (items) => `step ${items[0].parsed.x}`,
        label: (item) => `${shorter(item.dataset.label, 48)}: ${digits(item.parsed.y, 5)}`,
      } } },
    },
  }));
}
