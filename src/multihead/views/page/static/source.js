// Where everything comes from: the server of this page, or what a standalone file carries along.

import { carried } from "./carried.js";
import { fromHalves } from "./halves.js";

const token = new URLSearchParams(location.search).get("token") || "";
const known = new Map(); // answers by address, the latest last
const MOST = 300;

export const standalone = carried !== null;

export const ENDED = "The server does not answer: it has ended. Start multihead look again.";

/** What the network brings; the browser's own words do not say that it is Ctrl-C in the terminal. */
async function heard(coming) {
  try { return await coming; } catch (problem) { throw problem instanceof TypeError ? new Error(ENDED) : problem; }
}

async function ask(path, options = {}) {
  const answer = await heard(fetch(path, { ...options, headers: { "x-multihead-token": token, ...options.headers } }));
  if (!answer.ok) {
    let reason = `${answer.status}`;
    try { reason = (await answer.json()).error || reason; } catch { /* no JSON came */ }
    throw new Error(reason);
  }
  return answer;
}

/** A JSON answer; asked once, unless it may change. */
export async function getJSON(path, { fresh = false, signal } = {}) {
  if (carried) return carried.json(path);
  if (!fresh && known.has(path)) return known.get(path);
  const found = await heard((await ask(path, { signal })).json());
  if (!fresh) {
    known.set(path, found);
    if (known.size > MOST) known.delete(known.keys().next().value);
  }
  return found;
}

/** The cells of a tile, as numbers. */
export async function getFloats(path, signal) {
  return carried ? carried.floats(path) : fromHalves(await getBytes(path, signal));
}

export async function getBytes(path, signal) {
  if (carried) return carried.bytes(path);
  const answer = await ask(path, { signal });
  if (answer.status === 204) throw new DOMException("left", "AbortError");
  return heard(answer.arrayBuffer());
}

export async function postJSON(path, body) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body) });
  return heard(answer.json());
}

/** Post, and hear of every line of JSON as it comes; whoever aborts the signal has left, and the work ends. */
export async function postLines(path, body, hear, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await heard(reader.read()); // it may end in the middle
    const lines = (rest + (value || "")).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) hear(JSON.parse(line));
    if (done) return;
  }
}

export async function download(path, name) {
  save(await heard((await ask(path)).blob()), name);
}

/** Hand a file to the person. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function query(map) {
  const { rec, batch, by, pool, sinks } = map;
  return `rec=${rec}&batch=${batch}&by=${by}&pool=${pool}&sinks=${sinks}`;
}
export const paths = {
  home: (rec, batch) => `/home.json?rec=${rec}&batch=${batch}`,
  names: (rec, batch) => `/names.json?rec=${rec}&batch=${batch}`,
  heads: (rec, batch) => `/heads.json?rec=${rec}&batch=${batch}`,
  outputs: (rec, batch) => `/outputs.json?rec=${rec}&batch=${batch}`,
  thumbs: (rec, batch) => `/thumbs.bin?rec=${rec}&batch=${batch}`,
  head: (m) => `/head/${m.layer}/${m.head}.json?rec=${m.rec}&batch=${m.batch}${/^\d/.test(m.sinks) ? `&sinks=${m.sinks}` : ""}`,
  range: (m) => `/range/${m.layer}/${m.head}.json?${query(m)}`,
  row: (m, q) => `/row/${m.layer}/${m.head}/${q}.json?${query(m)}`,
  column: (m, k) => `/column/${m.layer}/${m.head}/${k}.json?${query(m)}`,
  cell: (m, f, r, c) => `/cell/${m.layer}/${m.head}/${f}/${r}/${c}.json?${query(m)}`,
  tile: (m, f, r, c) => `/tile/${m.layer}/${m.head}/${f}/${r}/${c}.bin?${query(m)}`,
};
