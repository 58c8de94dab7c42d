// What the keys do.

import { html } from "./vendor/preact.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["← → ↑ ↓", "the next head, the next layer; the view is kept"],
  ["W A S D", "move over the map"],
  ["+ −", "closer, farther"], ["0", "the whole map"],
  ["Enter", "go to the strongest link in view; of a difference, to where the two differ most"],
  ["L", "a box of links to cut: arrows move it, Shift with them its far corner; Enter takes it, Esc drops it"],
  ["Esc", "let a token go"],
  ["h c ?", "home, compare, these keys"],
];
const ELSEWHERE = [
  ["the heads on Home", "arrows go from one to another, Home and End along a line, Enter opens"],
  ["the text", "← and → go from word to word, ↑ and ↓ ten at a time"],
  ["the dots in Compare", "arrows go to the next dot, Page ↑ ↓ to the head before and after, Enter picks it; Shift with arrows brushes around it, with Ctrl too it takes back, Esc lets go"],
];

export function Help({ close }) {
  return html`<${Dialog} title="Keys" opener="?" close=${close}>
    <table class="keys"><tbody>${KEYS.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p>On the map: the wheel zooms, dragging moves, a click on a pooled cell lands on its strongest link. In the text a click holds a word.</p>
    <h3>Where the focus is</h3>
    <table class="keys"><tbody>${ELSEWHERE.map(([where, what]) => html`<tr><th scope="row">${where}</th><td>${what}</td></tr>`)}</tbody></table>
  </${Dialog}>`;
}
