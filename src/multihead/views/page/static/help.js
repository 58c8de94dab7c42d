// What the keys do.

import { html } from "./vendor/preact.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["← → ↑ ↓", "the next head, the next layer; the view is kept"],
  ["W A S D", "move over the map"],
  ["+ −", "closer, farther"], ["0", "the whole map"],
  ["Enter", "go to the strongest link in view; of a difference, to where the two differ most"],
  ["Esc", "let a token go"],
  ["h c ?", "home, compare, these keys"],
];

export function Help({ close }) {
  return html`<${Dialog} title="Keys" opener="?" close=${close}>
    <table class="keys"><tbody>${KEYS.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p>On the map: the wheel zooms, dragging moves, a click on a pooled cell lands on its strongest link.
    In the text: ← and → go from word to word, a click holds one.</p>
  </${Dialog}>`;
}
