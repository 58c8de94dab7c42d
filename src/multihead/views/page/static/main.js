// The page: a line that says what is looked at, the view that the address asks for, and the keys.

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { getState, onState, setState } from "./state.js";
import { turn, wear } from "./wearing.js";
import { getJSON, paths, standalone } from "./source.js";
import { useAnswer, usePageState } from "./hooks.js";
import { Home } from "./home.js";
import { Head } from "./head.js";
import { Compare } from "./compare.js";
import { OwnText } from "./owntext.js";
import { Help } from "./help.js";
import { ExportView } from "./exporting.js";
import { counted, legible, visible } from "./words.js";

const VIEWS = { home: Home, head: Head, compare: Compare };

function Page() {
  const state = usePageState();
  const [names, setNames] = useState(null), [trouble, setTrouble] = useState(""), [open, setOpen] = useState("");
  const { rec, batch, view } = state;
  // Asked anew each time: which texts there are to choose from changes with every text of one's own.
  const home = useAnswer(`${rec} ${batch}`, async () => ({ ...await getJSON(paths.home(rec, batch), { fresh: true }), of: { rec, batch } }));
  const there = home.fresh && !home.error; // or the names of what is not there would be asked for again and again
  useEffect(() => {
    if (!there) return undefined;
    let timer = 0, wanted = true;
    const look = async () => {
      try {
        const told = await getJSON(paths.names(rec, batch), { fresh: true });
        if (!wanted) return;
        setTrouble("");
        const same = (a, b) => ["version", "state", "share", "message"].every((key) => a[key] === b[key]) && String(a.findings) === String(b.findings);
        setNames((before) => (before && same(before, told) ? before : told));
        if (told.state === "running") timer = setTimeout(look, 1500);
      } catch (problem) { if (wanted) { setTrouble(problem.message); timer = setTimeout(look, 4000); } }
    };
    look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [rec, batch, there, view]); // in each view: one that asks for nothing else has to say too that nobody answers
  const data = home.value;
  useEffect(() => {
    if (!data) return undefined;
    const press = (event) => keys(event, data, () => setOpen("help"));
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [data]);
  if (home.error) return html`<${Trouble} message=${home.error} first=${rec !== "0" || batch ? () => setState({ rec: "0", batch: 0 }) : null} />`;
  if (!data) return html`<p class="wait">One moment …</p>`;
  const View = VIEWS[state.view] || Home, shown = { ...state, ...data.of }; // until another text is here, the one before
  document.title = state.view === "head" ? `${state.layer}.${state.head} · multihead` : "multihead";
  return html`
    <${Top} state=${state} data=${data} open=${setOpen} />
    <main><${View} key=${state.view} state=${shown} data=${data} names=${names} trouble=${trouble} /></main>
    ${open === "text" && html`<${OwnText} data=${data} close=${() => setOpen("")} />`}
    ${open === "export" && html`<${ExportView} state=${state} data=${data} close=${() => setOpen("")} />`}
    ${open === "help" && html`<${Help} close=${() => setOpen("")} />`}`;
}

function Trouble({ message, first }) {
  return html`<main class="trouble"><h1>multihead</h1><p role="alert">${message}</p>
    ${first && html`<p><button onClick=${first}>Go to the first recording</button></p>`}</main>`;
}

/** Always in sight: the model, how it was quantised, its first token, and how many there are. */
function Top({ state, data, open }) {
  const about = data.about, bos = about.bos === undefined ? "BOS not known" : about.bos ? `begins with ${about.bos_token ? visible(about.bos_token) : "BOS"}` : "no BOS";
  const of = legible(about.model || data.label);
  const cut = about.total && about.total > data.tokens ? ` of ${about.total.toLocaleString("en")}` : "";
  const padding = (name) => (data.padding[name] ? `, ${data.padding[name].length.toLocaleString("en")} of padding` : "");
  const source = data.texts.source && `source ${counted(data.texts.source.length - (data.padding.source || []).length, "tokens")}${padding("source")}`;
  const text = data.tokens ? (cut ? `${data.tokens.toLocaleString("en")}${cut} tokens` : counted(data.tokens, "tokens")) + padding("text") : source ? "" : counted(data.layers[0].queries, "places");
  const link = (view, label) => html`<a href="#view=${view}" class=${state.view === view ? "here" : ""}
    aria-current=${state.view === view ? "page" : undefined}
    onClick=${(e) => { e.preventDefault(); setState({ view }); }}>${label}</a>`;
  return html`<header>
    <a class="logo" href="#" onClick=${(e) => { e.preventDefault(); setState({ view: "home" }); }}>multihead</a>
    <nav>${link("home", "Home")}${link("head", "Head")}${link("compare", "Compare")}</nav>
    <p class="about" title=${of}>
      <b>${of}</b>
      <span>${[text, source].filter(Boolean).join("; ")}</span>
      <span>${text && !data.tokens ? "no text" : bos}</span>
      ${data.row?.[1] > 1 && html`<span>row ${data.row[0]} of ${data.row[1]}</span>`}</p>
    ${data.recordings.length > 1 && html`<label class="pick">text <select value=${state.rec} title=${legible(data.label)}
      onChange=${(e) => setState({ rec: e.target.value, batch: 0, rb: state.rb === e.target.value ? "" : state.rb })}>
      ${data.recordings.map((r) => html`<option value=${r.id}>${legible(r.label)}</option>`)}</select></label>`}
    ${data.batches > 1 && html`<label class="pick">row <select value=${state.batch}
      onChange=${(e) => setState({ batch: Number(e.target.value) })}>
      ${Array.from({ length: data.batches }, (_, i) => html`<option value=${i}>${i}</option>`)}</select></label>`}
    ${data.can_run && !standalone && html`<button onClick=${() => open("text")}>Your own text</button>`}
    <button onClick=${() => open("export")}>Export</button>
    <button class="icon" aria-label="light or dark" title="light or dark" onClick=${turn}>◐</button>
    <button class="icon" aria-label="keys" title="keys (?)" onClick=${() => open("help")}>?</button>
  </header>`;
}

/** Arrows go from head to head, with the view kept. */
function keys(event, data, help) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey && event.key.startsWith("Arrow")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.closest("[data-keys]")) return;
  if (event.key === "?") { help(); return; }
  if (event.key === "h") { setState({ view: "home" }); return; }
  if (event.key === "c") { setState({ view: "compare" }); return; }
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key], state = getState();
  if (!step || state.view !== "head") return;
  event.preventDefault();
  const at = data.layers.findIndex((l) => l.index === state.layer);
  const layer = data.layers[Math.max(0, Math.min(data.layers.length - 1, at + step[0]))];
  const head = Math.max(0, Math.min(layer.heads - 1, state.head + step[1]));
  setState({ layer: layer.index, head });
}

wear(getState().theme);
onState((state) => wear(state.theme));
addEventListener("recolour", () => render(html`<${Page} at=${Math.random()} />`, document.getElementById("page")));
render(html`<${Page} />`, document.getElementById("page"));
