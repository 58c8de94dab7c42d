// Every head as a thumbnail of its map: layers down, heads across, framed by a statistic, with the
// marks of its names; or, sorted, one after another.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { getBytes, paths } from "./source.js";
import { setState } from "./state.js";
import { colourAt, tableOf } from "./colours.js";
import { counted, number } from "./words.js";
import { useAnswer } from "./hooks.js";
import { markOf, MARKS, namesByHead } from "./marks.js";
import { linesOf, stepped } from "./roving.js";

const LABELS = {
  entropy: "entropy (nats)", distance: "distance (tokens)", peak: "largest weight of a row", first: "weight on the first token",
  received_top: "key that gets most", received_top_share: "what that key gets", hidden: "weight on sinks",
};
export const labelOf = (stat) => LABELS[stat] || stat;
export const statsOf = (data) => data.stats.filter((s) => data.heads.some((h) => typeof h[s] === "number"));

export function Grid({ state, data, names, trouble }) {
  const stats = statsOf(data), stat = stats.includes(state.stat) ? state.stat : stats[0];
  const byHead = useMemo(() => namesByHead(names), [names?.version]);
  const thumbs = useAnswer(`${state.rec} ${state.batch}`, () => getBytes(paths.thumbs(state.rec, state.batch)));
  const range = useMemo(() => {
    const values = data.heads.map((h) => h[stat]).filter((v) => typeof v === "number");
    return [Math.min(...values), Math.max(...values)];
  }, [data, stat]);
  const wanted = (h) => {
    const own = byHead.get(`${h.layer}.${h.head}`) || [];
    const f = state.filter.trim();
    if (!f) return true;
    if (f.startsWith("in:")) return f.slice(3).split("_").includes(`${h.layer}.${h.head}`);
    return own.some((n) => n.pattern === f) || `${h.layer}.${h.head}` === f || `${h.layer}` === f;
  };
  const order = data.heads.map((h, i) => ({ ...h, i })).filter((h) => state.sort === "place" || wanted(h));
  if (state.sort !== "place") {
    const sign = state.sort === "most" ? -1 : 1;
    order.sort((a, b) => sign * ((a[stat] ?? 0) - (b[stat] ?? 0)));
  }
  const drawn = new Set(data.layers.filter((l) => l.thumbs).map((l) => l.index)), every = drawn.size === data.layers.length;
  const count = data.heads.filter(wanted).length;
  const [active, setActive] = useState(`${state.layer}.${state.head}`); // the one stop of the Tab key
  const stop = order.some((h) => `${h.layer}.${h.head}` === active) ? active : order.length ? `${order[0].layer}.${order[0].head}` : "";
  const keys = (e) => {
    const from = e.target.closest(".cell"), all = (where) => [...where.querySelectorAll(".cell")];
    const to = from && stepped(state.sort === "place" ? [...e.currentTarget.querySelectorAll(".line")].map(all) : linesOf(all(e.currentTarget)), from, e);
    if (to) to.focus();
    if (to || from && e.key.startsWith("Arrow")) e.preventDefault(); // at an edge the page does not scroll away either
  };
  const moving = { onKeyDown: keys, onFocusCapture: (e) => e.target.dataset.at && setActive(e.target.dataset.at) };
  const cell = (h) => html`<${Cell} key=${`${h.layer}.${h.head}`} stop=${`${h.layer}.${h.head}` === stop} h=${h} stat=${stat} range=${range} dim=${!wanted(h)}
    bare=${!drawn.has(h.layer)} thumb=${drawn.has(h.layer) && thumbs.value && new Uint8Array(thumbs.value, h.i * data.thumb ** 2, data.thumb ** 2)} side=${data.thumb}
    names=${byHead.get(`${h.layer}.${h.head}`) || []} />`;
  return html`
    <div class="tools"><h2>${counted(data.heads.length, "heads")}</h2>
      <label>framed by <select value=${stat} onChange=${(e) => setState({ stat: e.target.value })}>
        ${stats.map((s) => html`<option value=${s}>${labelOf(s)}</option>`)}</select></label>
      <label>order <select value=${state.sort} onChange=${(e) => setState({ sort: e.target.value })}>
        <option value="place">by layer and head</option><option value="most">most first</option><option value="least">least first</option></select></label>
      <label>only <select value=${state.filter.startsWith("in:") ? "in" : state.filter in MARKS ? state.filter : ""}
        onChange=${(e) => setState({ filter: e.target.value === "in" ? state.filter : e.target.value })}>
        <option value="">all heads</option>${Object.keys(MARKS).map((p) => html`<option value=${p}>${p}</option>`)}
        ${state.filter.startsWith("in:") && html`<option value="in">those brushed in Compare</option>`}</select></label>
      ${state.filter && html`<button class="chip" onClick=${() => setState({ filter: "" })}>${count} of ${data.heads.length} shown ×</button>`}
      <span class="scale" aria-hidden="true"><i>${number(range[0])}</i><${Ramp} /><i>${number(range[1])}</i></span>
    </div>
    ${(thumbs.error || trouble) && html`<p class="error" role="alert">${thumbs.error || trouble}</p>`}
    ${state.sort === "place" ? html`<div class="grid" role="group" aria-label="heads by layer: arrows go from one to another, Enter opens it" ...${moving} style=${{ columnWidth: `${53 * Math.max(...data.layers.map((l) => l.heads)) + 34}px` }}>
      ${data.layers.map((layer) => html`<div class="line" key=${layer.index}>
        <span class="rowname" title=${layer.name}>${layer.crosses ? `${layer.index}×` : layer.index}</span>
        ${order.filter((h) => h.layer === layer.index).map(cell)}</div>`)}</div>`
    : html`<div class="grid flow" role="group" aria-label="heads, sorted: arrows go from one to another, Enter opens it" ...${moving}>${order.map(cell)}</div>`}
    <p class="note">${drawn.size > 0 && `Thumbnails show the largest weight of each ${data.thumb} × ${data.thumb}th of the map, from 1 down four decades, sinks included. `}
      ${!every && `${drawn.size ? "Some layers have none: of them there" : "There are no thumbnails: there"} are statistics alone (keep_qk=False), and no heat map.`}
      ${Object.entries(MARKS).map(([name, mark]) => html`<span class="key"><b>${mark}</b> ${name}</span>`)}</p>`;
}

