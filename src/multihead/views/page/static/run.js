// A training run, played: every head by a statistic at one step, the loss, warnings, and one head's map.

import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { getState, noteState, onState, setState } from "./state.js";
import { ENDED, getJSON, standalone } from "./source.js";
import { useLatest, usePageState } from "./hooks.js";
import { turn, wear } from "./wearing.js";
import { RunGrid, Warnings } from "./run-grid.js";
import { Curve } from "./run-curve.js";
import { HeadMap } from "./run-map.js";
import { Controls, RunHelp, keysOf } from "./run-controls.js";
import { labelOf } from "./run-words.js";
import { counted, number } from "./words.js";

const POLL = 2000; // ms from one look at the folder to the next

function Page() {
  const state = usePageState(), [run, setRun] = useState(null), [trouble, setTrouble] = useState("");
  const [moved, setMoved] = useState(null), [playing, setPlaying] = useState(false), [help, setHelp] = useState(false);
  const version = useRef("");
  const reload = useLatest(async () => {
    try {
      const told = await getJSON("/run.json", { fresh: true });
      version.current = told.version;
      setRun(told);
      setTrouble("");
    } catch (error) { setTrouble(error.message); }
  });
  useEffect(() => { reload(); }, []);
  useEffect(() => onState(() => setMoved(null)), []); // the address says it now
  useFollow(version, reload, setTrouble);
  const data = run && shownOf(run, state, moved);
  const go = (index) => {
    const to = Math.max(0, Math.min(run.steps.length - 1, index)), step = to === run.steps.length - 1 ? "" : String(run.steps[to]);
    setMoved(step); // at once; the address a moment later
    noteState({ step });
  };
  const goTo = (step) => go(nearest(run.steps, step));
  const pick = (layer, head) => setState({ layer, head });
  const press = useLatest((event) => data && keysOf(event, { data, go, pick, play: () => setPlaying(!playing), reload, help: () => setHelp(!help) }));
  useEffect(() => {
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (!run) return trouble ? html`<main class="trouble"><h1>multihead</h1><p role="alert">${trouble}</p><p><button onClick=${reload}>Try again</button></p></main>`
    : html`<p class="wait">One moment …</p>`;
  document.title = `${run.name} · multihead`;
  const { index, stat, layer, head } = data, own = run.statistics[stat];
  const marks = run.warnings.map((w) => w.step);
  return html`
    <${Top} run=${run} trouble=${trouble} reload=${reload} help=${() => setHelp(true)} />
    <main class="run">
      <section class="every" aria-label="every head"><${RunGrid} data=${data} pick=${pick} />
        <${Warnings} data=${data} goTo=${goTo} pick=${pick} /></section>
      <section class="one">
        <div class="curves">
          <${Curve} label="loss" at=${run.steps[index]} pick=${goTo} marks=${marks} series=${lossesOf(run)} />
          <${Curve} label=${`${labelOf(stat)}, head ${layer}.${head}`} at=${run.steps[index]} pick=${goTo} marks=${[]}
            series=${[{ name: stat, points: run.steps.map((step, i) => [step, own?.[i]?.[layer]?.[head] ?? null]) }]} /></div>
        <${HeadMap} data=${data} goTo=${goTo} /></section>
    </main>
    <${Controls} data=${data} go=${go} playing=${playing} setPlaying=${setPlaying} />
    ${help && html`<${RunHelp} close=${() => setHelp(false)} />`}`;
}

/** A run that is still written is read again as it grows; a server that has ended is said once. */
function useFollow(version, reload, setTrouble) {
  useEffect(() => {
    if (standalone) return undefined;
    let timer = 0, wanted = true;
    const look = async () => {
      try {
        const told = document.hidden ? null : await getJSON("/version.json", { fresh: true });
        if (!wanted) return;
        if (told && version.current && told.version !== version.current) await reload();
        timer = setTimeout(look, POLL);
      } catch (error) {
        if (!wanted) return;
        if (error.message === ENDED) setTrouble(ENDED);
        else timer = setTimeout(look, POLL); // a file that is being moved is there the next time
      }
    };
    timer = setTimeout(look, POLL);
    return () => { wanted = false; clearTimeout(timer); };
  }, []);
}

/** What is shown of a run, whatever the address asks for: its nearest step, a statistic and a head that are there. */
function shownOf(run, state, moved) {
  const wanted = moved ?? state.step, stats = Object.keys(run.statistics), last = run.steps.length - 1;
  const layer = Math.min(state.layer, run.layers.length - 1);
  return {
    run, stats, layer, head: Math.min(state.head, run.layers[layer].heads - 1), pool: state.pool === "mean" ? "mean" : "largest",
    stat: stats.includes(state.stat) ? state.stat : stats[0], index: wanted === "" ? last : nearest(run.steps, Number(wanted)),
  };
}

function nearest(steps, step) {
  let best = 0;
  for (let i = 1; i < steps.length; i++) if (Math.abs(steps[i] - step) < Math.abs(steps[best] - step)) best = i;
  return best;
}

/** The loss of each sample, and what was kept between samples. */
function lossesOf(run) {
  const own = { name: "at the samples", points: run.steps.map((step, i) => [step, run.loss[i]]) };
  return [...Object.entries(run.losses).map(([name, points]) => ({ name, points })), own].filter((s) => s.points.some(([, v]) => v !== null));
}

function Top({ run, trouble, reload, help }) {
  const heads = run.layers.reduce((sum, l) => sum + l.heads, 0);
  return html`<header><span class="logo">multihead</span>
    <p class="about" title=${run.name}><b>${run.name}</b><span>${counted(run.steps.length, "samples")}</span>
      <span>steps ${number(run.steps[0])} to ${number(run.steps.at(-1))}</span><span>${counted(run.layers.length, "layers")}, ${counted(heads, "heads")}</span></p>
    ${run.notes.length > 0 && html`<span class="note said" role="note" title=${run.notes.join("\n")}>${run.notes.join("; ")}</span>`}
    ${trouble && html`<span class="error" role="alert">${trouble}</span>`}
    ${!standalone && html`<button onClick=${reload} title="read the folder again (r)">Reload</button>`}
    <button class="icon" aria-label="light or dark" title="light or dark" onClick=${turn}>◐</button>
    <button class="icon" aria-label="keys" title="keys (?)" onClick=${help}>?</button></header>`;
}

wear(getState().theme);
onState((state) => wear(state.theme));
addEventListener("recolour", () => render(html`<${Page} at=${Math.random()} />`, document.getElementById("page")));
render(html`<${Page} />`, document.getElementById("page"));
