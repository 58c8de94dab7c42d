// Compare: every head as a dot; two heads, or two recordings, side by side with their difference.

import { html, useMemo, useState } from "./vendor/preact.js";
import { mapOf, noteView, setState, within } from "./state.js";
import { getJSON, paths } from "./source.js";
import { useAnswer, useSoon } from "./hooks.js";
import { factorsFor, pooledIn } from "./cells.js";
import { MapView } from "./headmap.js";
import { DifferenceLegend, Legend, MapTools } from "./legend.js";
import { labelOf, statsOf } from "./grid.js";
import { Scatter } from "./scatter.js";
import { counted, legible, number, percent } from "./words.js";

const MOST = 60; // brushed heads that are named

export function Compare({ state, data, names, trouble }) {
  const rows = useMemo(() => joined(data, names), [data, names?.version]);
  const kinds = [...statsOf(data), ...Object.keys(rows[0].scores)];
  const x = kinds.includes(state.x) ? state.x : kinds[0], y = kinds.includes(state.y) ? state.y : kinds[1] || kinds[0];
  const choose = (key, value) => html`<label>${key === "x" ? "across" : "up"} <select value=${value} onChange=${(e) => setState({ [key]: e.target.value })}>
    ${kinds.map((k) => html`<option value=${k}>${labelOf(k)}</option>`)}</select></label>`;
  const brushed = (inside) => setState({ filter: inside.length ? `in:${inside.join("_")}` : "" });
  const inside = state.filter.startsWith("in:") ? new Set(state.filter.slice(3).split("_")) : null;
  const openHead = (at) => { const [layer, head] = at.split(".").map(Number); setState({ view: "head", layer, head }); };
  return html`<div class="compare">
    <section class="dots" aria-label="every head as a dot"><div class="tools"><h2>Every head</h2>${choose("x", x)}${choose("y", y)}
        <span role="status">${inside && html`<button class="chip" onClick=${() => setState({ filter: "" })}>${counted(inside.size, "heads")} brushed ×</button>`}</span></div>
      ${trouble && html`<p class="error" role="alert">${trouble}</p>`}
      <${Scatter} rows=${rows} x=${x} y=${y} inside=${inside} brushed=${brushed} picked=${[state.a, state.b]}
        pick=${(at) => setState(!state.a || state.b ? { a: at, b: state.a && state.b ? "" : state.b } : { b: at })} />
      <p class="note">A click picks a head to compare, then a second one; dragging brushes (by keys: arrows, Enter, Shift with arrows). Whiskers are 95 % intervals over seeds, where there are seeds.</p>
      ${inside && html`<p class="brushed">${[...inside].slice(0, MOST).map((at) => html`<button class="chip" onClick=${() => openHead(at)}>${at}</button>`)}
        ${inside.size > MOST && html`<span class="note">and ${counted(inside.size - MOST, "heads")} more; <a href="#view=home" onClick=${(e) => { e.preventDefault(); setState({ view: "home" }); }}>all of them on Home</a></span>`}</p>`}</section>
    <section class="pair" aria-label="two heads side by side"><${Pair} state=${state} data=${data} /></section></div>`;
}

/** Statistics and scores of each head in one row. */
function joined(data, names) {
  const scores = new Map((names?.scores || []).map((s) => [`${s.layer}.${s.head}`, s.scores]));
  return data.heads.map((h) => ({ ...h, at: `${h.layer}.${h.head}`, scores: scores.get(`${h.layer}.${h.head}`) || {} }));
}

const headsOf = (d) => (d ? d.heads.map((h) => `${h.layer}.${h.head}`) : []);

function Pair({ state, data }) {
  const rows = data.recordings.find((r) => r.id === state.rb)?.batches ?? 1, row = !state.rb || state.batch < rows ? state.batch : 0;
  const other = useAnswer(state.rb ? `${state.rb} ${row}` : null, () => getJSON(paths.home(state.rb, row)));
  const there = state.rb ? other.fresh && other.value : data;
  const heads = { a: headsOf(data), b: headsOf(there) }, known = (key) => (heads[key].includes(state[key]) ? state[key] : "");
  const a = known("a"), b = known("b");
  const pick = (key, value) => html`<label>${key} <select value=${value} onChange=${(e) => setState({ [key]: e.target.value })}>
    <option value="">choose a head</option>${heads[key].map((h) => html`<option value=${h}>${h}</option>`)}</select></label>`;
  const tools = html`<div class="tools"><h2>Side by side</h2>${pick("a", a)}${pick("b", b)}
    ${data.recordings.length > 1 && html`<label>b of <select value=${state.rb} onChange=${(e) => setState({ rb: e.target.value })}>
      <option value="">the same recording</option>${data.recordings.filter((r) => r.id !== state.rec).map((r) => html`<option value=${r.id}>${legible(r.label)}</option>`)}</select></label>`}</div>`;
  if (!there) return html`${tools}<p class="note">${other.error || "…"}</p>`;
  if (state.rb && state.b && !b) return html`${tools}<p class="error">The other recording has no head ${state.b}; choose one of its own as b.</p>`;
  if (!a || !b) return html`${tools}<p class="note">Choose two heads, here or among the dots.</p>`;
  const place = (at, d) => d.layers.find((l) => l.index === Number(at.split(".")[0]));
  const la = place(a, data), lb = place(b, there);
  if (![la, lb].every((l) => l.maps)) return html`${tools}<p class="error">A recording of statistics alone (keep_qk=False) has no maps to compare.</p>`;
  return html`${tools}<${Maps} state=${state} a=${a} b=${b} data=${data} there=${there} row=${row} la=${la} lb=${lb} />`;
}

