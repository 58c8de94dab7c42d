// How a map is cut: a tile is 256 × 256 cells, a cell of factor f is f × f weights.

export const SIDE = 256;

const FEWEST = 64;

/** 1, 2, 4, … up to the factor at which the whole map is 64 cells: a small map has few pixels. */
export function factorsOf(layer) {
  const longest = Math.max(layer.queries, layer.keys), found = [1];
  while (FEWEST * found[found.length - 1] < longest) found.push(found[found.length - 1] * 2);
  return found;
}
