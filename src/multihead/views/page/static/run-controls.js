// The line along which a run is played, and its keys.

import { html, useEffect, useState } from "./vendor/preact.js";
import { Dialog } from "./dialog.js";
import { useLatest } from "./hooks.js";

const SPEEDS = [["0.25", "slow"], ["1", "usual"], ["4", "fast"]];
const WHOLE = 12000; // ms in which a run is played at the usual speed, if its samples are many

export function Controls({ data, go, playing, setPlaying }) {
  const { run, index } = data, last = run.steps.length - 1, [speed, setSpeed] = useState("1");
  const next = useLatest(() => (index < last ? go(index + 1) : setPlaying(false)));
  const pause = Math.max(40, Math.min(600, WHOLE / run.steps.length)) / Number(speed);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(next, pause);
    return () => clearInterval(timer);
  }, [playing, pause]);
  useEffect(() => { if (playing && index === last) go(0); }, [playing]); // from the end it begins anew
  const button = (label, keys, to, mark) => html`<button class="control" aria-label=${label} title=${`${label} (${keys})`} disabled=${to < 0 || to > last || to === index} onClick=${(e) => { go(to); letGo(e); }}>${mark}</button>`;
  return html`<footer class="played">
    <input type="range" aria-label="step" min="0" max=${last} value=${index} aria-valuetext=${`step ${run.steps[index]}`} onInput=${(e) => go(Number(e.target.value))} />
    <div class="controls">${button("first", "Home", 0, "«")}${button("back", "←", index - 1, "‹")}
      <button class="control main" aria-label=${playing ? "pause" : "play"} title=${`${playing ? "pause" : "play"} (space)`} onClick=${(e) => { setPlaying(!playing); letGo(e); }}>${playing ? "❚❚" : "▶"}</button>
      ${button("forward", "→", index + 1, "›")}${button("last", "End", last, "»")}
      <b class="step-of" aria-live=${playing ? "off" : "polite"}>step ${run.steps[index].toLocaleString("en")}</b>
      <span class="note" aria-hidden="true">sample ${index + 1} of ${last + 1}</span>
      <label class="note">speed <select value=${speed} onChange=${(e) => setSpeed(e.target.value)}>${SPEEDS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
      <span class="note keys-of"><kbd>space</kbd> play <kbd>←</kbd> <kbd>→</kbd> step <kbd>W</kbd> <kbd>A</kbd> <kbd>S</kbd> <kbd>D</kbd> another head</span></div></footer>`;
}

/** After a click the keys belong to the page again; who came by Tab stays where he is. */
function letGo(event) {
  if (event.detail > 0) event.currentTarget.blur();
}

/** Time goes by the arrows, heads by W A S D. */
export function keysOf(event, { data, go, pick, play, reload, help }) {
  const { target, key } = event, slider = target.type === "range";
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("[data-keys]")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !(slider && !/^(Arrow|Home|End|Page)/.test(key))) return; // a slider has arrows of its own
  if (key === " " && target.tagName === "BUTTON") return; // it presses the button
  const { run, index, layer, head } = data, last = run.steps.length - 1, leap = Math.max(1, Math.round(last / 10));
  const hop = (down, across) => {
    const to = Math.max(0, Math.min(run.layers.length - 1, layer + down));
    pick(to, Math.max(0, Math.min(run.layers[to].heads - 1, head + across)));
  };
  const does = {
    " ": play, ArrowRight: () => go(index + 1), ArrowLeft: () => go(index - 1), PageDown: () => go(index + leap), PageUp: () => go(index - leap),
    Home: () => go(0), End: () => go(last), w: () => hop(-1, 0), s: () => hop(1, 0), a: () => hop(0, -1), d: () => hop(0, 1), r: reload, "?": help,
  }[key];
  if (!does) return;
  event.preventDefault();
  does();
}

const KEYS = [
  ["space", "play, pause"], ["← →", "one sample back, forward"], ["Page ↑ ↓", "a tenth of the run"], ["Home End", "the first, the last"],
  ["W A S D", "the head above, left, below, right"], ["r", "read the folder again"], ["?", "these keys"],
];

export function RunHelp({ close }) {
  return html`<${Dialog} title="Keys" close=${close}>
    <table class="keys"><tbody>${KEYS.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p>A click on a curve goes to that step, on a warning to its step and head. At the last step the page goes on as the run is written.</p>
  </${Dialog}>`;
}
