// Round numbers along an axis, at most six or so.

import { number } from "./words.js";

/** A little room on both sides of what is shown, and the ticks inside. */
export function roomy(values, share = 0.04) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (typeof v === "number") { low = Math.min(low, v); high = Math.max(high, v); }
  if (!(high > low)) { low = (Number.isFinite(low) ? low : 0) - 0.5; high = low + 1; }
  const room = share * (high - low);
  return [low - room, high + room];
}

export function ticksOf(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 4)), nice = [1, 2, 5, 10].map((n) => n * step).find((n) => (high - low) / n <= 6);
  const ticks = [];
  for (let t = Math.ceil(low / nice) * nice; t <= high; t += nice) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

/** Ticks in words, with as many digits as tell them apart. */
export function labelsOf(ticks) {
  for (let digits = 2; digits < 12; digits++) {
    const said = ticks.map((t) => (digits === 2 || t === 0 ? number(t, 2) : t.toFixed(digits)));
    const apart = new Set(said).size === said.length, whole = ticks.every((t, i) => digits === 2 || Math.abs(Number(said[i]) - t) < 1e-9 * Math.abs(t));
    if (apart && whole) return said;
  }
  return ticks.map(String);
}
