// Where a token looks, or who looks at it: over the words, as a sentence, as its strongest links.

import { html } from "./vendor/preact.js";
import { setState } from "./state.js";
import { getJSON, paths } from "./source.js";
import { useAnswer } from "./hooks.js";
import { Reader } from "./reader.js";
import { Strip } from "./strips.js";
import { UNITS, measured, named, number, percent, quoted, visible } from "./words.js";

const ALONG = { entropy: "nats", distance: "tokens", peak: "", first: "", received: "rows", received_mean: "" };
const SHOWN = ["entropy", "distance", "received"];

export function Reading({ state, map, layer, words, padding, info, pinned, hovered, point }) {
  const from = state.reads !== "to";
  const place = pinned ?? (hovered ? (from ? hovered.query : hovered.key) : null);
  const weights = { ...map, by: state.by };
  const path = place === null ? null : from ? paths.row(weights, place) : paths.column(weights, place);
  const answer = useAnswer(path, () => getJSON(path));
  const seen = path && answer.value && answer.key === path ? answer.value : null;
  const same = layer.query_text === layer.key_text && !layer.crosses; // two texts may be as long, and have no words
  const asked = from ? words[0] : words[1], other = from ? words[1] : words[0];
  const top = seen ? Math.max(1e-12, ...seen.weights.filter((v) => v !== null)) : 1;
  const shades = seen && seen.weights.map((v) => Math.sqrt((v || 0) / (state.by === "norm" ? top : 1)));
  const pick = (i) => setState({ pin: pinned === i ? "" : `q${i}` });
  const hold = (i, reads) => (same ? pick(i) : setState({ pin: `q${i}`, reads })); // of two texts, the one it stands in
  return html`
    <div class="tools"><div class="switch" role="radiogroup" aria-label="direction">
      <button role="radio" aria-checked=${from} onClick=${() => setState({ reads: "from" })}>where it looks</button>
      <button role="radio" aria-checked=${!from} onClick=${() => setState({ reads: "to" })}>who looks at it</button></div>
      ${pinned !== null ? html`<button class="chip" onClick=${() => setState({ pin: "" })}>${named(asked, pinned)} held ×</button>`
    : html`<span class="note">Point at a word or at the map; a click holds it.</span>`}</div>
    <p class="sentence" aria-live="polite">${answer.error && answer.key === path ? answer.error : seen ? said(seen, place, from, asked, other, state.by) : place === null ? "" : "…"}</p>
    <div class="links kept">${seen && html`<table class="top"><caption>${from ? "reads most from" : "is read most by"}${state.by === "norm" ? ` (${UNITS.norm})` : ""}</caption><tbody>
        ${seen.top.slice(0, 5).map(([i, value]) => html`<tr><td><button class="word" onClick=${() => hold(i, from ? "to" : "from")}><${Placed} words=${other} place=${i} /></button></td>
          <td class="bar"><span style=${{ width: `${Math.min(100, 100 * value / (state.by === "norm" ? top : 1))}%` }}></span></td><td>${number(value)}</td></tr>`)}</tbody></table>
      ${seen.next && html`<${Next} next=${seen.next} loss=${seen.loss} after=${same ? words[0][place + 1] : undefined} />`}`}</div>
    ${!same && html`<h3>The text that asks</h3>`}
    <${Reader} words=${words[0]} padding=${padding[0]} shades=${same || !from ? shades : null} pinned=${same || from ? place : null} follow=${pinned !== null}
      hover=${(i) => (same || from) && point(i === null ? null : { query: i, key: i })} pick=${(i) => hold(i, "from")} label="the text, shaded by weight" />
    ${!same && html`<h3>The text that is asked</h3><${Reader} words=${words[1]} padding=${padding[1]} shades=${from ? shades : null} pinned=${from ? null : place} follow=${pinned !== null}
      hover=${(i) => !from && point(i === null ? null : { query: i, key: i })} pick=${(i) => hold(i, "to")} label="the text that is asked, shaded by weight" />`}
    ${info && SHOWN.filter((key) => info.strips[key]).map((key) => { // of two texts each strip runs along one
    const asks = key !== "received", values = info.strips[key];
    return html`<${Strip} label=${asks ? key : "received (key)"} unit=${key === "distance" && layer.query_text.startsWith("places") ? "positions" : ALONG[key]} values=${!asks && state.sinks === "hide" ? values.map((v, i) => (info.sinks.includes(i) ? null : v)) : values}
      mark=${same || asks === from ? place : null} pick=${(i) => hold(i, asks ? "from" : "to")} />`;
  })}`;
}

function said(seen, place, from, asked, other, by) {
  if (!seen.top.length) return `${named(asked, place)} ${from ? "may look at nothing." : "is looked at by nobody."}`;
  const [best, value] = seen.top[0];
  const unit = by === "norm" ? `, ${UNITS.norm}` : "", whole = unit || from ? "" : ` In all it gets the weight of ${measured(seen.sum, "rows")}.`;
  return from ? `${named(asked, place)} reads ${number(value)} from ${named(other, best)}${unit}.`
    : `${named(asked, place)} is read most by ${named(other, best)}: ${number(value)}${unit}.${whole}`;
}

/** A word and its place in a narrow cell: where there is no room for both, it is the word that is cut short. */
function Placed({ words, place }) {
  return html`<span class="short" title=${named(words, place)} style=${{ maxWidth: `calc(144px - ${String(place).length + 3}ch)` }}>${quoted(words, place)}</span>${` (${place})`}`;
}

/** What the model thinks comes next here, and what the token itself cost. */
export function Next({ next, loss, after, caption = "comes next, it thinks" }) {
  return html`<table class="top"><caption>${caption}</caption><tbody>
    ${next.map(([word, p]) => html`<tr class=${word === after ? "hit" : ""}><td>${visible(word)}</td>
      <td class="bar"><span style=${{ width: `${100 * p}%` }}></span></td><td>${percent(p)}</td></tr>`)}
    ${loss !== undefined && loss !== null && html`<tr><td colspan="3" class="note">this token cost ${number(loss, 2)} nats</td></tr>`}</tbody></table>`;
}
