// A standalone page answers from itself: chosen heads exactly at every zoom, the others pooled.

import { ExactHead } from "./exact.js";
import { factorsOf } from "./cells.js";
import { fromHalves } from "./halves.js";

const file = JSON.parse(document.getElementById("carried").textContent);
const floats = (text) => new Float32Array(bytes(text));
const LINKS = 8;
const exact = new Map();

function bytes(text) {
  const raw = atob(text), made = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
  return made.buffer;
}

const layerOf = (index) => file.home.layers.find((l) => l.index === index);
const sinksOf = (at) => file.home.heads.find((h) => `${h.layer}.${h.head}` === at).sinks;

function exactly(at) {
  if (!file.exact[at]) throw new Error(`${at} is pooled in this file; exact in it: ${file.home.exact.join(", ")}.`);
  if (!exact.has(at)) {
    const g = file.exact[at];
    exact.set(at, new ExactHead({ ...g, query: floats(g.query), key: floats(g.key), lse: floats(g.lse), norm: g.norm && floats(g.norm), bias: g.bias && floats(g.bias) }));
  }
  return exact.get(at);
}

function asked(path) {
  const url = new URL(path, "http://file"), parts = url.pathname.split("/").slice(1), of = Object.fromEntries(url.searchParams);
  const [layer, head, ...rest] = parts.slice(1).map((part) => Number.parseInt(part, 10));
  const at = `${layer}.${head}`;
  return { what: parts[0].split(".")[0], at, layer, rest, ...of };
}

const hiddenOf = (a) => new Set(a.sinks === "show" ? [] : a.sinks === "hide" ? sinksOf(a.at) : a.sinks.split(",").map(Number));

const coarsest = (a) => factorsOf(layerOf(a.layer)).at(-1);

/** A pooled head has one tile, of the largest weights, at the coarsest factor. */
function pooled(a, factor = coarsest(a)) {
  if (factor !== coarsest(a)) throw new Error(`${a.at} is pooled in this file, ${coarsest(a)}×${coarsest(a)} weights a cell; it has no others.`);
  if (a.by !== "weight" || a.pool !== "largest") throw new Error(`${a.at} is pooled in this file: it has the largest weights alone.`);
  const found = file.pooled[a.at];
  const cells = fromHalves(bytes(a.sinks === "show" && found.show || found.hide));
  const own = sinksOf(a.at), wide = Math.ceil(layerOf(a.layer).keys / factor);
  for (const key of hiddenOf(a)) { // what the rest of its cell weighs without it is not carried: the cell goes with it
    if (!own.includes(key)) for (let at = Math.floor(key / factor); at < cells.length; at += wide) cells[at] = NaN;
  }
  return cells;
}

const paddingOf = (a) => new Set(file.home.padding[layerOf(a.layer).query_text]);

/** What share of all weight lies on the keys that are hidden; null where the file does not tell. */
function shareOn(a, keys) {
  const told = file.heads[a.at], { received } = told.strips;
  if (String(keys) === String(told.sinks)) return told.hidden;
  if (!received || !file.exact[a.at]) return null;
  const none = paddingOf(a), rows = exactly(a.at).lse.filter((v, i) => v !== -Infinity && !none.has(i)).length;
  return keys.reduce((sum, key) => sum + received[key], 0) / Math.max(1, rows);
}

const ANSWERS = {
  home: () => file.home,
  names: () => file.names,
  heads: () => file.table,
  head: (a) => (a.sinks ? { ...file.heads[a.at], hidden: shareOn(a, [...hiddenOf(a)]) } : file.heads[a.at]),
  range: async (a) => {
    const factors = factorsOf(layerOf(a.layer));
    if (!file.exact[a.at]) {
      let top = 0;
      for (const v of pooled(a)) if (v > top) top = v;
      return { [coarsest(a)]: { largest: top, mean: top, sum: top } };
    }
    const { most } = await exactly(a.at).pyramid(checked(a), hiddenOf(a), factors);
    return Object.fromEntries(most);
  },
  cell: (a) => (file.exact[a.at] ? exactCell(a) : pooledCell(a)),
  row: (a) => links(exactly(a.at).row(a.rest[0], 0, exactly(a.at).keys, checked(a), new Set()), a, "query"),
  column: (a) => {
    const h = exactly(a.at), found = new Float32Array(h.queries), none = paddingOf(a); // nobody asks for rows of padding
    for (let i = 0; i < h.queries; i++) if (!none.has(i)) found[i] = h.row(i, a.rest[0], a.rest[0] + 1, checked(a), new Set())[0];
    return links(found, a, "key");
  },
};

function checked(a) {
  if (a.by === "norm" && !exactly(a.at).norm) throw new Error("W_O was not found for this head.");
  return a.by;
}

/** The largest link that is shown, and the largest of those that are hidden. */
function exactCell(a) {
  const h = exactly(a.at), [f, row, column] = a.rest, by = checked(a) === "norm" ? "norm" : "weight", hidden = hiddenOf(a);
  const found = { query: row * f, key: column * f, pairs: 0, value: null, sum: 0, hidden: null };
  let best = -1, most = -1;
  for (let i = row * f; i < Math.min(h.queries, (row + 1) * f); i++) {
    h.row(i, column * f, Math.min(h.keys, (column + 1) * f), by, new Set()).forEach((v, j) => {
      if (v !== v) return;
      const score = a.by === "uniform" ? v * h.seen[i] : v, link = { query: i, key: column * f + j, value: v };
      if (hidden.has(link.key)) { if (score > most) { most = score; found.hidden = link; } return; }
      found.pairs++; found.sum += v;
      if (score > best) { best = score; Object.assign(found, link); }
    });
  }
  return found.pairs ? found : { ...found, sum: null };
}

function pooledCell(a) {
  const [f, row, column] = a.rest, at = row * Math.ceil(layerOf(a.layer).keys / f) + column;
  const link = f === 1 ? { query: row, key: column } : { query: null, key: null }; // which one of the cell is not known
  const [value, all] = [a.sinks, "show"].map((sinks) => pooled({ ...a, sinks, pool: "largest" }, f)[at]);
  const hidden = all === all && !(value >= all) ? { ...link, value: all } : null;
  return { ...link, pairs: null, value: Number.isNaN(value) ? null : value, sum: null, hidden };
}

function links(weights, a, side) {
  const every = [...weights].map((v) => (Number.isNaN(v) ? 0 : v));
  const top = every.map((v, i) => [i, v]).sort((p, q) => q[1] - p[1]).slice(0, LINKS).filter(([, v]) => v > 0);
  const token = file.tokens[a.rest[0]] || {}, same = layerOf(a.layer)[`${side}_text`] === "text";
  return { [side]: a.rest[0], weights: every, top, sum: every.reduce((x, y) => x + y, 0), ...(same ? token : {}) };
}

async function tile(a) {
  const [f, row, column] = a.rest, factors = factorsOf(layerOf(a.layer));
  if (!file.exact[a.at]) return pooled(a, f);
  return exactly(a.at).tile(checked(a), hiddenOf(a), a.pool, f, row, column, factors);
}

export const carried = {
  first: file.home.exact[0].split(".").map(Number), // the head to open: the others are pooled
  json: async (path) => { const a = asked(path); return ANSWERS[a.what](a); },
  floats: async (path) => tile(asked(path)),
  bytes: async () => bytes(file.thumbs),
};
