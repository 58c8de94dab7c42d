// A lasso by keys: a box of whole cells on the map, that arrows move and Shift with arrows makes larger or smaller.

import { named } from "./words.js";

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** One cell at the cross-hair, or in the middle of what is seen. */
export function boxAt(map) {
  const f = map.factor, { q, k, span } = map.view, { queries, keys } = map.shown.layer;
  const { query, key } = map.cross || { query: Math.min(queries - 1, q + span / 2), key: Math.min(keys - 1, k + span / 2) };
  const low = (v) => Math.floor(Math.floor(v) / f) * f;
  return { rows: [low(query), Math.min(queries, low(query) + f)], keys: [low(key), Math.min(keys, low(key) + f)] };
}

/** The box after a key; null for a key that is not its own. */
export function boxAfter(box, event, map) {
  const arrow = ARROWS[event.key], f = map.factor, { layer } = map.shown;
  if (!arrow) return null;
  const moved = ([first, end], by, count) => {
    if (event.shiftKey) return [first, Math.max(first + Math.min(f, count - first), Math.min(count, end + by * f))];
    const step = Math.max(-first, Math.min(count - end, by * f));
    return [first + step, end + step];
  };
  return { rows: moved(box.rows, arrow[0], layer.queries), keys: moved(box.keys, arrow[1], layer.keys) };
}

/** Its corners, as a lasso has points. */
export const cornersOf = ({ rows: [top, bottom], keys: [left, right] }) => [[top, left], [top, right], [bottom, right], [bottom, left]];

/** The view with the box in sight: of one that is larger than the view, the corner that grows. */
export function viewWith(box, { q, k, span }) {
  const within = (corner, [first, end]) => (end > corner + span || end - first > span ? end - span : Math.min(corner, first));
  return { q: within(q, box.rows), k: within(k, box.keys), span };
}

/** rows 'ran' (7) to 'cat' (9), keys 'a' (2) */
export function boxSaid({ rows, keys }, words) {
  const span = ([first, end], some) => (end - first > 1 ? `${named(some, first)} to ${named(some, end - 1)}` : named(some, first));
  return `rows ${span(rows, words[0])}, keys ${span(keys, words[1])}`;
}
