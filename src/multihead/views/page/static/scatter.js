// Dots of two numbers each, with whiskers where a number has an interval; a brush picks some.

import { html, useRef, useState } from "./vendor/preact.js";
import { labelOf } from "./grid.js";
import { nearest } from "./roving.js";
import { labelsOf, roomy, ticksOf } from "./ticks.js";
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
  const ticks = ticksOf(low, high), labels = labelsOf(ticks);
  return { at: (v) => from + ((v - low) / (high - low)) * (to - from), ticks: ticks.map((t, i) => [t, labels[i]]) };
}

const STEP = 18; // how far a key pushes an edge of the brush
const EDGES = { ArrowLeft: [0, -STEP], ArrowUp: [1, -STEP], ArrowRight: [2, STEP], ArrowDown: [3, STEP] };

/** A brush around a dot with one edge pushed out, or taken back as far as the dot. */
function pushed([x, y], frame, key, back) {
  const [edge, step] = EDGES[key], next = [...frame || [x, y, x, y]], dot = edge % 2 ? y : x;
  const to = next[edge] + (back ? -step : step);
  next[edge] = step < 0 ? Math.max(edge ? PAD.top : PAD.left, Math.min(dot, to)) : Math.min(edge === 3 ? H - PAD.bottom : W - PAD.right, Math.max(dot, to));
  return next;
}

export function Scatter({ rows, x, y, inside, brushed, picked, pick }) {
  const svg = useRef(), [box, setBox] = useState(null), [frame, setFrame] = useState(null), [active, setActive] = useState(picked[0]);
  const across = axis(rows, x, PAD.left, W - PAD.right), up = axis(rows, y, H - PAD.bottom, PAD.top);
  const dots = rows.map((row) => ({ row, a: reading(row, x), b: reading(row, y) })).filter((d) => typeof d.a.v === "number" && typeof d.b.v === "number");
  const places = dots.map(({ row, a, b }) => ({ at: row.at, x: across.at(a.v), y: up.at(b.v) }));
  const stop = places.find((p) => p.at === active) || places[0]; // the one stop of the Tab key
  const point = (e) => {
    const frame = svg.current.getBoundingClientRect();
    return [((e.clientX - frame.left) / frame.width) * W, ((e.clientY - frame.top) / frame.height) * H];
  };
  const down = (e) => { setFrame(null); if (e.target.dataset.at) return; svg.current.setPointerCapture(e.pointerId); setBox([...point(e), ...point(e)]); };
  const move = (e) => box && setBox([box[0], box[1], ...point(e)]);
  const end = () => {
    if (!box) return;
    const [x0, x1] = [box[0], box[2]].sort((p, q) => p - q), [y0, y1] = [box[1], box[3]].sort((p, q) => p - q);
    setBox(null);
    brush(x1 - x0 < 4 && y1 - y0 < 4 ? null : [x0, y0, x1, y1]);
  };
  const brush = (some) => brushed(some ? places.filter(({ x: px, y: py }) => px >= some[0] && px <= some[2] && py >= some[1] && py <= some[3]).map((p) => p.at) : []);
  const keys = (e) => {
    const mine = places.find((p) => p.at === e.target.dataset.at), turn = { PageUp: -1, PageDown: 1 }[e.key];
    if (!mine || e.altKey || e.metaKey) return;
    if (e.key === "Enter" || e.key === " ") pick(mine.at);
    else if (e.key === "Escape") { setFrame(null); brushed([]); }
    else if (EDGES[e.key] && e.shiftKey) { const next = pushed([mine.x, mine.y], frame, e.key, e.ctrlKey); setFrame(next); brush(next); }
    else if (e.ctrlKey || !EDGES[e.key] && !turn) return;
    else {
      const to = turn ? places[places.indexOf(mine) + turn] : nearest(places, mine, e.key);
      if (to) svg.current.querySelector(`circle[data-at="${to.at}"]`).focus();
    }
    e.preventDefault();
  };
  const focus = (e) => { const { at } = e.target.dataset; if (at && at !== active) { setActive(at); setFrame(null); } };
  return html`<svg class="scatter" viewBox="0 0 ${W} ${H}" ref=${svg} onPointerDown=${down} onPointerMove=${move} onPointerUp=${end} onKeyDown=${keys} onFocusCapture=${focus} role="group"
    aria-label=${`${labelOf(y)} against ${labelOf(x)}: arrows go from dot to dot, Enter picks one, Shift with arrows brushes around it`}>
    ${across.ticks.map(([t, said]) => html`<g><path d=${`M${across.at(t)} ${PAD.top}V${H - PAD.bottom}`} class="tick" /><text x=${across.at(t)} y=${H - PAD.bottom + 15} text-anchor="middle">${said}</text></g>`)}
    ${up.ticks.map(([t, said]) => html`<g><path d=${`M${PAD.left} ${up.at(t)}H${W - PAD.right}`} class="tick" /><text x=${PAD.left - 6} y=${up.at(t) + 4} text-anchor="end">${said}</text></g>`)}
    <text x=${(W + PAD.left) / 2} y=${H - 6} text-anchor="middle" class="strong">${labelOf(x)}</text>
    <text transform="translate(12 ${(H - PAD.bottom) / 2}) rotate(-90)" text-anchor="middle" class="strong">${labelOf(y)}</text>
    ${dots.map(({ row, a, b }) => html`<g class=${inside && !inside.has(row.at) ? "faded" : ""}>
      ${a.low !== undefined && html`<path class="whisker" d=${`M${across.at(a.low)} ${up.at(b.v)}H${across.at(a.high)}`} />`}
      ${b.low !== undefined && html`<path class="whisker" d=${`M${across.at(a.v)} ${up.at(b.low)}V${up.at(b.high)}`} />`}
      <circle cx=${across.at(a.v)} cy=${up.at(b.v)} r=${picked.includes(row.at) ? 6.5 : 4} data-at=${row.at} tabindex=${row.at === stop.at ? 0 : -1} role="button" class=${picked.includes(row.at) ? "picked" : ""}
        aria-label=${`head ${row.at}: ${number(a.v)}, ${number(b.v)}`} aria-pressed=${picked.includes(row.at)} onClick=${() => pick(row.at)}>
        <title>${row.at}: ${number(a.v)}, ${number(b.v)}</title></circle>
      ${picked.includes(row.at) && html`<text x=${across.at(a.v) + (across.at(a.v) > W - 70 ? -9 : 9)} y=${up.at(b.v) - 6} text-anchor=${across.at(a.v) > W - 70 ? "end" : "start"} class="strong">${picked[0] === row.at ? "a" : "b"} ${row.at}</text>`}</g>`)}
    ${frame && html`<rect class="brush" x=${frame[0] - 5} y=${frame[1] - 5} width=${frame[2] - frame[0] + 10} height=${frame[3] - frame[1] + 10} />`}
    ${box && html`<rect class="brush" x=${Math.min(box[0], box[2])} y=${Math.min(box[1], box[3])} width=${Math.abs(box[2] - box[0])} height=${Math.abs(box[3] - box[1])} />`}</svg>`;
}
