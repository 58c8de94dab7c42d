// Home: what was found, the text with the loss of each token, and every head in a grid.

import { html, useState } from "./vendor/preact.js";
import { setState } from "./state.js";
import { Grid } from "./grid.js";
import { Reader } from "./reader.js";
import { Strip } from "./strips.js";
import { counted, measured, named } from "./words.js";

export function Home({ state, data, names, trouble }) {
  return html`<div class="home">
    <section class="found" aria-label="what was found"><h2>What was found</h2><${Found} data=${data} names=${names} /></section>
    <section class="text" aria-label="the text"><${Text} key=${`${state.rec} ${state.batch}`} data=${data} /></section>
    <section class="heads" aria-label="every head"><${Grid} state=${state} data=${data} names=${names} trouble=${trouble} /></section>
  </div>`;
}

/** The text, and what the token that is pointed at, or held, cost the model. */
function Text({ data }) {
  const name = data.texts.text ? "text" : data.layers[0].query_text, words = data.texts[name], padding = data.padding[name];
  const [held, setHeld] = useState(null), [pointed, setPointed] = useState(null), at = pointed ?? held;
  const hold = (i) => { setHeld(held === i ? null : i); setPointed(null); }; // keys tell of what they hold, wherever the pointer rests
  const said = at === null || !data.loss ? "" : padding?.includes(at) ? `${named(words, at)} is padding.`
    : data.loss[at] === null ? `${named(words, at)} has no loss: nothing before it tells of it.` : `${named(words, at)} cost ${measured(data.loss[at], "nats")}.`;
  return html`<h2>The text <span class="told" aria-live="polite">${said}</span>${data.loss && !said && html`<span class="note">point at a token, or hold it, for its loss</span>`}</h2>
    ${data.loss ? html`<p class="note">Shaded by loss: how much each token surprised the model, in nats.</p>
      <${Strip} label="loss" unit="nats" values=${data.loss} mark=${at} pick=${hold} />`
    : html`<p class="note">No loss: the model gave no next-token logits for this text.</p>`}
    <${Reader} words=${words} padding=${padding} shades=${data.loss && data.loss.map((v) => (v === null ? 0 : Math.min(1, v / 8)))}
      pinned=${held} follow=${held !== null} hover=${setPointed} pick=${hold} label="the text, shaded by loss" />`;
}

function Found({ data, names }) {
  if (!names) return html`<p class="note">…</p>`;
  const holding = names.verdicts.filter((v) => v.holds), place = ({ name }) => `${name.layer}.${name.head}`;
  const verified = [...new Map(holding.toReversed().map((v) => [place(v), v])).values()].toReversed().slice(0, 3); // a head once
  return html`
    ${names.state === "running" && html`<p role="status" class="running">${names.message} <progress value=${names.share} max="1"></progress>
      <span class="note">Names need minutes, once for each model; the page can be used meanwhile.</span></p>`}
    ${names.state === "failed" && html`<p class="error">No names: ${names.message}</p>`}
    ${names.state === "none" && html`<p class="note">No names were looked for: there is a recording here, and no model to try.</p>`}
    ${data.damaged.length > 0 && html`<p class="error">In ${counted(data.damaged.length, "layers")} a weight is not a number, first in ${data.damaged[0]}.</p>`}
    ${verified.length > 0 && html`<p class="verified">Verified, to open: ${verified.map((v) => html`
      <button class="chip good" onClick=${() => open(v.name)}>${v.name.layer}.${v.name.head} ${v.name.pattern}</button>`)}</p>`}
    <ul>${names.findings.map((said) => html`<li>${linked(said, data)}</li>`)}</ul>`;
}

const open = ({ layer, head }) => setState({ view: "head", layer, head });

/** A sentence in which each head that it names is a link. */
function linked(said, data) {
  const known = new Set(data.heads.map((h) => `${h.layer}.${h.head}`));
  // A head stands at the beginning, or behind such words; behind others it is a number.
  return said.split(/(?<=^|[,:;(] |[Hh]eads? |and |behind |in )(\d+\.\d+)(?![\d.]*\d)/).map((part, i) => {
    if (i % 2 === 0 || !known.has(part)) return part;
    const [layer, head] = part.split(".").map(Number);
    return html`<a href="#view=head&layer=${layer}&head=${head}"
      onClick=${(e) => { e.preventDefault(); open({ layer, head }); }}>${part}</a>`;
  });
}
