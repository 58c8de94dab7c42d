// What is pointed at, in one sentence: who reads how much from whom, exactly; and what is hidden as hidden.

import { getJSON, paths } from "./source.js";
import { UNITS, named, number } from "./words.js";

/** `minus` is a map that is taken away, and `others` its words; `factor` is how many tokens a cell stands for, `value` what colours it. */
export async function sentence(map, minus, layer, words, { query, key, factor: f, value }, others = words) {
  const cell = (m) => getJSON(paths.cell(m, f, Math.floor(query / f), Math.floor(key / f)));
  const at = { f, words, others, rows: low(query, f, layer.queries), keys: low(key, f, layer.keys), query, key };
  const unit = map.by === "norm" ? `, ${UNITS.norm}` : "";
  try {
    return pooled(map, minus, at, value) + (minus ? apart(await cell(map), await cell(minus), at) : alone(await cell(map), at, unit));
  } catch (error) { return error.message; }
}

/** Of a cell that is coloured by its mean or sum, that number, before the largest link in it. */
function pooled({ by, pool }, minus, { f, rows, keys }, value) {
  if (f === 1 || pool === "largest" || value === undefined || Number.isNaN(value)) return "";
  const what = by === "uniform" ? "All together" : pool === "mean" ? "Mean" : "Sum", of = minus ? ", a − b" : ` of rows ${rows} over keys ${keys}`;
  return `${what}${of}: ${number(value).replace(/^-/, "−")}${by === "uniform" ? " × uniform" : by === "norm" ? `, ${UNITS.norm}` : ""}. `;
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
  const { f, words, others, rows, keys, query, key } = at, each = f > 1 ? `, largest of ${f}×${f} each` : "";
  const link = (some) => `${named(some[0], query)} from ${named(some[1], key)}`, mine = link(words), theirs = link(others);
  const where = f > 1 ? `Rows ${rows}, keys ${keys}` : mine === theirs ? mine : `a ${mine}, b ${theirs}`; // of two texts each its own words
  if (a.value !== null && b.value !== null) return `${where}: ${number(a.value)} − ${number(b.value)} = ${number(a.value - b.value).replace(/^-/, "−")}${each}`;
  const told = (one) => (one.value !== null ? number(one.value) : one.hidden ? `${number(one.hidden.value)} (hidden)` : "may not look");
  if (a.value === null && b.value === null && !a.hidden && !b.hidden) return nobody(at);
  return a.hidden && b.hidden ? `Hidden: ${where}: a ${number(a.hidden.value)}, b ${number(b.hidden.value)}${each}` : `${where}: a ${told(a)}, b ${told(b)}${each}`;
}

const low = (place, f, count) => { const first = Math.floor(place / f) * f; return `${first}–${Math.min(count, first + f) - 1}`; };
