// Keeps a page that `report --watch` serves up to date: asks whether there is news, and then loads
// itself again, with the tables open that were open, at the same place.

const unfolded = () => [...document.querySelectorAll("details")].map((element) => element.open);

function restoreView(kept) {
  document.querySelectorAll("details").forEach((element, index) => {
    if (!kept.open[index]) return;
    element.open = true;
    if (element.fill) element.fill();
  });
  if (kept.theme !== theme()) document.getElementById("theme").click();
  window.scrollTo(0, kept.top);
}

async function lookForNews() {
  const state = document.getElementById("watching");
  try {
    const answer = await fetch("/stamp");
    const stamp = await answer.text();
    if (answer.ok && stamp !== data.watch) {
      sessionStorage.setItem("view", JSON.stringify({ open: unfolded(), theme: theme(), top: window.scrollY }));
      location.reload();
      return;
    }
    state.textContent = answer.ok ? "Watching: this page shows what is new by itself." : stamp;
  } catch {
    state.textContent = "The program that served this page has ended: nothing new comes.";
  }
  setTimeout(lookForNews, 1000);
}

if (data.watch) {
  document.getElementById("head").append(make("p", { id: "watching", class: "note", role: "status" }));
  const kept = sessionStorage.getItem("view");
  if (kept) restoreView(JSON.parse(kept));
  sessionStorage.removeItem("view");
  lookForNews();
}
