// A run in a file of its own answers from itself: all numbers, and the maps that it carries.

import { fromHalves } from "./halves.js";

const file = JSON.parse(document.getElementById("carried").textContent);

function bytes(text) {
  const raw = atob(text), made = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
  return made.buffer;
}

export const carried = {
  json: async () => file.run,
  /** /map/STEP/LAYER/HEAD.bin?pool=…: one head of what is kept a layer at a time. */
  floats: async (path) => {
    const url = new URL(path, "http://file"), [step, layer, head] = url.pathname.split("/").slice(2).map((part) => Number.parseInt(part, 10));
    const found = file.maps[`${step}/${url.searchParams.get("pool")}/${layer}`];
    if (!found) throw new Error(`this file carries no map of layer ${layer} at step ${step}.`);
    const heads = fromHalves(bytes(found)), each = heads.length / file.run.layers[layer].heads;
    return heads.slice(head * each, (head + 1) * each);
  },
};