/** The two maps and their difference, in one range, with one zoom and one cross-hair. */
function Maps({ state, a, b, data, there, row, la, lb }) {
  const [cross, setCross] = useState(null), [drawn, setDrawn] = useState({ factor: 1, most: null }), [apart, setApart] = useState({ factor: 1, most: null });
  const point = useSoon((place) => setCross(place), 30);
  const change = (set) => (d) => set((was) => (d.factor !== was.factor || d.most !== was.most || d.failed !== was.failed ? d : was));
  const sinksOf = (at, d) => d.heads.find((h) => `${h.layer}.${h.head}` === at)?.sinks || [];
  const both = [...new Set([...sinksOf(a, data), ...sinksOf(b, there)])].sort((x, y) => x - y); // hidden in both, or a difference would be of other things
  const kept = (s, side, layer) => ({ ...mapOf(s, side), batch: side === "b" ? row : s.batch, sinks: s.sinks === "hide" ? both.filter((key) => key < layer.keys).join(",") || "hide" : s.sinks });
  const heads = [["a", la], ["b", lb]].map(([side, layer]) => paths.head(kept({ ...state, a, b, sinks: "hide" }, side, layer)));
  const infos = [useAnswer(heads[0], () => getJSON(heads[0])), useAnswer(heads[1], () => getJSON(heads[1]))];
  const found = infos.every((info) => info.value?.norm_found), seen = within({ ...state, a, b }, found);
  const maps = { a: kept(seen, "a", la), b: kept(seen, "b", lb) };
  const of = (layer, d) => { const each = (all) => [all[layer.query_text], all[layer.key_text]]; return { words: each(d.texts), padding: each(d.padding) }; };
  const shared = { compact: true, view: state, setView: noteView, hover: point, cross, scale: state.scale, lock: state.lock, pick: point };
  const same = la.queries === lb.queries && la.keys === lb.keys;
  const [mine, theirs] = [of(la, data).words, of(lb, there).words];
  const differ = same && mine.flat().length === theirs.flat().length && [0, 1].some((side) => mine[side].some((word, i) => word !== theirs[side][i]));
  const own = [factorsFor(data, a, la), factorsFor(there, b, lb)];
  const [fa, fb] = same ? own.map((some) => some.filter((f) => own.every((all) => all.includes(f)))) : own; // what both have
  const pooled = [...new Set([a, b])].filter((at) => pooledIn(data, at));
  const hides = state.sinks === "hide", share = (info) => (info.fresh && typeof info.value?.hidden === "number" ? percent(info.value.hidden) : "not known");
  // Of a pooled head a file cannot leave out another's sink alone: its cells go with it.
  const leftOut = (at, d, layer, [f]) => both.flatMap((key) => (!pooledIn(d, at) || sinksOf(at, d).includes(key) ? [key]
    : Array.from({ length: f }, (_, i) => Math.floor(key / f) * f + i).filter((k) => k < layer.keys)));
  const out = [leftOut(a, data, la, fa), leftOut(b, there, lb, fb)];
  return html`<div class="tools"><${MapTools} state=${state} info=${infos.every((info) => info.value) ? { sinks: [], norm_found: found } : null} />
    ${both.length > 0 && html`<button class="chip sinks" aria-pressed=${hides} onClick=${() => setState({ sinks: hides ? "show" : "hide" })}>
      weight on ${both.length > 1 ? "keys" : "key"} ${both.join(", ")} ${hides ? "hidden in both" : "shown"}: a ${share(infos[0])}, b ${share(infos[1])}${" "}<u>${hides ? "show" : "hide"}</u></button>`}</div>
    <div class="three"><figure><figcaption>a: ${a} <small>${la.name}</small></figcaption>
        <${MapView} map=${maps.a} layer=${la} ...${of(la, data)} hidden=${out[0]} label=${`map of head ${a}`} factors=${fa} beside=${maps.b} drawn=${change(setDrawn)} ...${shared} /></figure>
      <figure><figcaption>b: ${b} <small>${lb.name}${state.rb ? `, ${legible(there.label)}` : ""}${row !== state.batch ? `, row ${row}` : ""}</small></figcaption>
        <${MapView} map=${maps.b} layer=${lb} ...${of(lb, there)} hidden=${out[1]} label=${`map of head ${b}`} factors=${fb} beside=${maps.a} ...${shared} /></figure>
      ${same ? html`<figure class="difference"><figcaption>a − b</figcaption>
        <${MapView} map=${maps.a} minus=${maps.b} factors=${fa} layer=${la} ...${of(la, data)} others=${of(lb, there).words} hidden=${[...new Set(out.flat())]} label=${`difference of heads ${a} and ${b}`} drawn=${change(setApart)} ...${shared} />
        <${DifferenceLegend} state=${seen} drawn=${apart} />
        ${differ && html`<p class="note">The two texts differ: equal places hold other words.</p>`}</figure>`
    : html`<p class="note">The two maps are of different sizes (${la.queries} × ${la.keys}, ${lb.queries} × ${lb.keys}): there is no difference to draw.</p>`}
    </div>
    ${pooled.length > 0 && html`<p class="note">${pooled.join(" and ")} ${pooled.length > 1 ? "are" : "is"} pooled in this file.</p>`}
    <${Legend} state=${seen} drawn=${drawn} />
    <table class="both"><thead><tr><th></th><th>a: ${a}</th><th>b: ${b}</th></tr></thead><tbody>${statsOf(data).map((s) => html`<tr><th scope="row">${labelOf(s)}</th>
      <td>${number(data.heads.find((h) => `${h.layer}.${h.head}` === a)?.[s])}</td><td>${number(there.heads.find((h) => `${h.layer}.${h.head}` === b)?.[s])}</td></tr>`)}</tbody></table>`;
}
