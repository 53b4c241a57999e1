// Charts as SVG: what Chart.js draws is drawn once more into a context that writes down each call.

// Writes down the commands of a path, in the coordinates of the picture. It stands for Path2D, and for the path of a context.
class SvgPath {
  constructor() { this.d = ""; this.at = null; }
  point(x, y) { return this.matrix ? [this.matrix[0] * x + this.matrix[2] * y + this.matrix[4], this.matrix[1] * x + this.matrix[3] * y + this.matrix[5]] : [x, y]; }
  put(letter, ...numbers) {
    const points = [];
    for (let i = 0; i < numbers.length; i += 2) points.push(...this.point(numbers[i], numbers[i + 1]));
    this.d += letter + points.map((v) => Number.isFinite(v) ? Math.round(v * 100) / 100 : 0).join(" ");
    if (points.length) this.at = true;
  }
  moveTo(x, y) { this.put("M", x, y); }
  lineTo(x, y) { this.put(this.at ? "L" : "M", x, y); }
  bezierCurveTo(...numbers) { this.put("C", ...numbers); }
  quadraticCurveTo(...numbers) { this.put("Q", ...numbers); }
  closePath() { this.d += "Z"; }
  rect(x, y, w, h) { this.put("M", x, y); this.put("L", x + w, y); this.put("L", x + w, y + h); this.put("L", x, y + h); this.d += "Z"; }
  arc(x, y, r, from, to, back) { this.ellipse(x, y, r, r, 0, from, to, back); }
  ellipse(x, y, rx, ry, turn, from, to, back) { // by short lines, which no eye tells from the curve
    const all = back ? -(((from - to) % 7 + 7) % 7 || 0) : to - from, steps = Math.max(8, Math.ceil(Math.abs(all) * 8));
    for (let i = 0; i <= steps; i += 1) this.lineTo(x + rx * Math.cos(from + all * i / steps), y + ry * Math.sin(from + all * i / steps));
  }
}

