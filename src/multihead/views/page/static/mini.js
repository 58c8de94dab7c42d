// The whole map in a corner, with a frame around what is seen; a click on it goes there.

import { picture } from "./tiles.js";
import { theme } from "./colours.js";

const MINI = 112; // pixels

function corner(map) {
  return [map.margin.left + map.side - MINI - 8, map.margin.top + 8];
}
const needed = (map) => map.view.span < 0.98 * map.longest && map.side > 3 * MINI;

export function drawMini(map, c) {
  if (!needed(map)) return;
  const [x, y] = corner(map), { queries, keys } = map.shown.layer, each = MINI / map.longest;
  const coarsest = map.shown.factors[map.shown.factors.length - 1], most = map.shown.most(coarsest);
  c.save();
  c.fillStyle = theme() === "dark" ? "#0b0e12ee" : "#ffffffee";
  c.fillRect(x - 4, y - 4, MINI + 8, MINI + 8);
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
  if (!needed(map)) return null;
  const [left, top] = corner(map), each = MINI / map.longest;
  if (x < left || y < top || x > left + MINI || y > top + MINI) return null;
  return { k: (x - left) / each - map.view.span / 2, q: (y - top) / each - map.view.span / 2 };
}
