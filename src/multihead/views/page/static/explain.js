// The walk through attention, played step by step. It stands alone in one file: every number it
// shows was computed before, by the library.

import { html, render, useEffect, useLayoutEffect, useState } from "./vendor/preact.js";
import { theme } from "./colours.js";
import { useLatest } from "./hooks.js";
import { shortened } from "./words.js";
import { Tip, headColour, headInk, hideTip, room } from "./explain-grids.js";
import { FIGURES } from "./explain-steps.js";

const walk = JSON.parse(document.getElementById("carried").textContent);
const LAST = walk.steps.length - 1;
const SPEEDS = [["0.5", "slow"], ["1", "usual"], ["2", "fast"]];
const beatsOf = (step) => FIGURES[walk.steps[step].figure][1](walk);
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** What is said of a word, where it is not the same of all. */
const said = (told, follow) => (told && told.each ? told.each[follow] : told);

/** How long a step is played, in ms: as long as it takes to read it, and to look. */
function reading(step, follow) {
  const told = walk.steps[step], words = [said(told.words, follow), ...(said(told.notes, follow) || [])].join(" ").split(" ").length;
  return 3500 + 240 * words;
}

function Page() {
  const [at, setAt] = useState({ step: 0, beat: beatsOf(0) }), [playing, setPlaying] = useState(false), [speed, setSpeed] = useState("1");
  const [follow, setFollow] = useState(walk.follow), [head, setHead] = useState(walk.head), [, redraw] = useState(0);
  const { step, beat } = at, beats = beatsOf(step), told = walk.steps[step];
  const enter = (next, played = playing) => {
    const to = Math.max(0, Math.min(LAST, next));
    setAt({ step: to, beat: played && !still() ? 0 : beatsOf(to) });
    hideTip();
  };
  const play = () => {
    if (!playing && step === LAST && beat >= beats) enter(0, true);
    setPlaying(!playing);
  };
  const pick = (word, which = head) => { setFollow(word); setHead(which); };
  const whole = reading(step, follow) / Number(speed), pause = beat < beats ? (0.55 * whole) / beats : 0.45 * whole;
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setTimeout(() => {
      if (beat < beats) setAt({ step, beat: beat + 1 });
      else if (step < LAST) enter(step + 1);
      else setPlaying(false);
    }, pause);
    return () => clearTimeout(timer);
  }, [playing, step, beat, speed, follow]);
  const press = useLatest((event) => keys(event, { play, enter, step }));
  useEffect(() => {
    const again = () => redraw(Math.random()), scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("keydown", press);
    addEventListener("resize", again);
    scheme.addEventListener("change", again);
    return () => { removeEventListener("keydown", press); removeEventListener("resize", again); scheme.removeEventListener("change", again); };
  }, []);
  useLayoutEffect(() => { if (measure()) redraw(Math.random()); });
  const [Figure] = FIGURES[told.figure];
  // A step that is left halfway is shown whole: what was to come is not hidden from who stopped.
  const seen = playing ? beat : beats, left = walk.cut.filter((one) => !said(told.words, follow).includes(one));
  return html`<${Top} turn=${() => { turn(); redraw(Math.random()); }} />
    <${Chosen} follow=${follow} head=${head} pick=${pick} />
    <div class="walk"><${Steps} step=${step} enter=${enter} />
      <main><${Told} told=${told} follow=${follow} head=${head} live=${!playing} />
        <div class="figure" key=${told.figure}><${Figure} walk=${walk} follow=${follow} head=${head} beat=${seen} beats=${beats} pick=${pick} /></div>
        ${(said(told.notes, follow) || []).map((note) => html`<p class="said">${note}</p>`)}
        ${left.length > 0 && html`<p class="note">${left.join(" ")}</p>`}
        ${told.rungs && html`<p class="note rungs">ladder: ${told.rungs}</p>`}</main></div>
    <${Controls} ...${{ step, playing, play, enter, speed, setSpeed }} share=${(step + seen / beats) / (LAST + 1)} />
    <${Tip} />`;
}

