// Cut and see: this head, or the links inside a lasso; what every word costs before and after.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { postJSON, standalone } from "./source.js";
import { setState } from "./state.js";
import { Reader } from "./reader.js";
import { Strip } from "./strips.js";
import { Next } from "./reading.js";
import { named, number } from "./words.js";

const INSTEAD = { zero: "nothing", mean: "its mean", resample: "that of another row" };

export function Surgery({ state, data, layer, head, words, lassoing, setLassoing, lasso, cut, setCut }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(""), turn = useRef(0);
  const by = state.instead, able = !standalone && data.can_cut;
  const place = `${state.rec} ${state.batch} ${layer.index}.${head}`, whole = `${place} ${by}`;
  useEffect(() => () => { turn.current++; setBusy(false); setError(""); }, [place]); // what still runs is of another head
  useEffect(() => { if (able && state.cut && cut?.of !== whole) run(null); }, [able, state.cut, whole]); // as the address says
  if (!able) return html`<p>To cut, the model must be at hand: this is a recording alone. Start <code>multihead look</code> with its model.</p>`;
  async function run(links) {
    const mine = ++turn.current;
    setBusy(true); setError("");
    try {
      const seen = await postJSON("/cut.json", { rec: state.rec, batch: state.batch, heads: [[layer.index, head]], lasso: links, by });
      if (mine !== turn.current) return;
      setCut({ ...seen, of: links ? "" : whole, what: links ? `the links inside the lasso of ${layer.index}.${head}` : `head ${layer.index}.${head} (${INSTEAD[by]} in its place)` });
    } catch (problem) { if (mine === turn.current) setError(problem.message); }
    if (mine === turn.current) setBusy(false);
  }
  const cutHead = () => (state.cut ? run(null) : setState({ cut: "head" }));
  const cutLinks = () => { run(lasso); setState({ cut: "" }); }; // a lasso is not kept in the address
  const worse = cut && cut.loss.map((v, i) => (v === null || !data.loss || data.loss[i] === null ? 0 : v - data.loss[i]));
  const pin = /^q(\d+)$/.exec(state.pin), at = pin ? Number(pin[1]) : null;
  const costliest = worse && worse.map((v, i) => [v, i]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  return html`<div class="tools">
      <button class="main" disabled=${busy} onClick=${cutHead}>Cut this head</button>
      <label>its output becomes <select value=${by} onChange=${(e) => setState({ instead: e.target.value })}>
        ${Object.entries(INSTEAD).map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></label>
      <button aria-pressed=${lassoing} onClick=${() => setLassoing(!lassoing)}>${lassoing ? "Draw around links on the map" : "Lasso links"}</button>
      <button disabled=${busy || !lasso} onClick=${cutLinks}>Cut the links inside</button></div>
    ${lassoing && !lasso && html`<p class="note">With the pointer, or by keys: <kbd>L</kbd> begins a box on the map, arrows move it, <kbd>Shift</kbd> with arrows makes it larger or smaller, <kbd>Enter</kbd> takes it.</p>`}
    ${busy && html`<p role="status">Running the model …</p>`}${error && html`<p class="error" role="alert">${error}</p>`}
    ${!cut && !busy && html`<p class="note">The model runs on the same text again, once with the cut. A cut link's weight goes to the rest of its row.</p>`}
    ${cut && html`<p class="sentence" role="status">Without ${cut.what} a token costs <b>${number(cut.mean)}</b> nats instead of ${number(cut.before)}:${" "}
        <b>${cut.mean >= cut.before ? "+" : "−"}${number(Math.abs(cut.mean - cut.before))}</b>.</p>
      ${data.loss && html`<${Strip} label="loss before, and after in red" unit="nats" values=${data.loss} also=${cut.loss} mark=${at} pick=${(i) => setState({ pin: `q${i}` })} />`}
      <p>Costlier now: ${costliest.filter(([v]) => v > 0).map(([v, i]) => html`<button class="chip" onClick=${() => setState({ pin: `q${i}` })}>${named(words, i)} +${number(v, 2)}</button>`)}</p>
      ${at !== null && at < cut.next.length && cut.next_before[at] ? html`<div class="links"><${Next} next=${cut.next_before[at]} loss=${data.loss[at]} caption=${`after ${named(words, at)}, before the cut`} after=${words[at + 1]} />
        <${Next} next=${cut.next[at]} loss=${cut.loss[at]} caption="and with the cut" after=${words[at + 1]} /></div>` : html`<p class="note">Click a word for its next words before and after.</p>`}
      <${Reader} words=${words} padding=${data.padding[layer.query_text]} shades=${worse.map((v) => Math.max(0, Math.min(1, v / 4)))} pinned=${at} follow=${at !== null} hover=${() => {}}
        pick=${(i) => setState({ pin: `q${i}` })} label="the text, shaded by what the cut costs" />`}`;
}
