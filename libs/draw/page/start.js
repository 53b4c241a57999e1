// Begins: takes the theme, shows what the data are, draws, and says when all is there.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); drawAll(); });
document.getElementById("theme").addEventListener("click", () => {
  setTheme(theme() === "dark" ? "light" : "dark");
  redrawLegends();
  drawAll();
});

// Legends have the colours of their charts.
function redrawLegends() {
  for (const element of document.querySelectorAll("[data-legend]")) element.dispatchEvent(new Event("theme"));
}

const kinds = { runs: showRuns, plans: showPlans, bars: showBars, searches: showSearches };
document.getElementById("main").replaceChildren();
kinds[data.kind]();
document.getElementById("foot").append(
  make("p", {}, `Made ${data.made} by ${data.program}. ${data.watch ? "Served by the program on this machine." : "One file: nothing is loaded from elsewhere."} Charts: Chart.js ${Chart.version} (MIT licence, in the source of this page).`));

let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  const now = document.documentElement.clientWidth;
  if ((now < 560) !== (width < 560)) drawAll();
  width = now;
});
let before = null;
window.addEventListener("beforeprint", () => {
  before = theme();
  for (const element of document.querySelectorAll("details")) { element.open = true; if (element.fill) element.fill(); }
  setTheme("light");
  drawAll();
});
window.addEventListener("afterprint", () => { if (before) setTheme(before); drawAll(); });

drawAll();
document.body.dataset.ready = "yes";
