// What the colours mean, always: range, unit and pooling; and what is left out, always.

import { html } from "./vendor/preact.js";
import { setState } from "./state.js";
import { DECADES } from "./colours.js";
import { Ramp } from "./grid.js";
import { UNITS, number, percent } from "./words.js";

const POOLED = { largest: "largest of", mean: "mean of the visible links in", sum: "sum of" };

export function MapTools({ state, info }) {
  const found = info ? info.norm_found : true;
  const choose = (key, label, options, title) => html`<label title=${title}>${label} <select value=${state[key]}
    onChange=${(e) => setState({ [key]: e.target.value, lock: key === "pool" || key === "by" || key === "scale" ? "" : state.lock })}>
    ${Object.entries(options).map(([value, text]) => html`<option value=${value} disabled=${value === "norm" && !found}>${text}</option>`)}</select></label>`;
  return html`<div class="tools">
    ${choose("by", "show", { weight: "weight", norm: found ? UNITS.norm : `${UNITS.norm}: W_O was not found` }, "how much of a row goes to a key, or how much the key moves the output")}
    ${choose("scale", "scale", { linear: "linear", log: "logarithmic", uniform: "× uniform" }, "× uniform: times what a head that looks at all keys alike would give")}
    ${choose("pool", "pooled by", { largest: "largest", mean: "mean", sum: "sum" }, "what a cell of many links shows")}
    <${Sinks} state=${state} info=${info} />
    ${state.by === "norm" && html`<span class=${found ? "note" : "error"}>${found ? "W_O was found: norms are of what reaches the output." : "W_O was not found here: ‖v W_O‖ is not known, and weights are shown."}</span>`}
    ${state.by === "norm" && state.scale === "uniform" && html`<span class="note">× uniform is of weights.</span>`}
  </div>`;
}

/** Nothing is left out silently. */
function Sinks({ state, info }) {
  if (info?.no_sinks) return html`<span class="note">${info.no_sinks}</span>`;
  if (!info || !info.sinks.length) return null;
  const keys = info.sinks.slice(0, 6).join(", ") + (info.sinks.length > 6 ? ", …" : "");
  const hide = state.sinks === "hide";
  return html`<button class="chip sinks" aria-pressed=${hide} onClick=${() => setState({ sinks: hide ? "show" : "hide" })}
    title=${hide ? "show them" : "hide them"}>${percent(info.hidden)} of weight ${hide ? "hidden" : "on sinks"}: ${info.sinks.length > 1 ? "keys" : "key"} ${keys}${" "}
    <u>${hide ? "show" : "hide"}</u></button>`;
}

const cellOf = (state, factor) => (factor === 1 ? "every link"
  : state.scale === "uniform" && state.pool !== "largest" ? `all of ${factor}×${factor} together` : `${POOLED[state.pool]} ${factor}×${factor}`);
const unitOf = (state) => (state.scale === "uniform" ? "× uniform" : UNITS[state.by]);

/** Of a − b: as far down as up. */
export function DifferenceLegend({ state, drawn: { factor, most } }) {
  const top = most === null ? "…" : number(most);
  return html`<span class="scale" role="note" aria-label="legend of the difference"><i>b more −${top}</i><${Ramp} scale="difference" /><i>+${top} a more</i>
    <i>${unitOf(state)}, ${cellOf(state, factor)}</i></span>`;
}

export function Legend({ state, drawn }) {
  const { factor, most } = drawn;
  const scale = state.scale;
  const reach = Math.min(10, Math.max(1, Math.log2(most || 2)));
  const low = scale === "log" ? number((most || 1) / 10 ** DECADES) : scale === "uniform" ? `1/${number(2 ** reach, 0)}` : "0";
  const high = scale === "uniform" ? number(2 ** reach, 0) : most === null ? "…" : number(most);
  const unit = unitOf(state), cell = cellOf(state, factor);
  return html`<div class="legend" role="note" aria-label="legend">
    <span class="scale"><i>${low}</i><${Ramp} scale=${scale} /><i>${high}</i></span>
    <span class="unit">${unit}, ${scale === "log" ? "logarithmic" : scale === "uniform" ? "1 in the middle" : "linear"}, <b>${cell}</b></span>
    <span class="masked">may not look</span>
    <button class="chip" aria-pressed=${Boolean(state.lock)} disabled=${most === null} title="keep this range when you go to another head"
      onClick=${() => setState({ lock: state.lock ? "" : String(most) })}>${state.lock ? "scale locked" : "lock scale"}</button>
    ${drawn.failed && html`<span class="error" role="alert">${drawn.failed}</span>`}</div>`;
}
