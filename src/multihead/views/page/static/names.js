// What the head is called, and why one may believe it.

import { html } from "./vendor/preact.js";
import { counted, number } from "./words.js";

export function Names({ own, names, layer, head }) {
  if (!names || names.state === "none") return html`<p>No names were looked for: there is a recording here, and no model to try.</p>`;
  if (names.state === "failed" && !names.names.length) return html`<p class="error">No names: ${names.message}</p>`;
  const scored = names.scores.find((s) => s.layer === layer && s.head === head);
  const verdicts = names.verdicts.filter((v) => v.name.layer === layer && v.name.head === head);
  return html`
    ${names.state === "running" && html`<p role="status">${names.message} <progress value=${names.share} max="1"></progress></p>`}
    ${own.length === 0 && names.state !== "running" && html`<p>This head earned no name: a name needs a score of 0.4, a lower 95 % bound above five times chance, and more than 99 % of the controls.</p>`}
    ${own.map((name) => html`<article class="name"><h3>${name.pattern} <small>${name.where}</small></h3>
      <dl><dt>score</dt><dd><b>${number(name.score, 2)}</b>, not below ${number(name.low, 2)} (95 %)</dd>
        <dt>chance</dt><dd>${number(name.chance)}</dd><dt>controls, 99 %</dt><dd>${number(name.control)}</dd>
        <dt>spread</dt><dd>${number(name.spread)} over ${name.where === "on cue" ? "seeds" : "parts of the text"}</dd>
        <dt>opportunities</dt><dd>${counted(name.rows, "rows")}</dd></dl>
      <${Verdict} v=${verdicts.find((v) => v.name.pattern === name.pattern && v.name.where === name.where)} /></article>`)}
    ${scored && html`<table class="scores"><caption>every pattern, 95 % interval</caption><tbody>${Object.entries(scored.scores).map(([what, [mean, low, high]]) => html`
      <tr><th scope="row">${what}</th><td class="bar"><span style=${{ width: `${100 * Math.max(0, Math.min(1, mean))}%` }}></span></td>
      <td>${number(mean, 2)} <small>${number(low, 2)} … ${number(high, 2)}</small></td></tr>`)}</tbody></table>`}`;
}

function Verdict({ v }) {
  if (!v) return html`<p class="verdict note">Not tested by cutting.</p>`;
  const signed = (x) => (x === null ? "–" : `${x < 0 ? "−" : "+"}${number(Math.abs(x), 2)}`);
  return html`<p class=${v.holds ? "verdict good" : "verdict bad"}><b>${v.holds ? "Holds." : "Does not hold."}</b>${" "}
    With exactly these links cut, ${v.measured} changes by <b>${signed(v.effect)}</b> (not below ${signed(v.low)}).
    Beside it: other links of this head ${signed(v.elsewhere)}, the same links in the layer's other heads ${signed(v.others)},
    in every head of this name together ${signed(v.together)}${v.untouched !== null ? html`; what should stay: ${signed(v.untouched)}` : ""}.</p>`;
}
