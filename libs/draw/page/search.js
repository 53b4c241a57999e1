// The page of searches: each plan that was planned whole, by its time and memory, and the edge of
// those that no other beats in both.

// Kinds of points: name, colour, shape. kindOf() says which of them a plan is.
const rooms = [["on the Pareto front", () => colour(0), "circle"], ["not on the Pareto front", () => look("--muted"), "circle"],
  ["nearly full", () => colour(4), "triangle"], ["over or runs out", () => colour(1), "crossRot"]];

function kindOf(plan) {
  if (plan.room === "over" || plan.room === "runs out") return 3;
  return plan.edge ? 0 : plan.room === "nearly full" ? 2 : 1;
}

function showPareto(search, id) {
  const into = section("pareto" + id, "Time against memory", "Down and to the left is better. The line joins the plans that no other plan beats in both.");
  const scale = byteScale(Math.max(...search.plans.map((plan) => plan.bytes)));
  const at = (plan) => ({ x: plan.seconds, y: plan.bytes / scale.by, plan });
  const edge = search.plans.filter((plan) => plan.edge).sort((a, b) => a.seconds - b.seconds);
  const kinds = rooms.map((room, kind) => [...room, search.plans.filter((plan) => kindOf(plan) === kind)]).filter(([, , , list]) => list.length);
  const first = search.plans.filter((plan) => plan.first);
  into.append(colouredLegend(() => [...kinds.map(([name, fill]) => [name, fill()]), ["recommended", look("--text"), true]]));
  into.append(chart(`Time against memory of ${search.name}`, () => narrow() ? 300 : 440, () => ({
    type: "scatter",
    data: { datasets: [
      { label: "recommended", data: first.map(at), pointStyle: "circle", backgroundColor: "transparent", borderColor: look("--text"), borderWidth: 2, radius: 9, hoverRadius: 9, pointHitRadius: 0 },
      ...kindsOfPoints(kinds, at, search.plans.length > 200), edgeLine(edge.map(at)),
    ] },
    options: {
      parsing: false,
      scales: { x: { title: axisTitle("step (s)"), grace: "8%", ticks: { callback: (v) => tickText(v) } },
        y: { title: axisTitle(`peak memory of a rank (${scale.unit})`), grace: "8%" } },
      plugins: { tooltip: { filter: (item) => item.dataset.label !== "edge" && item.dataset.label !== "recommended", callbacks: { label: ({ raw: { plan } }) =>
        [plan.plan, `microbatch ${plan.microbatch}, recompute ${plan.recompute}`, `${secondsText(plan.seconds)} a step, ${bytesText(plan.bytes)} peak`,
          ...(plan.room ? [plan.room] : [])] } } },
    },
    plugins: [namedPoints((set, raw) => set.label === "recommended" ? raw.plan.plan : null)],
  })));
}

function showFound(search, id) {
  const into = section("plans" + id, "The plans", "All that were planned whole and fit, priced by the simulation of all stages.");
  into.append(table([
    { name: "plan", value: (p) => p.plan, code: true, long: true }, { name: "microbatch", num: true, value: (p) => p.microbatch },
    { name: "recompute", value: (p) => p.recompute }, { name: "step", num: true, value: (p) => p.seconds, text: (p) => secondsText(p.seconds) },
    { name: "MFU", num: true, value: (p) => p.mfu, text: (p) => percentText(p.mfu) },
    { name: "peak memory", num: true, value: (p) => p.bytes, text: (p) => bytesText(p.bytes) },
    { name: "edge", value: (p) => p.edge ? "yes" : "" }, { name: "room", value: (p) => p.room || "ample" },
    { name: "measured", value: (p) => p.beyond ? "beyond" : "near" },
    ...(search.plans.some((p) => p.lacks) ? [{ name: "the stack lacks", value: (p) => p.lacks }] : []),
  ], search.plans, { caption: `${search.plans.length} plans`, sort: [3, "ascending"], best: (p) => p.first }));
}

function showSearches() {
  const main = document.getElementById("main");
  document.getElementById("contents").hidden = data.searches.length === 0;
  data.searches.forEach((search, index) => {
    const id = data.searches.length > 1 ? `-${index}` : "";
    if (data.searches.length > 1) main.append(make("h2", {}, search.name));
    main.append(facts(search.facts), ...search.notes.map(note));
    showPareto(search, id);
    showFound(search, id);
  });
}
