// The state of the page: all of it stands in the address, behind the #, so that an address is a view.

import { carried } from "./carried.js";

const [layer, head] = carried?.first || [0, 0];
const DEFAULTS = {
  view: "home", rec: "0", batch: 0, layer, head,
  by: "weight", scale: "linear", pool: "largest", sinks: "hide", lock: "",
  q: 0, k: 0, span: 0, // the corner of the map that is seen, and how many tokens of it; 0 is all
  pin: "", reads: "from", // a token that is held: q7, and whether we read from it or to it
  stat: "entropy", sort: "place", filter: "",
  x: "distance", y: "entropy", a: "", b: "", rb: "", tab: "text",
  cut: "", instead: "zero", // whether the head is cut, and what its output becomes
  step: "", // of a run that is played; else its last one
  theme: "", // light or dark; else as the system has it
};
const CHOICES = {
  view: ["home", "head", "compare"], by: ["weight", "norm"], scale: ["linear", "log", "uniform"],
  pool: ["largest", "mean", "sum"], sinks: ["hide", "show"], reads: ["from", "to"], sort: ["place", "most", "least"],
  tab: ["text", "names", "cut", "joins", "export"],
  cut: ["", "head"], instead: ["zero", "mean", "resample"], theme: ["", "light", "dark"],
};
const listeners = new Set();
let memory = ""; // where the address cannot be written, as inside a notebook
let state = read();
let moving = null, writing = 0; // what moves, as a view of the map, and is not in the address yet

function read() {
  const found = { ...DEFAULTS };
  for (const [key, text] of new URLSearchParams((memory || location.hash).replace(/^#/, ""))) {
    if (!(key in DEFAULTS)) continue;
    if (sensible(key, text)) found[key] = typeof DEFAULTS[key] === "number" ? Number(text) : text;
  }
  return found;
}

/** An address may be old, or of another hand: what makes no sense in it is left out. */
function sensible(key, text) {
  if (CHOICES[key]) return CHOICES[key].includes(text);
  if (key === "lock") return Number.isFinite(Number(text)) && Number(text) > 0;
  if (key === "step") return /^\d{0,15}$/.test(text);
  if (["layer", "head", "batch"].includes(key)) return /^\d{1,6}$/.test(text);
  return typeof DEFAULTS[key] !== "number" || Number.isFinite(Number(text)) && Number(text) >= 0;
}

function written(next) {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(next)) {
    if (value !== DEFAULTS[key]) {
      parts.set(key, typeof value === "number" ? String(Number(value.toFixed(2))) : value);
    }
  }
  return "#" + parts.toString();
}

export function getState() { return state; }

/** Where the map is now: kept at once, so that whatever comes next keeps it; written a moment later. */
export function noteView({ q, k, span }) { noteState({ q, k, span }); }

/** The same of anything that moves on and on. */
export function noteState(change) {
  moving = { ...moving, ...change };
  clearTimeout(writing);
  writing = setTimeout(() => setState({}), 120);
}

/** Whether something moved after the state was last written, which is then of before. */
export function isMoving() { return moving !== null; }

/** Change some of the state. A new view is a step that Back undoes; all else is not. */
export function setState(change) {
  const next = { ...state, ...moving, ...change }, moved = isMoving();
  moving = null;
  const other = ["layer", "head", "rec", "batch"].some((key) => next[key] !== state[key]);
  if (other && !change.cut) next.cut = ""; // a cut is of the head that is seen
  if (Object.keys(next).every((key) => next[key] === state[key])) {
    if (moved) { state = next; tell(); } // one of several maps came back to where the others are not
    return;
  }
  const step = ["view", "layer", "head", "rec"].some((key) => next[key] !== state[key]);
  state = next;
  const hash = written(state);
  try {
    history[step ? "pushState" : "replaceState"](null, "", location.search + hash);
  } catch {
    memory = hash;
  }
  tell();
}

export function onState(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() { for (const listener of [...listeners]) listener(state); }

const reread = () => { moving = null; state = read(); tell(); }; // what moved was of the page that is left
addEventListener("popstate", reread);
addEventListener("hashchange", reread);

/** The state as it can be shown: by norm only where W_O was found, and not × uniform, which is of weights. */
export const within = (s, found) => (s.by === "norm" && (!found || s.scale === "uniform") ? { ...s, by: "weight" } : s);

/** What tells one map from another, as the server is asked for it. */
export function mapOf(s, side = "") {
  const at = side === "b" && s.b ? s.b.split(".").map(Number)
    : side === "a" && s.a ? s.a.split(".").map(Number) : [s.layer, s.head];
  return {
    rec: side === "b" && s.rb ? s.rb : s.rec, batch: s.batch, layer: at[0], head: at[1],
    by: s.scale === "uniform" ? "uniform" : s.by, pool: s.pool, sinks: s.sinks,
  };
}
