// Identity 4 in the browser: any tile of a head is exp(s − lse), of the queries, keys and lse that a
// standalone file carries. The same cells as tiles.py makes: largest, total, and what a mean divides by.

import { SIDE } from "./cells.js";

const STRIP = 128;
const pause = () => new Promise((go) => { setTimeout(go, 0); });

export class ExactHead {
  /** Arrays as the file has them: query, key (n × dim), lse, norm (of each key, or null), runs, seen. */
  constructor(given) { Object.assign(this, given); this.pyramids = new Map(); }

  score(i, j) {
    const { dim, query, key } = this;
    let dot = 0;
    for (let d = 0, a = i * dim, b = j * dim; d < dim; d++) dot += query[a + d] * key[b + d];
    dot *= this.scale;
    if (this.softcap) dot = this.softcap * Math.tanh(dot / this.softcap);
    if (this.slope) dot -= this.slope * Math.abs(i + this.offset - j);
    return this.bias ? dot + this.bias[i * this.keys + j] : dot;
  }

  /** The spans of keys that a row may look at: [first, end, …]. */
  spans(i) { return this.runs[i] || this.runs[this.runs.length - 1]; }

  weight(i, j, by) {
    const p = Math.exp(this.score(i, j) - this.lse[i]);
    return by === "norm" ? p * this.norm[j] : p;
  }

  /** Weights of a row over some keys; NaN where it may not look. */
  row(i, first, end, by, hidden) {
    const found = new Float32Array(end - first).fill(NaN), spans = this.spans(i);
    for (let s = 0; s < spans.length; s += 2) {
      for (let j = Math.max(first, spans[s]); j < Math.min(end, spans[s + 1]); j++) {
        if (!hidden.has(j)) found[j - first] = this.weight(i, j, by);
      }
    }
    return found;
  }

  block(rows, keys, by, hidden) {
    const high = rows[1] - rows[0], wide = keys[1] - keys[0], cells = empty(high, wide);
    for (let i = 0; i < high; i++) {
      const row = this.row(rows[0] + i, keys[0], keys[1], by, hidden), count = this.seen[rows[0] + i];
      for (let j = 0; j < wide; j++) {
        if (row[j] !== row[j]) continue;
        const at = i * wide + j;
        cells.total[at] = row[j];
        cells.largest[at] = by === "uniform" ? row[j] * count : row[j];
        cells.over[at] = by === "uniform" ? 1 / count : 1;
      }
    }
    return cells;
  }

  /** Every level from the whole map, worked out once, with pauses so that the page stays alive. */
  async pyramid(by, hidden, factors) {
    const key = `${by} ${[...hidden]}`;
    if (!this.pyramids.has(key)) this.pyramids.set(key, this.build(by, hidden, factors));
    return this.pyramids.get(key);
  }

  async build(by, hidden, factors) {
    const parts = new Map(factors.map((f) => [f, []])), high = Math.max(STRIP, factors[factors.length - 1]);
    for (let first = 0; first < this.queries; first += high) {
      let cells = this.block([first, Math.min(this.queries, first + high)], [0, this.keys], by, hidden);
      for (const factor of factors) {
        if (factor > 1) cells = coarser(cells);
        parts.get(factor).push(factor > 1 ? cells : { ...cells, largest: null, total: null, over: null, top: tops(cells, by) });
        if (factor > 1) cells.top = tops(cells, by);
      }
      if (first % 512 === 0) await pause();
    }
    const levels = new Map(), most = new Map();
    for (const [factor, some] of parts) {
      most.set(factor, Object.fromEntries(["largest", "mean", "sum"].map((pool) => [pool, Math.max(...some.map((c) => c.top[pool]))])));
      if (factor > 1) levels.set(factor, joined(some));
    }
    return { levels, most };
  }

  async tile(by, hidden, pool, factor, row, column, factors) {
    if (factor === 1) {
      const cells = this.block([row * SIDE, Math.min(this.queries, (row + 1) * SIDE)], [column * SIDE, Math.min(this.keys, (column + 1) * SIDE)], by, hidden);
      return shown(cells, pool, by);
    }
    const level = (await this.pyramid(by, hidden, factors)).levels.get(factor);
    return shown(cutOut(level, row, column), pool, by);
  }
}

function empty(high, wide) {
  const plane = () => new Float32Array(high * wide);
  return { high, wide, largest: plane(), total: plane(), over: plane() };
}

function coarser(c) {
  const made = empty(Math.ceil(c.high / 2), Math.ceil(c.wide / 2));
  for (let i = 0; i < c.high; i++) {
    for (let j = 0; j < c.wide; j++) {
      const from = i * c.wide + j, to = (i >> 1) * made.wide + (j >> 1);
      if (c.largest[from] > made.largest[to]) made.largest[to] = c.largest[from];
      made.total[to] += c.total[from];
      made.over[to] += c.over[from];
    }
  }
  return made;
}

function joined(some) {
  const wide = some[0].wide, high = some.reduce((sum, c) => sum + c.high, 0), made = empty(high, wide);
  let at = 0;
  for (const c of some) {
    for (const plane of ["largest", "total", "over"]) made[plane].set(c[plane], at * wide);
    at += c.high;
  }
  return made;
}

function cutOut(c, row, column) {
  const high = Math.min(SIDE, c.high - row * SIDE), wide = Math.min(SIDE, c.wide - column * SIDE), made = empty(high, wide);
  for (const plane of ["largest", "total", "over"]) {
    for (let i = 0; i < high; i++) {
      const from = (row * SIDE + i) * c.wide + column * SIDE;
      made[plane].set(c[plane].subarray(from, from + wide), i * wide);
    }
  }
  return made;
}

/** One number a cell; NaN where nobody may look. */
export function shown(c, pool, by) {
  const found = new Float32Array(c.total.length);
  for (let i = 0; i < found.length; i++) {
    found[i] = c.over[i] === 0 ? NaN : pool === "largest" ? c.largest[i]
      : pool === "mean" || by === "uniform" ? c.total[i] / c.over[i] : c.total[i];
  }
  return found;
}

function tops(c, by) {
  const top = { largest: 0, mean: 0, sum: 0 };
  for (const pool of Object.keys(top)) for (const v of shown(c, pool, by)) if (v > top[pool]) top[pool] = v;
  return top;
}
