// One head's map on a canvas, like a street map: pooled at a distance, single words when close.
// Queries go down, keys go right. The view is a corner (q, k) and a span: tokens along the longer side.

import { select, zoom, zoomIdentity } from "./vendor/d3-zoom.js";
import { SIDE } from "./cells.js";
import { Tiles, picture } from "./tiles.js";
import { drawAxes, drawCross, drawHidden, drawLasso, drawPinned } from "./axes.js";
import { ROOM, drawMini, miniAt } from "./mini.js";
import { theme } from "./colours.js";

const CLOSE = 6; // tokens at least in view
const EMPTY = { light: "#e9e7e0", dark: "#1b2027" };

export class HeadMap {
  /** `hear` is told of view(q, k, span), hover(place), pick(place) and lasso(points). */
  constructor(canvas, hear, margin = { left: 118, top: 80, right: ROOM }) {
    this.margin = margin;
    this.canvas = canvas; this.hear = hear; this.context = canvas.getContext("2d");
    this.shown = null; this.tiles = null; this.cross = null; this.lasso = null; this.lassoing = false;
    this.view = { q: 0, k: 0, span: 0 };
    this.gestures = zoom().filter((e) => !this.lassoing && !e.button && (!e.ctrlKey || e.type === "wheel"))
      .on("zoom", (e) => this.zoomed(e));
    select(canvas).call(this.gestures).on("dblclick.zoom", null);
    this.listen();
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(canvas.parentElement);
  }

  /** Show a map: {map, minus, layer, words: [query, key], padding: [query, key], hidden, scale, most(factor), factors}. */
  show(shown) {
    const before = this.shown;
    this.shown = shown;
    const same = before && this.tiles.key(1, 0, 0) === this.keyOf(shown);
    if (!same) {
      this.canvas.dataset.ready = "false";
      this.tiles?.leave();
      this.tiles = new Tiles(shown.map, shown.minus, shown.layer, () => this.draw());
    }
    if (!before || before.layer.queries !== shown.layer.queries || before.layer.keys !== shown.layer.keys) this.resize();
    else this.draw();
  }

