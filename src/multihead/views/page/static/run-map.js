// One head's pooled map at the step that is shown, and what it was before: small multiples of the same range.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { setState } from "./state.js";
import { getFloats } from "./source.js";
import { paint } from "./colours.js";
import { useAnswer } from "./hooks.js";
import { Ramp } from "./grid.js";
import { number } from "./words.js";

const FEW = 12, KEPT = 400;
const known = new Map(); // maps by address, the latest last

function ask(step, layer, head, pool) {
  const path = `/map/${step}/${layer}/${head}.bin?pool=${pool}`;
  if (!known.has(path)) {
    const asked = getFloats(path);
    known.set(path, asked);
    asked.catch(() => known.delete(path)); // it may be there the next time
    if (known.size > KEPT) known.delete(known.keys().next().value);
  }
  return known.get(path);
}

export function HeadMap({ data, goTo }) {
  const { run, index, layer, head, pool } = data, step = run.steps[index];
  const at = run.maps.filter((s) => s <= step).at(-1), few = spread(run.maps, FEW), beside = few.filter((s) => s <= step).at(-1);
  const now = useAnswer(at === undefined ? null : `${at} ${layer} ${head} ${pool}`, () => ask(at, layer, head, pool));
  const past = useAnswer(few.length ? `${few} ${layer} ${head} ${pool}` : null,
    () => Promise.all(few.map((s) => ask(s, layer, head, pool).catch(() => null))));
  const [pointed, setPointed] = useState(null); // a place, whose number changes as the run is played
  const shown = at === undefined ? null : now.value, every = [shown, ...(past.value || [])].filter(Boolean);
  const most = every.reduce((top, cells) => cells.reduce((m, v) => (v > m ? v : m), top), 0);
  return html`<div class="headmap">
    <div class="title"><h1>${layer}.${head}</h1><p class="path">${run.layers[layer].name}</p>
      <label class="note">cells show the <select value=${pool} onChange=${(e) => setState({ pool: e.target.value })}>
        <option value="largest">largest weight</option><option value="mean">mean weight</option></select></label>
      <span class="scale" role="note" aria-label="legend of the maps"><i>0</i><${Ramp} /><i>${number(most)}</i></span></div>
    ${!run.maps.length ? html`<p class="note">This run kept no maps.</p>` : html`<div class="maps-of">
      <figure class="big"><${Cells} cells=${shown} most=${most} label=${`map of head ${layer}.${head} at step ${at}`} point=${setPointed} ready=${now.fresh} />
        <figcaption>${now.error ? html`<span class="error" role="alert">${now.error}</span>` : at === undefined ? "no map yet at this step" : `step ${number(at)}${at === step ? "" : `, the last map before ${number(step)}`}: queries down, keys right`}
          <span class="pointed">${pointed && shown && saidOf(shown, pointed)}</span></figcaption></figure>
      <div class="history" role="group" aria-label="this head before and after">${few.map((s, n) => html`<button key=${s} class=${s === beside ? "here" : ""} aria-current=${s === beside ? "step" : undefined}
        aria-label=${`go to step ${s}`} onClick=${() => goTo(s)}><${Cells} cells=${past.value?.[n]} most=${most} /><i>${number(s)}</i></button>`)}</div></div>`}</div>`;
}

const sideOf = (cells) => Math.round(Math.sqrt(cells.length));

function saidOf(cells, [down, across]) {
  const side = sideOf(cells), row = Math.floor(down * side), column = Math.floor(across * side);
  return `row ${row}, column ${column} of ${side}: ${number(cells[row * side + column])}`;
}

/** At most so many, evenly, with the first and the last. */
function spread(steps, most) {
  if (steps.length <= most) return steps;
  return Array.from({ length: most }, (_, n) => steps[Math.round((n * (steps.length - 1)) / (most - 1))]);
}

function Cells({ cells, most, label, point, ready }) {
  const canvas = useRef(), side = cells ? sideOf(cells) : 1;
  useEffect(() => {
    if (!cells) return;
    const c = canvas.current.getContext("2d"), image = c.createImageData(side, side);
    paint(cells, "linear", most, image.data);
    c.putImageData(image, 0, 0);
  });
  const move = (e) => {
    const box = canvas.current.getBoundingClientRect(), down = (e.clientY - box.top) / box.height, across = (e.clientX - box.left) / box.width;
    point(down >= 0 && across >= 0 && down < 1 && across < 1 ? [down, across] : null);
  };
  return html`<canvas width=${side} height=${side} ref=${canvas} role=${label ? "img" : undefined} aria-label=${label} data-ready=${Boolean(cells) && ready !== false}
    onPointerMove=${point && move} onPointerLeave=${point && (() => point(null))}></canvas>`;
}
