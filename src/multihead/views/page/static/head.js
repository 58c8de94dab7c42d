// One head: its map, the text beside it, its names, what a cut does, and how it joins the others.

import { html, useEffect, useState } from "./vendor/preact.js";
import { mapOf, setState, within, noteView } from "./state.js";
import { getJSON, paths, standalone } from "./source.js";
import { useAnswer, useSoon } from "./hooks.js";
import { factorsFor, pooledIn } from "./cells.js";
import { MapView } from "./headmap.js";
import { Legend, MapTools } from "./legend.js";
import { Reading } from "./reading.js";
import { Names } from "./names.js";
import { Surgery } from "./surgery.js";
import { Joins } from "./joins.js";
import { Exports } from "./exporting.js";
import { markOf, namesByHead } from "./marks.js";
import { number } from "./words.js";

const TABS = { text: "Text", names: "Names", cut: "Cut and see", joins: "Joins", export: "Export" };

export function Head({ state, data, names }) {
  const layer = data.layers.find((l) => l.index === state.layer) || data.layers[0];
  const head = Math.min(state.head, layer.heads - 1);
  const wrong = layer.index !== state.layer || head !== state.head;
  const [words, padding] = [data.texts, data.padding].map((all) => [all[layer.query_text], all[layer.key_text]]);
  const path = paths.head({ ...mapOf(state), layer: layer.index, head });
  const info = useAnswer(path, () => getJSON(path));
  const seen = within(state, info.value?.norm_found), map = { ...mapOf(seen), layer: layer.index, head };
  const [hovered, setHovered] = useState(null), [drawn, setDrawn] = useState({ factor: 1, most: null });
  const [lassoing, setLassoing] = useState(false), [lasso, setLasso] = useState(null), [cut, setCut] = useState(null);
  const pin = /^q(\d+)$/.exec(state.pin);
  const pinned = pin && Number(pin[1]) < words[state.reads === "to" ? 1 : 0].length ? Number(pin[1]) : null;
  useEffect(() => { setLasso(null); setCut(null); setLassoing(false); }, [state.rec, state.batch, layer.index, head]);
  useEffect(() => {
    const escape = (e) => { if (e.key === "Escape") { setState({ pin: "" }); setLassoing(false); setLasso(null); } };
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, []);
  const begin = (on) => { // a lasso by keys: beside the map stands what it is for, or why it cannot be
    const able = on && !standalone && data.can_cut;
    if (on) setState({ tab: "cut" });
    setLassoing(able); setLasso(null);
    return able;
  };
  const hover = useSoon((place) => setHovered(place), 60);
  if (!layer.maps) return html`<p class="error">This recording has statistics alone (keep_qk=False): there are no maps to look at.</p>`;
  const own = namesByHead(names).get(`${layer.index}.${head}`) || [];
  const told = info.fresh ? info.value : null;
  const hidden = told?.sinks || [];
  const factors = factorsFor(data, `${layer.index}.${head}`, layer), pooled = pooledIn(data, `${layer.index}.${head}`) ? factors[0] : 0;
  return html`<div class="head">
    <section class="left">
      <div class="title"><h1>${layer.index}.${head}</h1>
        <p><span class="path">${layer.name}</span> ${own.filter((n, i) => own.findIndex((m) => m.pattern === n.pattern) === i).map((n) => html`<span class="chip" title=${`${n.where}: ${number(n.score, 2)}`}>${markOf(n)} ${n.pattern}</span>`)}</p>
        <span class="hops">${hop("↑", -1, 0, data, layer, head)}${hop("↓", 1, 0, data, layer, head)}${hop("←", 0, -1, data, layer, head)}${hop("→", 0, 1, data, layer, head)}</span></div>
      ${wrong && html`<p class="error" role="status">There is no head ${state.layer}.${state.head} here; this is ${layer.index}.${head}.</p>`}
      <${MapTools} state=${state} info=${told} drawn=${drawn} />
      <${MapView} map=${map} layer=${layer} words=${words} padding=${padding} hidden=${hidden} scale=${state.scale} lock=${state.lock}
        view=${state} setView=${noteView} label=${`map of head ${layer.index}.${head}`}
        hover=${hover} drawn=${(d) => (d.factor !== drawn.factor || d.most !== drawn.most || d.failed !== drawn.failed) && setDrawn(d)}
        pick=${(place) => setState({ pin: `q${place.query}`, reads: "from" })} lassoing=${lassoing} lasso=${setLasso} begin=${begin} factors=${factors}
        held=${pinned === null ? null : { place: pinned, from: state.reads !== "to" }} />
      ${pooled > 0 && html`<p class="note">${pooled > 1 ? `Pooled in this file: the largest of ${pooled}×${pooled} weights.` : "Rounded in this file: every weight to three digits."} Exact in it: ${data.exact.join(", ")}.</p>`}
      <${Legend} state=${seen} drawn=${drawn} />
    </section>
    <section class="right">
      <div class="tabs" role="tablist">${Object.entries(TABS).map(([tab, label]) => html`<button role="tab"
        aria-selected=${state.tab === tab} onClick=${() => setState({ tab })}>${label}</button>`)}</div>
      <div class="panel" role="tabpanel">
        ${state.tab === "names" ? html`<${Names} own=${own} names=${names} layer=${layer.index} head=${head} />`
    : state.tab === "cut" ? html`<${Surgery} state=${state} data=${data} layer=${layer} head=${head} words=${words[0]} lassoing=${lassoing}
          setLassoing=${setLassoing} lasso=${lasso} cut=${cut} setCut=${setCut} />`
      : state.tab === "joins" ? html`<${Joins} state=${state} data=${data} info=${told} layer=${layer} head=${head} />`
        : state.tab === "export" ? html`<${Exports} state=${state} layer=${layer} head=${head} />`
          : html`<${Reading} state=${seen} map=${map} layer=${layer} words=${words} padding=${padding} info=${told} pinned=${pinned} hovered=${hovered} point=${setHovered} />`}
      </div>
    </section></div>`;
}

function hop(sign, down, right, data, layer, head) {
  const at = data.layers.indexOf(layer) + down, next = data.layers[at], h = head + right;
  const there = next && h >= 0 && (right === 0 || h < next.heads);
  const go = () => setState({ layer: next.index, head: Math.min(h, next.heads - 1) });
  const says = down ? (down > 0 ? "next layer" : "layer before") : right > 0 ? "next head" : "head before";
  return html`<button class="icon" aria-label=${says} title=${says} disabled=${!there} onClick=${go}>${sign}</button>`;
}