  keyOf(shown) { return new Tiles(shown.map, shown.minus, shown.layer, () => {}).key(1, 0, 0); }
  get longest() { return Math.max(this.shown.layer.queries, this.shown.layer.keys); }
  get side() { return Math.max(40, Math.min(this.width - this.margin.left - this.margin.right, this.height - this.margin.top) - 1); }
  get scale() { return this.side / this.view.span; } // pixels a token

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    if (!this.shown || !box.width) return;
    const ratio = devicePixelRatio || 1;
    this.width = Math.floor(box.width); this.height = Math.floor(box.height);
    this.canvas.width = this.width * ratio; this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${this.width}px`; this.canvas.style.height = `${this.height}px`;
    this.ratio = ratio;
    const whole = this.longest;
    this.gestures.extent([[this.margin.left, this.margin.top], [this.margin.left + this.side, this.margin.top + this.side]])
      .translateExtent([[this.margin.left, this.margin.top], [this.margin.left + this.side, this.margin.top + this.side]])
      .scaleExtent([1, Math.max(1, whole / CLOSE)]);
    const glided = this.gliding;
    this.setView(glided || this.view); // a glide ends where it was to end,
    if (glided) this.hear.view?.(this.view); // and that is kept, not where it was on its way
  }

  /** Move to a view inside of the map, in a glide where asked. */
  setView({ q, k, span }, glide = false) {
    if (!this.width) { this.view = { q, k, span }; return; } // resize() comes back to it
    const whole = this.longest, wanted = span > 0 ? Math.max(Math.min(CLOSE, whole), Math.min(span, whole)) : whole;
    const inside = (v) => Math.max(0, Math.min(v, whole - wanted));
    const times = whole / wanted, each = (this.side / whole) * times;
    const to = zoomIdentity
      .translate(this.margin.left * (1 - times) - inside(k) * each, this.margin.top * (1 - times) - inside(q) * each)
      .scale(times);
    const glides = glide && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.canvas.dataset.ready = "false";
    this.gliding = glides ? { q, k, span } : null;
    this.quiet = !glide;
    if (glides) select(this.canvas).transition().duration(450).call(this.gestures.transform, to).on("end.glide", () => { this.gliding = null; });
    else select(this.canvas).call(this.gestures.transform, to);
    this.quiet = false;
  }

  zoomed({ transform: t, sourceEvent }) {
    const each = this.side / this.longest;
    this.view = {
      span: this.longest / t.k,
      k: (this.margin.left * (1 - t.k) - t.x) / (each * t.k),
      q: (this.margin.top * (1 - t.k) - t.y) / (each * t.k),
    };
    if (sourceEvent) this.gliding = null; // a hand on the map ends it
    if (sourceEvent || !this.quiet) this.hear.view?.(this.view);
    this.draw();
  }

  pan(down, right) {
    const { q, k, span } = this.view;
    this.setView({ q: q + down * span, k: k + right * span, span });
    this.hear.view?.(this.view);
  }

  zoomBy(times) {
    const { q, k, span } = this.view;
    const next = Math.max(CLOSE, Math.min(this.longest, span / times)), move = (span - next) / 2;
    this.setView({ q: q + move, k: k + move, span: next });
    this.hear.view?.(this.view);
  }

  /** Go where a link is, close enough to read its words. */
  land(query, key) {
    const span = Math.min(this.longest, 24);
    this.setView({ q: query - span / 2, k: key - span / 2, span }, true);
    this.cross = { query, key };
  }

  /** Go closer to a cell, where what is in it is not known one by one. */
  near(query, key) {
    const f = this.factor, middle = (place) => (Math.floor(place / f) + 0.5) * f, span = Math.min(this.longest, 16 * f);
    this.setView({ q: middle(query) - span / 2, k: middle(key) - span / 2, span }, true);
    this.cross = { query, key };
  }

  /** The smallest pooling at which a cell has a pixel: nothing is lost between two pixels. */
  get factor() {
    const all = this.shown.factors;
    return all.find((f) => f * this.scale >= 1) || all[all.length - 1];
  }

  /** The query and key at a point of the canvas, or null outside of the map. */
  at(x, y) {
    const query = this.view.q + (y - this.margin.top) / this.scale, key = this.view.k + (x - this.margin.left) / this.scale;
    const { queries, keys } = this.shown.layer;
    if (x < this.margin.left || y < this.margin.top || x >= this.margin.left + this.side || y >= this.margin.top + this.side) return null;
    if (query < 0 || key < 0 || query >= queries || key >= keys) return null;
    return { query: Math.floor(query), key: Math.floor(key), exactly: [query, key], factor: this.factor };
  }

  draw() {
    if (this.frame || !this.width) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.drawNow(); });
  }

  drawNow() {
    const { context: c, shown } = this, factor = this.factor, most = shown.most(factor);
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    c.save();
    c.beginPath();
    c.rect(this.margin.left, this.margin.top, this.side, this.side);
    c.clip();
    c.fillStyle = EMPTY[theme()];
    const s = this.scale, { queries, keys } = shown.layer;
    c.fillRect(this.margin.left - this.view.k * s, this.margin.top - this.view.q * s, keys * s, queries * s);
    c.imageSmoothingEnabled = false;
    const wanted = new Set();
    if (most !== null) this.drawTiles(c, factor, most, wanted);
    const coarsest = shown.factors[shown.factors.length - 1];
    if (coarsest !== factor) { // for the mini-map, and to stand in for what is not here yet
      wanted.add(this.tiles.key(coarsest, 0, 0));
      this.tiles.get(coarsest, 0, 0, true);
    }
    this.tiles.settle(wanted);
    drawHidden(this, c);
    drawPinned(this, c);
    drawCross(this, c);
    drawLasso(this, c);
    c.restore();
    drawAxes(this, c);
    drawMini(this, c);
    this.canvas.dataset.ready = String(most !== null && !this.tiles.coming.size && !this.tiles.waiting.length);
    this.hear.drawn?.({ factor, most, failed: this.tiles.failed || "" });
  }

  drawTiles(c, factor, most, wanted) {
    const { queries, keys } = this.shown.layer, step = SIDE * factor, { q, k, span } = this.view;
    const first = (v) => Math.max(0, Math.floor(v / step));
    const last = (v, n) => Math.min(Math.ceil(n / step) - 1, Math.floor((v + span) / step));
    for (let r = first(q); r <= last(q, queries); r++) {
      for (let col = first(k); col <= last(k, keys); col++) {
        wanted.add(this.tiles.key(factor, r, col));
        const tile = this.tiles.get(factor, r, col, true);
        if (tile) this.place(c, tile, factor, r, col, most);
        else this.standIn(c, factor, r, col, step);
      }
    }
  }

  place(c, tile, factor, row, column, most) {
    const s = this.scale, step = SIDE * factor * s;
    c.drawImage(
      picture(tile, this.shown.scale, most),
      this.margin.left + column * step - this.view.k * s, this.margin.top + row * step - this.view.q * s,
      tile.columns * factor * s, tile.rows * factor * s);
  }

  /** A coarser tile, until the finer one is here. */
  standIn(c, factor, row, column, step) {
    for (const coarse of this.shown.factors.filter((f) => f > factor)) {
      const times = coarse / factor;
      const tile = this.tiles.get(coarse, Math.floor(row / times), Math.floor(column / times), false);
      const most = this.shown.most(coarse);
      if (!tile || most === null) continue;
      const s = this.scale;
      c.save();
      c.beginPath();
      c.rect(this.margin.left + (column * step - this.view.k) * s, this.margin.top + (row * step - this.view.q) * s, step * s, step * s);
      c.clip();
      this.place(c, tile, coarse, Math.floor(row / times), Math.floor(column / times), most);
      c.restore();
      return;
    }
  }

  /** What a tile says at a place, pooled; undefined while it is not here. */
  valueAt({ query, key }) {
    const f = this.factor, r = Math.floor(query / f), c = Math.floor(key / f);
    const tile = this.tiles.get(f, Math.floor(r / SIDE), Math.floor(c / SIDE), false);
    return tile?.values[(r % SIDE) * tile.columns + (c % SIDE)];
  }

  setCross(cross) { this.cross = cross; this.draw(); }

  listen() {
    const point = (e) => {
      const box = this.canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    this.canvas.addEventListener("pointermove", (e) => {
      const [x, y] = point(e), place = this.shown && this.at(x, y);
      if (this.lasso?.drawing && place) { this.lasso.points.push(place.exactly); this.draw(); return; }
      this.cross = place; this.draw();
      this.hear.hover?.(place);
    });
    this.canvas.addEventListener("pointerleave", () => { this.cross = null; this.draw(); this.hear.hover?.(null); });
    this.canvas.addEventListener("pointerdown", (e) => {
      const [x, y] = point(e), place = this.at(x, y);
      this.pressed = [x, y];
      if (this.lassoing && place) {
        this.lasso = { drawing: true, points: [place.exactly] };
        this.canvas.setPointerCapture(e.pointerId);
      }
    });
    this.canvas.addEventListener("pointerup", () => {
      if (!this.lasso?.drawing) return;
      this.lasso.drawing = false;
      if (this.lasso.points.length < 3) this.lasso = null;
      this.draw();
      this.hear.lasso?.(this.lasso?.points || null);
    });
    this.canvas.addEventListener("click", (e) => {
      const [left, top] = point(e);
      if (this.lassoing || !this.pressed || Math.hypot(left - this.pressed[0], top - this.pressed[1]) > 4) return;
      const [x, y] = this.pressed; // a click comes in whole pixels, and a cell may be one: what was named is what was pressed
      const jump = miniAt(this, x, y);
      if (jump) { this.setView({ ...jump, span: this.view.span }); this.hear.view?.(this.view); return; }
      const place = this.at(x, y);
      if (place) this.hear.pick?.(place);
    });
  }

  close() { this.watcher.disconnect(); this.tiles?.leave(); cancelAnimationFrame(this.frame); }
}