export function Ramp({ scale = "linear" }) {
  const canvas = useRef();
  useEffect(() => {
    const c = canvas.current.getContext("2d"), image = c.createImageData(128, 1), table = tableOf(scale);
    for (let i = 0; i < 128; i++) for (let j = 0; j < 4; j++) image.data[i * 4 + j] = j === 3 ? 255 : table[i * 6 + j];
    c.putImageData(image, 0, 0);
  });
  return html`<canvas class="ramp" width="128" height="1" ref=${canvas}></canvas>`;
}

function Cell({ h, stop, stat, range, thumb, bare, side, names, dim }) {
  const canvas = useRef(), [low, high] = range, value = h[stat];
  const share = typeof value === "number" && high > low ? (value - low) / (high - low) : 0;
  useEffect(() => {
    if (!thumb) return;
    const c = canvas.current.getContext("2d"), image = c.createImageData(side, side), table = tableOf("linear");
    for (let i = 0; i < side * side; i++) {
      for (let j = 0; j < 3; j++) image.data[i * 4 + j] = table[thumb[i] * 3 + j];
      image.data[i * 4 + 3] = 255;
    }
    c.putImageData(image, 0, 0);
  });
  const said = names.map((n) => `${n.pattern} ${number(n.score, 2)}`).join(", ");
  return html`<button class=${`cell${dim ? " dim" : ""}${bare ? " bare" : ""}`} style=${{ borderColor: colourAt(0.12 + 0.88 * share) }} tabindex=${stop ? 0 : -1} data-at=${`${h.layer}.${h.head}`}
    title=${`${h.layer}.${h.head}${said ? `: ${said}` : ""}\n${labelOf(stat)} ${number(value)}`}
    aria-label=${`head ${h.layer}.${h.head}, ${stat} ${number(value)}${said ? `, ${said}` : ""}`}
    onClick=${() => setState({ view: "head", layer: h.layer, head: h.head })}>
    ${!bare && html`<canvas width=${side} height=${side} ref=${canvas}></canvas>`}
    <span class="at">${h.layer}.${h.head}</span><span class="marks">${[...new Set(names.map(markOf))].join("")}</span></button>`;
}
