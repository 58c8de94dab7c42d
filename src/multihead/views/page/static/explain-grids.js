// Grids of coloured cells. Each is a table whose cells hold their numbers: out of sight until the
// pointer comes, and always there for a screen reader.

import { html, useState } from "./vendor/preact.js";
import { HEADS, colourAt } from "./colours.js";

export const SIZE = 3; // words, queries, keys and values are drawn with numbers of size 1

export const headColour = (head) => HEADS[head % HEADS.length];
export const headInk = (head) => `color-mix(in srgb, ${headColour(head)} 70%, var(--ink))`; // dark enough to read
export const figure = (value, digits = 2) => {
  if (value === null || value === undefined) return "-inf";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
};
export const share = (weight) => `${(100 * weight).toFixed(0)} %`;

export const signed = (most) => (value) => colourAt(0.5 + value / (2 * most), "difference");
export const pale = (most) => (value) => `color-mix(in srgb, ${signed(most)(value)} 55%, var(--paper))`;
export const ofHead = (head) => (value) => `color-mix(in srgb, ${headColour(head)} ${(4 + 96 * value).toFixed(1)}%, var(--paper))`;

let tell = () => {};

/** What the pointer is over. */
export function Tip() {
  const [tip, set] = useState(null);
  tell = set;
  if (!tip) return null;
  const left = Math.min(tip.x + 14, innerWidth - 330), top = tip.y > innerHeight - 90 ? tip.y - 62 : tip.y + 16;
  return html`<div class="tip" role="tooltip" style=${`left:${left}px;top:${top}px`}><b>${tip.value}</b><span>${tip.place}</span></div>`;
}
export const hideTip = () => tell(null);

function point(event, name, rows, columns, show) {
  const cell = event.target.closest("td[data-r]");
  if (!cell) { hideTip(); return; }
  const { r, c } = cell.dataset;
  tell({ x: event.clientX, y: event.clientY, value: show(Number(r), Number(c)), place: `${name} · ${rows[r]} · ${columns[c]}` });
}

/** `bands` are the heads, which own columns ("columns") or rows ("rows") of this grid. */
export function Grid({ name, title = name, note = "", dot = null, rows, columns, values, colour, cell = 14, digits = 3, unit = figure, follow = -1,
  there = () => true, labels = false, letters = null, bands = null, each = 1, along = "columns", pick = null, printed = false }) {
  const show = (r, c) => unit(values[r][c], digits);
  const starts = (place) => bands && place % each === 0;
  return html`<table class=${`cells ${printed ? "printed" : ""} ${pick ? "click" : ""}`} style=${`--cell:${cell}px`}
      onMouseMove=${(e) => point(e, name, rows, columns, show)} onMouseLeave=${hideTip}>
    <caption class="unseen">${name}</caption>
    <thead><tr class="titled" aria-hidden="true"><th></th><th colspan=${columns.length}><span>
      ${dot !== null && html`<i class="dot" style=${`background:${headColour(dot)}`}></i>`}<b>${title}</b> ${note}</span></th></tr><tr class=${letters ? "letters" : "unseen-row"}>
      <th><span class="unseen">row</span></th>
      ${columns.map((column, c) => html`<th scope="col"><span class="unseen">${column}</span>${letters && html`<i aria-hidden="true">${letters[c]}</i>`}</th>`)}</tr>
      ${bands && along === "columns" && html`<tr class="bands" aria-hidden="true"><th></th>
        ${bands.map((h) => html`<th colspan=${each} style=${`background:${headColour(h)}`}></th>`)}</tr>`}</thead>
    <tbody>${values.map((row, r) => html`<tr class=${`${r === follow ? "followed" : ""} ${along === "rows" && starts(r) && r > 0 ? "cut" : ""}`}
        onClick=${pick && (() => pick(r))}>
      <th scope="row" class=${labels ? `label ${cell < 8 ? "tiny" : ""}` : "none"} style=${bands && along === "rows" ? `background:${headColour(bands[Math.floor(r / each)])};width:4px` : ""}>
        <span class=${labels ? "" : "unseen"}>${rows[r]}</span></th>
      ${row.map((value, c) => html`<td data-r=${r} data-c=${c}
        class=${`${there(r, c) ? "" : "later"} ${value === null ? "hid" : ""} ${along === "columns" && starts(c) && c > 0 ? "cut" : ""}`}
        style=${value === null ? "" : `background-color:${colour(value)}`}><span class=${printed ? "" : "unseen"}>${show(r, c)}</span></td>`)}</tr>`)}
    </tbody></table>`;
}

/** What colours mean. */
export function Key({ most, digits = 0, of = "" }) {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((at) => colourAt(at, "difference")).join(",");
  return html`<p class="scale key">${of}−${figure(most, digits)} <span class="ramp" style=${`background:linear-gradient(90deg,${stops})`}></span> ${figure(most, digits)}</p>`;
}

export function HeadKey({ head }) {
  const ramp = ofHead(head);
  return html`<p class="scale key">0 % <span class="ramp" style=${`background:linear-gradient(90deg,${ramp(0)},${ramp(1)})`}></span> 100 %</p>`;
}

export const range = (count, call) => Array.from({ length: count }, (_, i) => call(i));
export const places = (count, what = "number") => range(count, (i) => `${what} ${i}`);

/** The largest cell that lets so many columns and rows stand in the room there is. */
export function fitting(columns, rows, wide, high, most = 26, least = 5) {
  return Math.max(least, Math.min(most, Math.floor(wide / columns) - 1, Math.floor(high / rows) - 1)); // 1 between cells
}

/** The room a figure has, measured by the page. */
export const room = { wide: 960, high: 400 };
