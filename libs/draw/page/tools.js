"use strict";
// What all parts of the page share: elements, numbers as people read them, colours, the theme.

const data = JSON.parse(document.getElementById("data").textContent);
const page = { charts: [], drawn: 0, errors: 0 };
window.addEventListener("error", () => { page.errors += 1; document.body.dataset.errors = page.errors; });

// make("td", { class: "num" }, "text", child, …): texts become text nodes, never markup.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const none = "–";

function digits(value, count) {
  if (!known(value)) return none;
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 12),
    minimumFractionDigits: Math.min(places, count - 1) });
}
function bytesText(value) {
  if (!known(value)) return none;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1023.5 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return (unit === 0 ? String(Math.round(value)) : digits(value, 3)) + " " + units[unit];
}
function secondsText(value) {
  if (!known(value)) return none;
  if (value === 0) return "0 s";
  if (Math.abs(value) >= 1) return digits(value, 4) + " s";
  if (Math.abs(value) >= 1e-3) return digits(value * 1e3, 3) + " ms";
  return digits(value * 1e6, 3) + " µs";
}
// A number on an axis: as short as it is.
const tickText = (value) => Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 9 });
const countText = (value) => known(value)
  ? (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : digits(value, 4)) : none;
const percentText = (value) => known(value) ? digits(100 * value, 3) + " %" : none;
const lossText = (value) => known(value) ? value.toFixed(4) : none;
function changeText(value) {
  if (!known(value)) return none;
  const text = Math.abs(100 * value) < 0.05 ? "0.0" : (100 * value).toFixed(1);
  return (value > 0 && text !== "0.0" ? "+" : "") + text.replace("-", "−") + " %";
}
// The largest byte unit that leaves numbers to read on an axis.
function byteScale(most) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, by = 1;
  while (most / by >= 1024 && unit + 1 < units.length) { by *= 1024; unit += 1; }
  return { by, unit: units[unit] };
}
// The unit that suits a time of so many milliseconds: by what milliseconds are multiplied, and the unit's name.
const timeScale = (ms) => ms >= 2000 ? [1e-3, "s"] : ms < 1 ? [1e3, "µs"] : [1, "ms"];
const shorter = (text, most) => text.length > most ? text.slice(0, Math.max(1, most - 1)) + "…" : text;
// Both ends of a name: those of a sweep differ in the last words.
function middleOut(text, most) {
  if (text.length <= most) return text;
  const last = Math.floor((most - 1) / 2);
  return text.slice(0, most - 1 - last).trimEnd() + "…" + text.slice(text.length - last).trimStart();
}
// A name of several words on two lines of so many letters: its first words, and its last ones.
function onTwoLines(text, most) {
  if (text.length <= most) return text;
  const words = text.split(" "), first = [], last = [], length = (list) => list.join(" ").length;
  while (words.length && length([...first, words[0]]) <= most) first.push(words.shift());
  while (words.length && length([words[words.length - 1], ...last]) <= most - 1) last.unshift(words.pop());
  if (words.length === 1 && !last.length) last.push(words.pop());
  const left = words.length ? "…" : "";
  return [first.join(" "), left + last.join(" ")].filter(Boolean).map((line) => middleOut(line, most));
}
// A text that a line may break after each sign of punctuation, as names of parameters and plans have none but these.
function breakable(text) {
  return String(text).split(/(?<=[.,_/={])(?=[^\s])/).flatMap((part, i) => i ? [make("wbr"), part] : [part]);
}
const narrow = () => document.documentElement.clientWidth < 560;

// Okabe and Ito's colours, which stay apart for the colour-blind, lightened where the page is dark.
const colours = {
  light: ["#0072b2", "#d55e00", "#00805d", "#b8578f", "#b07800", "#2b95cf", "#5b4aa3", "#6b6f1d"],
  dark: ["#56a9e0", "#f08a4b", "#2fbf93", "#e08abd", "#e6b23c", "#8ccdf2", "#a99bf0", "#c3c763"],
};
const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const theme = () => document.documentElement.dataset.theme || "light";
const colour = (index) => { const all = colours[theme()]; return all[index % all.length]; };
const dash = (index) => dashes[Math.floor(index / colours.light.length) % dashes.length];
const look = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function faded(hex, alpha) {
  const part = (at) => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", name === "dark");
}

// A section of the page, in the contents too.
function section(id, title, lead) {
  const element = make("section", { id, "aria-labelledby": id + "-title" },
    make("h2", { id: id + "-title" }, title), lead ? make("p", { class: "lead" }, lead) : null);
  document.getElementById("main").append(element);
  document.getElementById("contents").append(make("a", { href: "#" + id }, title));
  return element;
}
// Hands a file to whoever looks at the page. `name`: what it shows.
function saveFile(name, ending, url) {
  const file = name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "page";
  make("a", { href: url, download: `${file}.${ending}` }).click();
}
const dataUrl = (type, text) => `data:${type};charset=utf-8,${encodeURIComponent(text)}`;
const note = (text) => make("p", { class: "note" }, text);
function facts(pairs) {
  const list = make("dl", { class: "facts" });
  for (const [name, text] of pairs) list.append(make("dt", {}, name), make("dd", {}, breakable(text)));
  return list;
}
const swatch = (fill, line) => make("span", { class: line ? "swatch line" : "swatch", "aria-hidden": "true",
  style: line ? `border-color:${fill}` : `background:${fill}` });
function legend(entries) {
  return make("ul", { class: "legend" }, entries.map(([name, fill, line]) => make("li", {}, swatch(fill, line), name)));
}
function tiles(pairs) {
  return make("div", { class: "tiles" }, pairs.map(([name, text]) => make("div", { class: "tile" },
    make("span", {}, name), make("b", {}, text))));
}
// A legend that follows the theme. `entries` makes them.
function colouredLegend(entries) {
  const element = make("div", { "data-legend": true });
  const fill = () => element.replaceChildren(legend(entries()));
  element.addEventListener("theme", fill);
  fill();
  return element;
}
