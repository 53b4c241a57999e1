// Tables that can be sorted and searched, and that draw some rows at a time.

// columns: { name, value: row → number or text, text: row → text, cell: row → node, num, long, title }.
// Returns an element. `options`: { caption, rows: how many at first, sort: [column, "descending"], best: row → bool }.
function table(columns, rows, options = {}) {
  const first = options.rows || 50;
  let shown = first, order = rows.slice(), sorted = options.sort || null, words = [];
  const body = make("tbody"), head = make("tr"), status = make("span", { class: "lead", role: "status" });
  const shownText = (column, row) => column.text ? column.text(row) : String(column.value(row) ?? none);

  // A column of short words needs no room for long ones.
  columns.forEach((column) => {
    column.brief = rows.every((row) => shownText(column, row).length <= 12);
  });
  columns.forEach((column, index) => {
    const button = make("button", { type: "button", title: column.title || null, on: { click: () => {
      const down = sorted && sorted[0] === index && sorted[1] === "descending";
      const up = sorted && sorted[0] === index && sorted[1] === "ascending";
      sorted = [index, column.num ? (down ? "ascending" : "descending") : (up ? "descending" : "ascending")];
      draw();
    } } }, column.name);
    head.append(make("th", { scope: "col", class: column.num ? "num" : null }, button));
  });

  function compare(a, b) {
    const value = columns[sorted[0]].value, x = value(a), y = value(b);
    const gone = (v) => v === null || v === undefined || v !== v;
    if (gone(x) || gone(y)) return gone(x) - gone(y); // what is not known comes last, either way
    const way = sorted[1] === "descending" ? -1 : 1;
    if (typeof x === "number" && typeof y === "number") return way * (x - y);
    return way * String(x).localeCompare(String(y), "en", { numeric: true });
  }

  function draw() {
    order = rows.filter((row) => {
      if (words.length === 0) return true;
      const text = columns.map((column) => shownText(column, row)).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (sorted) order.sort(compare);
    [...head.children].forEach((th, index) => {
      if (sorted && sorted[0] === index) th.setAttribute("aria-sort", sorted[1]); else th.removeAttribute("aria-sort");
    });
    body.replaceChildren(...order.slice(0, shown).map((row) => make("tr", { class: options.best && options.best(row) ? "best" : null },
      columns.map((column) => make("td", { class: (column.num ? "num" : column.long ? (column.code ? "code long" : "long") : column.code ? "code" : column.brief ? "brief" : "text") + (column.heat ? " heat" : ""),
        style: column.heat && column.heat(row) !== null ? `background: rgba(var(--tint), ${0.04 + 0.24 * column.heat(row)})` : null },
        column.cell ? column.cell(row) : column.num ? shownText(column, row) : breakable(shownText(column, row)))))));
    const left = order.length - Math.min(shown, order.length);
    status.textContent = rows.length <= first && words.length === 0 ? ""
      : `${Math.min(shown, order.length)} of ${order.length}${order.length < rows.length ? ` found in ${rows.length}` : ""} rows`;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(left, 200)} more`;
  }

  const more = make("button", { type: "button", on: { click: () => { shown += 200; draw(); } } }, "Show more");
  const element = make("div", { class: "table" });
  if (rows.length > 12) {
    const search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search the table" });
    let waiting = 0;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { words = search.value.toLowerCase().split(/\s+/).filter(Boolean); shown = first; draw(); }, 120);
    });
    element.append(make("div", { class: "controls" }, search, status));
  }
  element.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.caption || "Table" },
    make("table", { "data-rows": rows.length }, options.caption ? make("caption", {}, options.caption) : null,
      make("thead", {}, head), body)), more);
  draw();
  return element;
}

// The rows with their numbers as they are, not as they are shown.
function csvOf(columns, rows) {
  const quoted = (value) => { const text = String(value ?? ""); return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text; };
  return [columns.map((column) => column.name), ...rows.map((row) => columns.map((column) => column.value(row)))]
    .map((line) => line.map(quoted).join(",") + "\n").join("");
}

// A chart's numbers, drawn when somebody looks.
function numbers(name, columns, rows, options) {
  const element = make("details", { class: "numbers" }, make("summary", {}, `The numbers: ${name} (${rows().length} rows)`));
  const save = make("button", { type: "button", class: "csv", on: { click: () => saveFile(name, "csv", dataUrl("text/csv", csvOf(columns, rows()))) } }, "Save CSV");
  let made = false;
  const open = () => { if (!made) { made = true; element.append(save, table(columns, rows(), options)); } };
  element.addEventListener("toggle", () => { if (element.open) open(); });
  element.fill = open;
  return element;
}
