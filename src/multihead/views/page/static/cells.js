// How a map is cut: a tile is 256 × 256 cells, a cell of factor f is f × f weights.

export const SIDE = 256;

const FEWEST = 64;

/** 1, 2, 4, … up to the factor at which the whole map is 64 cells: a small map has few pixels. */
export function factorsOf(layer) {
  const longest = Math.max(layer.queries, layer.keys), found = [1];
  while (FEWEST * found[found.length - 1] < longest) found.push(found[found.length - 1] * 2);
  return found;
}

/** Whether a standalone file carries this head pooled, and not exactly. */
export const pooledIn = (data, at) => Boolean(data.exact) && !data.exact.includes(at);

/** The factors at which a head can be drawn: all of them, or, pooled in a file, the coarsest alone. */
export function factorsFor(data, at, layer) {
  return pooledIn(data, at) ? factorsOf(layer).slice(-1) : factorsOf(layer);
}
