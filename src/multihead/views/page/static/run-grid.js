// Every head of a run as a cell: layers down, heads across, coloured by a statistic at one step.

import { html, useMemo } from "./vendor/preact.js";
import { setState } from "./state.js";
import { colourAt, theme } from "./colours.js";
import { Ramp } from "./grid.js";
import { labelOf } from "./run-words.js";
import { number } from "./words.js";

const WIDE = 404, HIGH = 330; // px that all cells share

export function RunGrid({ data, pick }) {
  const { run, stats, stat, index, layer, head } = data;
  const range = useMemo(() => rangeOf(run.statistics[stat]), [run, stat]);
  if (!stat) return html`<p class="note">The samples hold no statistic of a head.</p>`;
  const most = Math.max(...run.layers.map((l) => l.heads));
  const wide = Math.max(11, Math.min(92, Math.floor(WIDE / most) - 3)), high = Math.max(11, Math.min(56, Math.floor(HIGH / run.layers.length) - 3));
  const warned = new Set(run.warnings.filter((w) => w.step === run.steps[index]).map((w) => `${w.layer}.${w.head}`));
  return html`
    <div class="tools"><label>coloured by <select value=${stat} onChange=${(e) => setState({ stat: e.target.value })}>
        ${stats.map((s) => html`<option value=${s}>${labelOf(s)}</option>`)}</select></label>
      <span class="scale" role="note" aria-label="legend of the heads"><i>${number(range[0])}</i><${Ramp} /><i>${number(range[1])}</i><i>over the whole run</i></span></div>
    <div class="cells-of" role="group" aria-label="heads by layer" style=${`--wide:${wide}px;--high:${high}px`}>
      <div class="line heads-of" aria-hidden="true"><span class="rowname"></span>${Array.from({ length: most }, (_, h) => html`<i>${wide > 15 || h % 5 === 0 ? h : ""}</i>`)}</div>
      ${run.layers.map((one, l) => html`<div class="line" key=${l}><span class="rowname" title=${one.name}>${l}</span>
        ${run.statistics[stat][index][l].map((value, h) => html`<${Cell} key=${h} at=${`${l}.${h}`} name=${one.name} stat=${stat} value=${value} range=${range}
          here=${l === layer && h === head} warned=${warned.has(`${l}.${h}`)} told=${wide > 33 && high > 15} pick=${() => pick(l, h)} />`)}</div>`)}</div>`;
}

/** The least and the most of the whole run, so that a colour means the same at every step. */
function rangeOf(steps) {
  let low = Infinity, high = -Infinity;
  for (const layers of steps || []) for (const heads of layers) for (const v of heads) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
  return low <= high ? [low, high] : [null, null];
}

function Cell({ at, name, stat, value, range: [low, high], here, warned, told, pick }) {
  const share = value === null ? 0 : high > low ? (value - low) / (high - low) : 0;
  const ink = (theme() === "dark") === share > 0.55 ? "#12132f" : "#ffffff";
  const style = value === null ? "" : `background:${colourAt(share)};color:${ink}`;
  return html`<button class=${`rcell${value === null ? " none" : ""}${warned ? " warned" : ""}`} style=${style} aria-pressed=${here} onClick=${pick} data-at=${at}
    title=${`head ${at} of ${name}\n${labelOf(stat)} ${number(value)}${warned ? "\nwarned of at this step" : ""}`}
    aria-label=${`head ${at}, ${stat} ${number(value)}${warned ? ", warned of" : ""}`}>${told ? number(value, 2) : ""}</button>`;
}

/** What the run was warned of; a click goes there. */
export function Warnings({ data, goTo, pick }) {
  const { run, index } = data, now = run.steps[index];
  const open = (w) => { if (w.layer !== null && w.head !== null) pick(w.layer, w.head); goTo(w.step); };
  return html`<section class="warnings" aria-label="warnings"><h2>${run.warnings.length ? `${run.warnings.length} ${run.warnings.length === 1 ? "warning" : "warnings"}` : "No warnings"}</h2>
    <ul>${run.warnings.map((w) => html`<li><button class=${w.step === now ? "here" : ""} aria-current=${w.step === now ? "step" : undefined} onClick=${() => open(w)}>
      <i>step ${w.step.toLocaleString("en")}</i>${w.layer !== null && html`<b>${w.head === null ? `layer ${w.layer}` : `${w.layer}.${w.head}`}</b>`}<span>${w.what}</span></button></li>`)}</ul></section>`;
}
