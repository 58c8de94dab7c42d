// Numbers over the steps of a run, with the step that is shown; a click goes to another.

import { html, useRef } from "./vendor/preact.js";
import { labelsOf, roomy, ticksOf } from "./ticks.js";
import { number } from "./words.js";

const W = 400, H = 176, PAD = { left: 44, right: 18, top: 8, bottom: 22 };

/** `series`: {name, points: [[step, value or null], …]}; `marks`: steps at which something was said. */
export function Curve({ label, series, at, pick, marks }) {
  const svg = useRef();
  const every = series.flatMap((s) => s.points), [x0, x1] = roomy(every.map(([step]) => step), 0.01), [y0, y1] = roomy(every.map(([, v]) => v), 0.07);
  const x = (step) => PAD.left + ((step - x0) / (x1 - x0)) * (W - PAD.left - PAD.right);
  const y = (v) => H - PAD.bottom - ((v - y0) / (y1 - y0)) * (H - PAD.bottom - PAD.top);
  const click = (e) => {
    const box = svg.current.getBoundingClientRect(), across = ((e.clientX - box.left) / box.width) * W;
    pick(x0 + ((across - PAD.left) / (W - PAD.left - PAD.right)) * (x1 - x0));
  };
  const here = series.map((s) => ({ name: s.name, value: s.points.find(([step]) => step === at)?.[1] ?? null }));
  const told = here.filter((s) => s.value !== null).map((s) => (series.length > 1 ? `${s.name} ${number(s.value)}` : number(s.value))).join(", ") || "not known";
  return html`<figure class="curve"><figcaption>${label} ${series.length > 1 ? null : html`<b>${told}</b>`}</figcaption>
    <svg viewBox="0 0 ${W} ${H}" ref=${svg} onClick=${click} role="img" aria-label=${`${label} over the steps; at step ${at}: ${told}`}>
      ${ticksOf(x0, x1).filter((t) => t >= 0).map((t) => html`<g><path class="tick" d=${`M${x(t)} ${PAD.top}V${H - PAD.bottom}`} /><text x=${x(t)} y=${H - 7} text-anchor="middle">${number(t)}</text></g>`)}
      ${ticksOf(y0, y1).map((t, i, all) => html`<g><path class="tick" d=${`M${PAD.left} ${y(t)}H${W - PAD.right}`} /><text x=${PAD.left - 5} y=${y(t) + 4} text-anchor="end">${labelsOf(all)[i]}</text></g>`)}
      ${[...new Set(marks)].map((step) => html`<path class="mark" d=${`M${x(step)} ${H - PAD.bottom}l-4 7h8z`} />`)}
      ${series.map((s, n) => html`<path class=${`series of${n % 3}`} d=${drawn(s.points, x, y)} />`)}
      <path class="now" d=${`M${x(at)} ${PAD.top}V${H - PAD.bottom}`} />
      ${here.map((s, n) => s.value !== null && html`<circle class=${`of${n % 3}`} cx=${x(at)} cy=${y(s.value)} r="3.5" />`)}</svg>
    ${series.length > 1 && html`<p class="note names">${series.map((s, n) => html`<span class=${`name-of of${n % 3}`}>${s.name} <b>${number(here[n].value)}</b></span>`)}</p>`}</figure>`;
}

/** A line that is broken where nothing is known. */
function drawn(points, x, y) {
  let path = "", up = true;
  for (const [step, value] of points) {
    if (value === null) { up = true; continue; }
    path += `${up ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    up = false;
  }
  return path;
}
