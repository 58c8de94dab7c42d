// Tiles of one map, or of the difference of two, as they come; those of views already left are let go.

import { getFloats, paths, query } from "./source.js";
import { SIDE } from "./cells.js";
import { paint, theme } from "./colours.js";

const MOST = 400; // tiles that are kept
const AT_ONCE = 6;
const AGAIN = 3000; // milliseconds, until what failed is asked for again
const kept = new Map(); // address → {values, rows, columns, canvas, painted}

/** The tiles of a map as it is asked for: `b` is a second map that is taken away from the first. */
export class Tiles {
  constructor(a, b, size, changed) {
    this.a = a; this.b = b; this.size = size; this.changed = changed;
    this.coming = new Map(); // key → AbortController
    this.waiting = [];
    this.broken = new Set();
  }

  key(factor, row, column) {
    const one = paths.tile(this.a, factor, row, column);
    return this.b ? `${one} − ${paths.tile(this.b, factor, row, column)}` : one;
  }

  /** A tile if it is there; else it is asked for when `wanted`. */
  get(factor, row, column, wanted) {
    const key = this.key(factor, row, column), found = kept.get(key);
    if (found) {
      kept.delete(key); kept.set(key, found);
      return found;
    }
    if (wanted && !this.coming.has(key) && !this.broken.has(key) && !this.waiting.some((w) => w.key === key)) {
      this.waiting.push({ key, factor, row, column });
    }
    return null;
  }

  /** Begin what waits; what is on its way and not wanted any more is given up. */
  settle(wanted) {
    for (const [key, control] of this.coming) if (!wanted.has(key)) control.abort();
    this.waiting = this.waiting.filter((w) => wanted.has(w.key));
    while (this.waiting.length && this.coming.size < AT_ONCE) this.load(this.waiting.shift());
  }

  async load({ key, factor, row, column }) {
    const control = new AbortController();
    this.coming.set(key, control);
    try {
      const parts = await Promise.all([this.a, this.b].filter(Boolean).map(
        (map) => getFloats(paths.tile(map, factor, row, column), control.signal)));
      const values = parts[1] ? parts[0].map((v, i) => v - parts[1][i]) : parts[0];
      const columns = Math.min(SIDE, Math.ceil(this.size.keys / factor) - column * SIDE);
      kept.set(key, { values, columns, rows: values.length / columns, canvas: null, painted: "" });
      if (kept.size > MOST) kept.delete(kept.keys().next().value);
      this.failed = "";
    } catch (error) {
      if (error.name !== "AbortError") this.fail(key, error.message);
    } finally {
      this.coming.delete(key);
      this.changed();
    }
  }

  fail(key, reason) {
    this.failed = reason;
    this.broken.add(key);
    setTimeout(() => { this.broken.delete(key); if (!this.left) this.changed(); }, AGAIN);
  }

  leave() { this.left = true; for (const control of this.coming.values()) control.abort(); }
}

/** A tile as a picture in the colours of a scale. */
export function picture(tile, scale, most) {
  const asked = `${scale} ${most} ${theme()}`;
  if (tile.painted !== asked) {
    tile.canvas ||= Object.assign(document.createElement("canvas"), { width: tile.columns, height: tile.rows });
    const context = tile.canvas.getContext("2d"), image = context.createImageData(tile.columns, tile.rows);
    paint(tile.values, scale, most, image.data);
    context.putImageData(image, 0, 0);
    tile.painted = asked;
  }
  return tile.canvas;
}

export const sameMap = (a, b) => a && b && a.layer === b.layer && a.head === b.head && query(a) === query(b);