/** How much room there is for a figure; whether that has changed. */
function measure() {
  const main = document.querySelector("main"), around = [...main.children].filter((one) => one.className !== "figure");
  const high = main.clientHeight - 42 - around.reduce((sum, one) => sum + one.offsetHeight + 4, 0), wide = main.clientWidth - 60;
  const changed = room.high !== high || room.wide !== wide;
  Object.assign(room, { high, wide });
  return changed;
}

function Top({ turn }) {
  return html`<header><span class="logo">multihead</span><span>attention, step by step</span><p class="about"><span>${walk.about}</span></p>
    <button class="icon" aria-label="light or dark" title="light or dark" onClick=${turn}>◐</button></header>`;
}

function turn() {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
}

/** The word and the head that are followed; any other can be. */
function Chosen({ follow, head, pick }) {
  return html`<div class="chosen"><div role="group" aria-label="the word to follow" class="sentence-of">
      ${walk.words.map((word, i) => html`<button class="word" aria-pressed=${i === follow} title=${word} onClick=${(e) => { pick(i); letGo(e); }}>${shortened(word, 20)}</button>`)}
      ${walk.all_words > walk.words.length && html`<span class="note">…</span>`}</div>
    <div role="group" aria-label="the head to follow" class="head-of">
      ${walk.heads.map((h, at) => html`<button class="head-chip" aria-pressed=${at === head} style=${`--head:${headColour(h)}`} onClick=${(e) => { pick(follow, at); letGo(e); }}>head ${h}</button>`)}</div></div>`;
}

function Steps({ step, enter }) {
  return html`<nav class="steps" aria-label="steps"><ol>${walk.steps.map((one, at) => html`<li><button aria-current=${at === step ? "step" : undefined}
    class=${at < step ? "past" : ""} onClick=${(e) => { enter(at); letGo(e); }}><i>${one.number || "·"}</i>${one.name}</button></li>`)}</ol></nav>`;
}

/** The sentences of the terminal, with the word and the head that are followed. */
function Told({ told, follow, head, live }) {
  const marks = { "\ue000": html`<b class="followed-word">${walk.names[follow]}</b>`,
    "\ue001": html`<b style=${`color:${headInk(walk.heads[head])}`}>head ${walk.heads[head]}</b>` };
  const parts = said(told.words, follow).split(/([\ue000\ue001])/).map((part) => marks[part] || part);
  return html`<div class="told" aria-live=${live ? "polite" : "off"}><div class="title"><h1>${told.number} ${told.name}</h1><code class="shapes">${told.shapes}</code></div><p>${parts}</p></div>`;
}

function Controls({ step, playing, play, enter, speed, setSpeed, share }) {
  const button = (label, keys, call, mark, off) => html`<button class="control" aria-label=${label} title=${`${label} (${keys})`} disabled=${off} onClick=${(e) => { call(); letGo(e); }}>${mark}</button>`;
  return html`<footer><div class="line" role="progressbar" aria-label="the walk" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(100 * share)}><span style=${`width:${100 * share}%`}></span></div>
    <div class="controls">${button("back", "←", () => enter(step - 1), "‹", step === 0)}
      <button class="control main" aria-label=${playing ? "pause" : "play"} title=${playing ? "pause (space)" : "play (space)"} onClick=${(e) => { play(); letGo(e); }}>${playing ? "❚❚" : "▶"}</button>
      ${button("forward", "→", () => enter(step + 1), "›", step === LAST)}
      <span class="note" aria-hidden="true">${step + 1} / ${LAST + 1}</span>
      <label class="note">speed <select value=${speed} onChange=${(e) => setSpeed(e.target.value)}>${SPEEDS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
      <span class="note keys-of"><kbd>space</kbd> play <kbd>←</kbd> <kbd>→</kbd> step · point at a cell for its number · click a word, a row or a head to follow it</span></div></footer>`;
}

/** After a click the keys belong to the page again; who came by Tab stays where he is. */
function letGo(event) {
  if (event.detail > 0) event.currentTarget.blur();
}

function keys(event, { play, enter, step }) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  if (event.key === " " && event.target.tagName === "BUTTON") return; // it presses the button
  const does = { " ": play, ArrowRight: () => enter(step + 1), ArrowLeft: () => enter(step - 1), Home: () => enter(0), End: () => enter(LAST) }[event.key];
  if (!does) return;
  event.preventDefault();
  does();
}

render(html`<${Page} />`, document.getElementById("page"));
