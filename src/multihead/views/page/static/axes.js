// Around the map: words on both axes once there is room, which side asks, the cross-hair, the lasso.

import { shortened } from "./words.js";
import { theme } from "./colours.js";

export const TITLES = { query: "← asks (query)", key: "is asked (key) →" };
const ROOM = 9; // pixels that a word needs
export const NEARLY = 1e-6; // a view that begins at a token may be off by a rounding
const INK = { light: "#2b2f36", dark: "#d8dde4" };
const FAINT = { light: "#767b84", dark: "#8b93a0" };
const CROSS = { light: "#b3261e", dark: "#ff9d6e" };
const FONT = '11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';

export function drawAxes(map, c) {
  const { view, scale, side, shown } = map, ink = INK[theme()], faint = FAINT[theme()];
  c.font = '600 11px system-ui, "DejaVu Sans", sans-serif';
  c.fillStyle = faint;
  c.textAlign = "right"; c.textBaseline = "alphabetic";
  c.fillText(map.margin.left > 110 ? TITLES.key : "asked →", map.margin.left - 14, map.margin.top - 7); // in the corner, where no word comes
  c.save();
  c.translate(11, map.margin.top); c.rotate(-Math.PI / 2);
  c.textAlign = "right";
  c.fillText(TITLES.query, 0, 0);
  c.restore();
  c.font = FONT;
  c.fillStyle = ink;
  const step = strideOf(scale);
  const every = (first, count, draw) => {
    for (let i = Math.max(0, Math.ceil(first / step - NEARLY) * step); i < Math.min(count, first + view.span); i += step) {
      const at = (i + 0.5 - first) * scale;
      if (at >= 0 && at <= side) draw(i, at);
    }
  };
  const close = scale >= ROOM;
  c.textAlign = "right"; c.textBaseline = "middle";
  every(view.q, shown.layer.queries, (i, at) => {
    c.fillStyle = map.cross?.query === i ? CROSS[theme()] : shown.padding?.[0]?.includes(i) ? faint : ink;
    c.fillText(close ? shortened(shown.words[0][i] ?? String(i), Math.floor((map.margin.left - 22) / 6.7)) : String(i), map.margin.left - 6, map.margin.top + at);
  });
  every(view.k, shown.layer.keys, (i, at) => {
    c.save();
    c.translate(map.margin.left + at, map.margin.top - 6);
    c.rotate(close ? -Math.PI / 3 : 0);
    c.textAlign = close ? "left" : "center"; c.textBaseline = close ? "middle" : "alphabetic";
    c.fillStyle = map.cross?.key === i ? CROSS[theme()] : shown.padding?.[1]?.includes(i) ? faint : ink;
    c.fillText(close ? shortened(shown.words[1][i] ?? String(i), Math.floor((map.margin.top - 10) / 5.7)) : String(i), 0, 0);
    c.restore();
  });
  c.strokeStyle = faint; c.lineWidth = 1;
  c.strokeRect(map.margin.left - 0.5, map.margin.top - 0.5, side + 1, side + 1);
}

/** Every word where there is room; else a round number of tokens apart. */
function strideOf(scale) {
  if (scale >= ROOM) return Math.ceil(13 / scale);
  const apart = 46 / scale, power = 10 ** Math.floor(Math.log10(apart));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= apart);
}

export function drawCross(map, c) {
  if (!map.cross) return;
  const { view, scale, side } = map, f = map.factor;
  const low = (v) => Math.floor(v / f) * f;
  const x = map.margin.left + (low(map.cross.key) - view.k) * scale, y = map.margin.top + (low(map.cross.query) - view.q) * scale;
  const wide = Math.max(1, f * scale);
  c.strokeStyle = CROSS[theme()]; c.lineWidth = 1; c.globalAlpha = 0.75;
  c.beginPath();
  c.moveTo(map.margin.left, y + wide / 2); c.lineTo(x, y + wide / 2);
  c.moveTo(x + wide / 2, map.margin.top); c.lineTo(x + wide / 2, y);
  c.stroke();
  c.globalAlpha = 1;
  c.strokeRect(x - 0.5, y - 0.5, wide + 1, wide + 1);
}

/** The row, or the column, of a token that is held. */
export function drawPinned(map, c) {
  const { held } = map.shown;
  if (!held) return;
  const { view, scale, side } = map, wide = Math.max(1.5, scale);
  c.globalAlpha = 0.28; c.fillStyle = CROSS[theme()];
  if (held.from) c.fillRect(map.margin.left, map.margin.top + (held.place - view.q) * scale, side, wide);
  else c.fillRect(map.margin.left + (held.place - view.k) * scale, map.margin.top, wide, side);
  c.globalAlpha = 1;
}

/** Keys that are left out are hatched: they are hidden, and not empty. */
export function drawHidden(map, c) {
  if (map.shown.map.sinks === "show") return;
  const { view, scale, side } = map;
  c.save();
  c.strokeStyle = FAINT[theme()]; c.globalAlpha = 0.8; c.lineWidth = 1;
  for (const key of map.shown.hidden) {
    const x = map.margin.left + (key - view.k) * scale, wide = Math.max(2, scale);
    if (x + wide < map.margin.left || x > map.margin.left + side) continue;
    c.save();
    c.beginPath(); c.rect(x, map.margin.top, wide, side); c.clip();
    c.beginPath();
    for (let y = -wide; y < side + wide; y += 7) {
      c.moveTo(x, map.margin.top + y + wide); c.lineTo(x + wide, map.margin.top + y);
    }
    c.stroke();
    c.restore();
  }
  c.restore();
}

export function drawLasso(map, c) {
  if (!map.lasso?.points.length) return;
  const { view, scale } = map;
  c.beginPath();
  for (const [query, key] of map.lasso.points) {
    c.lineTo(map.margin.left + (key - view.k) * scale, map.margin.top + (query - view.q) * scale);
  }
  if (!map.lasso.drawing) c.closePath();
  c.strokeStyle = CROSS[theme()]; c.lineWidth = 1.5; c.setLineDash([5, 3]);
  c.stroke();
  c.setLineDash([]);
  c.fillStyle = CROSS[theme()]; c.globalAlpha = 0.14; c.fill(); c.globalAlpha = 1;
}
