// The whole map in small, with a frame around what is seen; a click on it goes there.

import { picture } from "./tiles.js";
import { theme } from "./colours.js";

const MINI = 112, LEAST = 64; // pixels
export const ROOM = LEAST + 12; // beside a map that stands alone, so that nothing is covered

/** Beside the map, or under it, where there is room; else over the corner with the fewest links. */
function placed(map) {
  const { margin, side } = map, [right, bottom] = [margin.left + side, margin.top + side];
  const beside = Math.min(MINI, map.width - right - 12), below = Math.min(MINI, map.height - bottom - 12);
  if (beside >= LEAST) return { x: right + 8, y: margin.top + 4, size: beside };
  if (below >= LEAST) return { x: right - below - 4, y: bottom + 8, size: below };
  const far = side - MINI - 8, corners = [[far, 8], [8, far], [8, 8], [far, far]].map(([x, y]) => ({ x, y, links: under(map, x, y) }));
  const best = corners.reduce((a, b) => (b.links < a.links ? b : a));
  return { x: margin.left + best.x, y: margin.top + best.y, size: MINI };
}

/** How many of nine places under the mini-map are links: above the diagonal of a causal map there are none. */
function under(map, x, y) {
  let links = 0;
  for (const i of [0, 0.5, 1]) {
    for (const j of [0, 0.5, 1]) {
      const query = Math.floor(map.view.q + (y + i * MINI) / map.scale), key = Math.floor(map.view.k + (x + j * MINI) / map.scale);
      const value = query < map.shown.layer.queries && key < map.shown.layer.keys ? map.valueAt({ query, key }) : NaN;
      if (!Number.isNaN(value)) links++; // one that is not here yet counts too
    }
  }
  return links;
}

const needed = (map) => map.view.span < 0.98 * map.longest && map.side > 3 * MINI;

export function drawMini(map, c) {
  map.mini = needed(map) ? placed(map) : null;
  if (!map.mini) return;
  const { x, y, size } = map.mini, { queries, keys } = map.shown.layer, each = size / map.longest;
  const coarsest = map.shown.factors[map.shown.factors.length - 1], most = map.shown.most(coarsest);
  c.save();
  c.fillStyle = theme() === "dark" ? "#0b0e12ee" : "#ffffffee";
  c.fillRect(x - 4, y - 4, size + 8, size + 8);
  c.imageSmoothingEnabled = true;
  const tile = map.tiles.get(coarsest, 0, 0, false);
  if (tile && most !== null) c.drawImage(picture(tile, map.shown.scale, most), x, y, keys * each, queries * each);
  c.strokeStyle = theme() === "dark" ? "#8b93a0" : "#767b84";
  c.strokeRect(x - 0.5, y - 0.5, keys * each + 1, queries * each + 1);
  c.strokeStyle = theme() === "dark" ? "#ff9d6e" : "#b3261e"; c.lineWidth = 1.5;
  const wide = Math.max(4, map.view.span * each);
  c.strokeRect(x + map.view.k * each, y + map.view.q * each, wide, wide);
  c.restore();
}

/** The corner of a view around the place of the mini-map that was clicked; null beside it. */
export function miniAt(map, x, y) {
  if (!map.mini) return null;
  const { x: left, y: top, size } = map.mini, each = size / map.longest;
  if (x < left || y < top || x > left + size || y > top + size) return null;
  return { k: (x - left) / each - map.view.span / 2, q: (y - top) / each - map.view.span / 2 };
}
