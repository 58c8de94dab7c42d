// Dots of two numbers each, with whiskers where a number has an interval; a brush picks some.

import { html, useRef, useState } from "./vendor/preact.js";
import { labelOf } from "./grid.js";
import { roomy, ticksOf } from "./ticks.js";
import { number } from "./words.js";

const W = 520, H = 400, PAD = { left: 54, right: 14, top: 10, bottom: 40 };

/** A value and its interval, if it has one. */
function reading(row, key) {
  const score = row.scores[key];
  return score ? { v: score[0], low: score[1], high: score[2] } : { v: row[key] };
}

function axis(rows, key, from, to) {
  const values = rows.map((r) => reading(r, key)).flatMap(({ v, low, high }) => [v, low, high]).filter((v) => typeof v === "number");
  const [low, high] = roomy(values);
  return { at: (v) => from + ((v - low) / (high - low)) * (to - from), ticks: ticksOf(low, high) };
}

export function Scatter({ rows, x, y, inside, brushed, picked, pick }) {
  const svg = useRef(), [box, setBox] = useState(null);
  const across = axis(rows, x, PAD.left, W - PAD.right), up = axis(rows, y, H - PAD.bottom, PAD.top);
  const dots = rows.map((row) => ({ row, a: reading(row, x), b: reading(row, y) })).filter((d) => typeof d.a.v === "number" && typeof d.b.v === "number");
  const point = (e) => {
    const frame = svg.current.getBoundingClientRect();
    return [((e.clientX - frame.left) / frame.width) * W, ((e.clientY - frame.top) / frame.height) * H];
  };
  const down = (e) => { if (e.target.dataset.at) return; svg.current.setPointerCapture(e.pointerId); setBox([...point(e), ...point(e)]); };
  const move = (e) => box && setBox([box[0], box[1], ...point(e)]);
  const end = () => {
    if (!box) return;
    const [x0, x1] = [box[0], box[2]].sort((p, q) => p - q), [y0, y1] = [box[1], box[3]].sort((p, q) => p - q);
    setBox(null);
    if (x1 - x0 < 4 && y1 - y0 < 4) { brushed([]); return; }
    brushed(dots.filter(({ a, b }) => across.at(a.v) >= x0 && across.at(a.v) <= x1 && up.at(b.v) >= y0 && up.at(b.v) <= y1).map((d) => d.row.at));
  };
  return html`<svg class="scatter" viewBox="0 0 ${W} ${H}" ref=${svg} onPointerDown=${down} onPointerMove=${move} onPointerUp=${end} role="group" aria-label=${`${labelOf(y)} against ${labelOf(x)}`}>
    ${across.ticks.map((t) => html`<g><path d=${`M${across.at(t)} ${PAD.top}V${H - PAD.bottom}`} class="tick" /><text x=${across.at(t)} y=${H - PAD.bottom + 15} text-anchor="middle">${number(t, 2)}</text></g>`)}
    ${up.ticks.map((t) => html`<g><path d=${`M${PAD.left} ${up.at(t)}H${W - PAD.right}`} class="tick" /><text x=${PAD.left - 6} y=${up.at(t) + 4} text-anchor="end">${number(t, 2)}</text></g>`)}
    <text x=${(W + PAD.left) / 2} y=${H - 6} text-anchor="middle" class="strong">${labelOf(x)}</text>
    <text transform="translate(12 ${(H - PAD.bottom) / 2}) rotate(-90)" text-anchor="middle" class="strong">${labelOf(y)}</text>
    ${dots.map(({ row, a, b }) => html`<g class=${inside && !inside.has(row.at) ? "faded" : ""}>
      ${a.low !== undefined && html`<path class="whisker" d=${`M${across.at(a.low)} ${up.at(b.v)}H${across.at(a.high)}`} />`}
      ${b.low !== undefined && html`<path class="whisker" d=${`M${across.at(a.v)} ${up.at(b.low)}V${up.at(b.high)}`} />`}
      <circle cx=${across.at(a.v)} cy=${up.at(b.v)} r=${picked.includes(row.at) ? 6.5 : 4} data-at=${row.at} tabindex="0" role="button" class=${picked.includes(row.at) ? "picked" : ""}
        aria-label=${`head ${row.at}: ${number(a.v)}, ${number(b.v)}`} onClick=${() => pick(row.at)} onKeyDown=${(e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), pick(row.at))}>
        <title>${row.at}: ${number(a.v)}, ${number(b.v)}</title></circle>
      ${picked.includes(row.at) && html`<text x=${across.at(a.v) + (across.at(a.v) > W - 70 ? -9 : 9)} y=${up.at(b.v) - 6} text-anchor=${across.at(a.v) > W - 70 ? "end" : "start"} class="strong">${picked[0] === row.at ? "a" : "b"} ${row.at}</text>`}</g>`)}
    ${box && html`<rect class="brush" x=${Math.min(box[0], box[2])} y=${Math.min(box[1], box[3])} width=${Math.abs(box[2] - box[0])} height=${Math.abs(box[3] - box[1])} />`}</svg>`;
}
