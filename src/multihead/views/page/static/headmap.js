// The map as a part of a view: it follows the state, and tells of what is pointed at.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { getJSON, paths } from "./source.js";
import { isMoving } from "./state.js";
import { useAnswer, useLatest, useSoon } from "./hooks.js";
import { HeadMap } from "./map.js";
import { boxAfter, boxAt, boxSaid, cornersOf, viewWith } from "./box.js";
import { sentence } from "./sentence.js";

const PAN = { w: [-0.15, 0], s: [0.15, 0], a: [0, -0.15], d: [0, 0.15] };

/** `minus` is a map that is taken away from this one, and `others` are its words; `beside` one that shares its range; `begin` says whether a box may be drawn. */
export function MapView({ map, minus, beside, layer, words, others, padding, hidden, scale, lock, view, setView, hover, pick, cross, held, lassoing, lasso, begin, drawn, label, compact, factors }) {
  const canvas = useRef(), drawing = useRef(), [said, setSaid] = useState("");
  const range = useAnswer(paths.range(map), () => getJSON(paths.range(map)));
  const second = minus || beside;
  const other = useAnswer(second ? paths.range(second) : null, () => getJSON(paths.range(second)));
  const hear = useLatest((what, ...args) => {
    if (what === "view") setView(args[0]);
    if (what === "hover") { hover?.(args[0]); tell(args[0]); }
    if (what === "pick") pickAt(args[0]);
    if (what === "lasso") { box.current = null; lasso?.(args[0]); }
    if (what === "drawn") {
      const here = pointed.current && drawing.current.valueAt(pointed.current) !== undefined, told = `${args[0].factor} ${here}`;
      if (factor.current !== told && pointed.current) describe(); // the same place, closer by, or its tile is here now
      factor.current = told;
      drawn?.(args[0]);
    }
  });
  const most = (factor) => {
    if (lock) return Number(lock);
    const tops = [range, second && other].filter(Boolean).map((r) => (r.fresh && r.value ? r.value[factor]?.[map.pool] ?? 0 : null));
    return tops.includes(null) ? null : Math.max(...tops);
  };
  const box = useRef(null); // a lasso that is made by keys, until it is taken
  const turn = useRef(0), pointed = useRef(null), factor = useRef("");
  const describe = useSoon(async () => {
    const mine = ++turn.current, place = pointed.current, m = drawing.current;
    const inside = place && place.query < layer.queries && place.key < layer.keys;
    const found = inside ? await sentence(map, minus, layer, words, { ...place, factor: m.factor, value: m.valueAt(place) }, others) : "";
    if (mine === turn.current) setSaid(found); // an answer that comes late is of what was left
  }, 50);
  const tell = (place) => { pointed.current = place; describe(); };
  const say = (words) => { describe.drop(); turn.current++; pointed.current = null; setSaid(words); }; // and of no place, not of one that was pointed at before
  const pickAt = async ({ factor: f, query, key }) => {
    let link = { query, key };
    if (f > 1 && !minus) {
      const found = await getJSON(paths.cell(map, f, Math.floor(query / f), Math.floor(key / f)));
      if (found.value !== null && found.query === null) { drawing.current.near(query, key); tell(link); return; } // a cell, and no link to hold
      if (found.value !== null) {
        link = { query: found.query, key: found.key };
        drawing.current.land(link.query, link.key);
      }
    }
    drawing.current.setCross(link); // keys come here too, and no pointer says where it is
    tell(link); // and not of where the pointer was before the map moved under it
    pick?.(link);
  };
  useEffect(() => {
    const made = new HeadMap(canvas.current, new Proxy({}, { get: (_, what) => (...args) => hear(what, ...args) }), compact ? { left: 66, top: 50, right: 0 } : undefined);
    drawing.current = made;
    canvas.current.headMap = made; // for whoever exports it, and for tests
    const recolour = () => made.draw();
    addEventListener("recolour", recolour);
    return () => { removeEventListener("recolour", recolour); made.close(); };
  }, []);
  useEffect(() => {
    const m = drawing.current;
    m.lassoing = Boolean(lassoing);
    m.show({ map, minus, layer, words, padding, hidden, held, scale: minus ? "difference" : scale, most, factors });
  });
  useEffect(() => { if (!lassoing) { drawing.current.lasso = null; box.current = null; drawing.current.draw(); } }, [lassoing]); // not at each drawing: a key may have begun a box since
  useEffect(() => {
    if (isMoving()) return; // the map is ahead of what was written, and is not to be called back
    const m = drawing.current, v = m.view;
    const whole = Math.max(layer.queries, layer.keys), span = view.span > 0 ? Math.min(view.span, whole) : whole;
    if (Math.abs(v.span - span) > 0.02 || Math.abs(v.q - view.q) > 0.02 || Math.abs(v.k - view.k) > 0.02) m.setView(view);
  }, [view, layer]);
  useEffect(() => { if (cross !== undefined) { drawing.current.setCross(cross); tell(cross); } }, [cross]);
  useEffect(() => { if (pointed.current) describe(); }, [paths.range(map), minus && paths.range(minus)]); // another head, the same place
  /** The keys of a box: arrows, Enter to take it, Escape to drop it; whether this was one of them. */
  const boxed = (e, m) => {
    const next = e.key === "l" || e.key === "L" ? begin?.(true) && boxAt(m) : box.current && boxAfter(box.current, e, m);
    if (next) {
      box.current = next;
      m.canvas.focus(); // arrows are the box's own from here on, and not the heads'
      m.lasso = { drawing: false, points: cornersOf(next) };
      m.setView(viewWith(next, m.view)); setView(m.view);
      say(`Box: ${boxSaid(next, words)}. Enter takes it, Escape drops it.`);
    } else if (box.current && (e.key === "Enter" || e.key === "Escape")) {
      const taken = e.key === "Enter" ? box.current : null;
      say(taken ? `Taken: ${boxSaid(taken, words)}.` : "");
      if (taken) lasso(cornersOf(taken));
      else begin(false);
      box.current = null;
    } else return false;
    e.stopPropagation();
    return true;
  };
  const keys = (e) => {
    const m = drawing.current;
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
    if (boxed(e, m)) { e.preventDefault(); return; }
    if (PAN[e.key]) m.pan(...PAN[e.key]);
    else if (e.key === "+" || e.key === "=") m.zoomBy(1.5);
    else if (e.key === "-") m.zoomBy(1 / 1.5);
    else if (e.key === "0") { m.setView({ q: 0, k: 0, span: 0 }); setView({ q: 0, k: 0, span: 0 }); }
    else if (e.key === "Enter" && !pressable(e.target)) strongest(m, pickAt);
    else return;
    e.preventDefault();
  };
  const everywhere = useLatest((e) => { if (e.target !== canvas.current && !typing(e.target)) keys(e); });
  useEffect(() => {
    if (compact) return undefined; // there are several: the one that has the focus
    addEventListener("keydown", everywhere);
    return () => removeEventListener("keydown", everywhere);
  }, []);
  const trouble = range.error || other.error;
  return html`<div class="mapbox"><div class="canvas">
    <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${label}. W A S D move, + and − zoom, Enter goes to the strongest link in view${begin ? ", L begins a box of links to cut" : ""}.`} onKeyDown=${keys}></canvas></div>
    ${trouble && html`<p class="error over" role="alert">${trouble}</p>`}
    <p class="pointed" aria-live="polite" title=${said}>${said}</p></div>`;
}

const typing = (target) => /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.closest?.("[data-keys], dialog");

const pressable = (target) => target.closest?.("button, a, [role=button]"); // Enter is theirs

/** Where the cell in view is that says most: of a difference, whichever of the two has more. */
function strongest(m, go) {
  const f = m.factor, { q, k, span } = m.view, { queries, keys } = m.shown.layer;
  let best = null;
  for (let i = Math.max(0, Math.floor(q / f)); i * f < Math.min(queries, q + span); i++) {
    for (let j = Math.max(0, Math.floor(k / f)); j * f < Math.min(keys, k + span); j++) {
      const value = m.valueAt({ query: i * f, key: j * f });
      if (value !== undefined && value === value && (!best || Math.abs(value) > Math.abs(best.value))) best = { value, query: i * f, key: j * f };
    }
  }
  if (best) go({ ...best, factor: f });
}