class SvgContext extends SvgPath {
  constructor(real) {
    super();
    Object.assign(this, { real, canvas: real.canvas, matrix: [1, 0, 0, 1, 0, 0], parts: [], defined: "", group: null, clips: 0, stack: [], dash: [], clipped: null,
      fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, lineCap: "butt", lineJoin: "miter", font: "12px sans-serif", textAlign: "start",
      textBaseline: "alphabetic", globalAlpha: 1, lineDashOffset: 0, globalCompositeOperation: "source-over" });
  }
  static kept = ["matrix", "dash", "clipped", "fillStyle", "strokeStyle", "lineWidth", "lineCap", "lineJoin", "font", "textAlign", "textBaseline", "globalAlpha"];
  save() { this.stack.push(SvgContext.kept.map((name) => this[name])); }
  restore() { const values = this.stack.pop(); if (values) SvgContext.kept.forEach((name, i) => { this[name] = values[i]; }); }
  transform(a, b, c, d, e, f) {
    const m = this.matrix;
    this.matrix = [m[0] * a + m[2] * b, m[1] * a + m[3] * b, m[0] * c + m[2] * d, m[1] * c + m[3] * d, m[0] * e + m[2] * f + m[4], m[1] * e + m[3] * f + m[5]];
  }
  translate(x, y) { this.transform(1, 0, 0, 1, x, y); }
  rotate(angle) { this.transform(Math.cos(angle), Math.sin(angle), -Math.sin(angle), Math.cos(angle), 0, 0); }
  scale(x, y) { this.transform(x, 0, 0, y, 0, 0); }
  setTransform(...m) { this.matrix = m.length === 6 ? m : [1, 0, 0, 1, 0, 0]; }
  resetTransform() { this.matrix = [1, 0, 0, 1, 0, 0]; }
  beginPath() { this.d = ""; this.at = null; }
  setLineDash(list) { this.dash = list; }
  getLineDash() { return this.dash; }
  measureText(text) { this.real.save(); this.real.font = this.font; const size = this.real.measureText(text); this.real.restore(); return size; }
  clearRect() {}
  // A colour of CSS as one that all readers of SVG know, and how much of it covers.
  paint(name, style) {
    const parts = /^rgba\(([^,]+),([^,]+),([^,]+),([^)]+)\)$/.exec(style);
    const opacity = (parts ? Number(parts[4]) : 1) * this.globalAlpha;
    return `${name}="${parts ? `rgb(${[1, 2, 3].map((i) => Math.round(Number(parts[i]))).join(",")})` : style}"${opacity < 1 ? ` ${name}-opacity="${opacity}"` : ""}`;
  }
  // Elements that are clipped alike lie in one group: a text's own clip would move with its place.
  add(text) {
    if (this.group !== this.clipped) {
      this.parts.push(`${this.group ? "</g>" : ""}${this.clipped ? `<g clip-path="url(#${this.clipped})">` : ""}`);
      this.group = this.clipped;
    }
    this.parts.push(text);
  }
  clip() {
    const id = `clip${this.clips += 1}`;
    this.defined += `<clipPath id="${id}"><path d="${this.d}"/></clipPath>`;
    this.clipped = id;
  }
  fill(path) { const { d } = path instanceof SvgPath ? path : this; if (d) this.add(`<path d="${d}" ${this.paint("fill", this.fillStyle)}/>`); }
  stroke(path) {
    const { d } = path instanceof SvgPath ? path : this;
    if (d && this.lineWidth > 0) this.add(`<path d="${d}" fill="none" ${this.paint("stroke", this.strokeStyle)} stroke-width="${this.lineWidth}"${this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : ""}/>`);
  }
  whole(what, x, y, w, h) { const before = [this.d, this.at]; this.beginPath(); this.rect(x, y, w, h); what.call(this); [this.d, this.at] = before; }
  fillRect(...box) { this.whole(this.fill, ...box); }
  strokeRect(...box) { this.whole(this.stroke, ...box); }
  fillText(text, x, y) {
    const anchor = { center: "middle", end: "end", right: "end" }[this.textAlign] || "start", size = parseFloat((/([\d.]+)px/.exec(this.font) || [0, 12])[1]);
    const down = { top: 0.8, hanging: 0.8, middle: 0.35, bottom: -0.2 }[this.textBaseline] || 0;
    const words = String(text).replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
    this.add(`<text x="${x}" y="${y + down * size}" transform="matrix(${this.matrix.map((v) => Math.round(v * 1e4) / 1e4).join(" ")})" text-anchor="${anchor}" style="font: ${this.font.replace(/"/g, "'")}" ${this.paint("fill", this.fillStyle)}>${words}</text>`);
  }
  strokeText() {}
  drawImage() {}
}

// The chart as SVG, in the size and the colours that it has on the page.
function chartSvg(entry) {
  const { chart: drawn } = entry, context = new SvgContext(drawn.ctx), real = drawn.ctx, realPath = window.Path2D;
  const parts = [drawn, ...Object.values(drawn.scales)], controllers = drawn.getSortedVisibleDatasetMetas().map((meta) => meta.controller);
  const use = (ctx, path) => {
    for (const part of parts) part.ctx = ctx;
    for (const controller of controllers) controller._ctx = ctx;
    for (const meta of drawn.getSortedVisibleDatasetMetas()) if (meta.dataset) meta.dataset._path = undefined;
    window.Path2D = path;
  };
  use(context, SvgPath);
  try { drawn.draw(); } finally { use(real, realPath); }
  const { width, height } = drawn;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><title>${entry.name.replace(/[&<>]/g, "")}</title>` +
    `<rect width="${width}" height="${height}" fill="${look("--bg")}"/><defs>${context.defined}</defs>${context.parts.join("")}${context.group ? "</g>" : ""}</svg>`;
}
