// How the head's context joins the others': its norm, side by side with them, through W_O.

import { html } from "./vendor/preact.js";
import { HEADS } from "./colours.js";
import { useAnswer } from "./hooks.js";
import { getJSON, paths, standalone } from "./source.js";
import { setState } from "./state.js";
import { number } from "./words.js";

const SAYS = {
  measured: "‖context W_O‖ of a row of each head, on average, measured in one more run of the model: how far the head moves the output.",
  most: "Σ weight × ‖v W_O‖ of a row of each head, on average. It is the most that the head can move the output; what cancels is not known without the model.",
};

export function Joins({ state, data, info, layer, head }) {
  const able = !standalone && data.can_cut, path = able ? paths.outputs(state.rec, state.batch) : null;
  const outputs = useAnswer(path, () => getJSON(path));
  if (!info) return html`<p class="note">…</p>`;
  if (!info.moves) return html`<p>No output projection was found behind ${layer.name}: what of each head reaches the output is not known.</p>`;
  if (able && !outputs.fresh) return html`<p role="status">Running the model once, to measure what each head moves …</p>`;
  const found = able && outputs.value?.[layer.index], moves = found || info.moves; // a bound, where there is nothing better
  const top = Math.max(...moves, 1e-9), width = 560, each = width / layer.heads, high = 120;
  return html`<p>Each head gives every row a context; they are laid side by side, and W_O mixes them into one vector.
      Bars: ${found ? SAYS.measured : SAYS.most}</p>
    ${able && outputs.error && html`<p class="error" role="alert">Not measured: ${outputs.error}</p>`}
    <svg class="joins" viewBox="0 0 ${width} 300" role="img" aria-label=${`head ${head} moves ${found ? "" : "at most "}${number(moves[head])}, the largest ${number(top)}`}>
      ${moves.map((value, h) => html`<g class="click" onClick=${() => setState({ head: h })}>
        <rect x=${h * each + 2} y=${high - (value / top) * (high - 20)} width=${Math.max(2, each - 4)} height=${(value / top) * (high - 20)}
          fill=${HEADS[h % HEADS.length]} opacity=${h === head ? 1 : 0.45}><title>head ${h}: ${number(value)}</title></rect>
        ${each > 22 && html`<text x=${(h + 0.5) * each} y=${high - (value / top) * (high - 20) - 4} text-anchor="middle" class=${h === head ? "strong" : ""}>${number(value, 2)}</text>
          <text x=${(h + 0.5) * each} y=${high + 14} text-anchor="middle" class=${h === head ? "strong" : ""}>${h}</text>`}
        <rect x=${h * each} y="158" width=${each} height="26" fill=${HEADS[h % HEADS.length]} opacity=${h === head ? 1 : 0.45} />
        <path d=${`M${(h + 0.5) * each} ${high + 18}V156`} class="arrow" /></g>`)}
      <text x="0" y="202">side by side: ${layer.heads} heads</text>
      <path d="M${width / 2} 186V206" class="arrow" /><rect x=${width / 2 - 90} y="208" width="180" height="34" rx="4" class="box" />
      <text x=${width / 2} y="230" text-anchor="middle">W_O</text>
      <path d="M${width / 2} 243V262" class="arrow" /><text x=${width / 2} y="280" text-anchor="middle">added to the residual stream</text></svg>
    <dl><dt>key and value head</dt><dd>${info.kv_head}, ${layer.kv_heads === 1 ? "the only one" : `of 0 to ${layer.kv_heads - 1}`}${layer.kv_heads < layer.heads ? `, shared by ${layer.heads / layer.kv_heads} heads` : ""}</dd>
      <dt>scale</dt><dd>${number(info.scale)}</dd><dt>mask</dt><dd><code>${info.mask || "none"}</code></dd>
      ${info.softcap && html`<dt>softcap</dt><dd>${number(info.softcap)}</dd>`}</dl>`;
}
