// The page of a script's own bar chart.

function showBars() {
  const main = section("chart", data.title);
  const names = data.bars.map((bar) => bar[0]);
  const text = (value) => `${countText(value)}${data.unit ? " " + data.unit : ""}`;
  const sets = () => data.series.map((label, s) => ({ label, data: data.bars.map((bar) => bar[s + 1]), backgroundColor: colour(s) }));
  document.getElementById("contents").hidden = true;
  document.getElementById("chart-title").hidden = true;
  if (data.series.length > 1) main.append(colouredLegend(() => data.series.map((label, s) => [label, colour(s)])));
  main.append(bars(data.title, names, sets, { unit: data.unit, text, each: 14 * data.series.length + 14 }));
  main.append(numbers(data.title, [{ name: "", value: (bar) => bar[0] },
    ...data.series.map((label, s) => ({ name: data.unit ? `${label} (${data.unit})` : label, value: (bar) => bar[s + 1],
      text: (bar) => countText(bar[s + 1]), num: true }))], () => data.bars));
}
