// What is pointed at, in one sentence: who reads how much from whom, exactly; and what is hidden as hidden.

import { getJSON, paths } from "./source.js";
import { UNITS, named, number } from "./words.js";

/** `minus` is a map that is taken away; `factor` is how many tokens a cell stands for. */
export async function sentence(map, minus, layer, words, { query, key, factor: f }) {
  const cell = (m) => getJSON(paths.cell(m, f, Math.floor(query / f), Math.floor(key / f)));
  const at = { f, words, rows: low(query, f, layer.queries), keys: low(key, f, layer.keys), query, key };
  try {
    return minus ? apart(await cell(map), await cell(minus), at) : alone(await cell(map), at, map.by === "norm" ? `, ${UNITS.norm}` : "");
  } catch (error) { return error.message; }
}

/** 'ran' (7) reads 0.41 from 'cat' (2); of pooled cells, the largest and where it is. */
function alone(found, at, unit) {
  if (found.value === null) return found.hidden ? `Hidden: ${reads(found.hidden, at, unit)}` : nobody(at);
  const more = found.hidden ? `; hidden: ${number(found.hidden.value)}${found.hidden.key === null ? "" : ` from ${named(at.words[1], found.hidden.key)}`}` : "";
  const said = reads(found, at, unit) + more;
  return said[0].toUpperCase() + said.slice(1);
}

function reads({ query, key, value }, { f, words, rows, keys }, unit) {
  if (query === null) return `the largest of rows ${rows} over keys ${keys} is ${number(value)}${unit}; which link it is, this file does not say`;
  return `${named(words[0], query)} reads ${number(value)} from ${named(words[1], key)}${unit}${f > 1 ? `, largest of ${f}×${f}` : ""}`;
}

const nobody = ({ f, words, query, key }) => (f > 1 ? "Nobody may look here." : `${named(words[0], query)} may not look at ${named(words[1], key)}.`);

/** a − b: arithmetic where both are numbers, else what there is of either. */
function apart(a, b, at) {
  const { f, words, rows, keys, query, key } = at, each = f > 1 ? `, largest of ${f}×${f} each` : "";
  const where = f > 1 ? `Rows ${rows}, keys ${keys}` : `${named(words[0], query)} from ${named(words[1], key)}`;
  if (a.value !== null && b.value !== null) return `${where}: ${number(a.value)} − ${number(b.value)} = ${number(a.value - b.value).replace(/^-/, "−")}${each}`;
  const told = (one) => (one.value !== null ? number(one.value) : one.hidden ? `${number(one.hidden.value)} (hidden)` : "may not look");
  if (a.value === null && b.value === null && !a.hidden && !b.hidden) return nobody(at);
  return a.hidden && b.hidden ? `Hidden: ${where}: a ${number(a.hidden.value)}, b ${number(b.hidden.value)}${each}` : `${where}: a ${told(a)}, b ${told(b)}${each}`;
}

const low = (place, f, count) => { const first = Math.floor(place / f) * f; return `${first}–${Math.min(count, first + f) - 1}`; };
