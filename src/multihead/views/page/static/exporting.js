// Take it along: this view as a picture, the heads as a table, the whole as one file.

import { html, useState } from "./vendor/preact.js";
import { download, getJSON, paths, save, standalone } from "./source.js";
import { Dialog } from "./dialog.js";
import { pngOfView, svgOfView } from "./snapshot.js";
import { NEARLY, TITLES } from "./axes.js";
import { shortened } from "./words.js";

/** The whole view as it is on the screen; from every view. */
export function ExportView({ state, data, close }) {
  const [error, setError] = useState("");
  const root = () => document.getElementById("page"), name = `multihead-${state.view}`;
  const guarded = (work) => async () => { try { await work(); } catch (problem) { setError(problem.message); } };
  return html`<${Dialog} title="Export" close=${close}>
    <p>This view, as it is on the screen:</p><p class="row">
      <button onClick=${guarded(async () => save(await pngOfView(root()), `${name}.png`))}>View as PNG</button>
      <button onClick=${guarded(async () => save(new Blob([svgOfView(root())], { type: "image/svg+xml" }), `${name}.svg`))}>View as SVG</button></p>
    <p>The table of heads:</p><p class="row"><${Tables} state=${state} guarded=${guarded} /></p>
    ${!standalone && !data.layers.some((l) => l.maps) && html`<p class="note">There is no page to take along: this recording has statistics alone (keep_qk=False), and no maps.</p>`}
    ${!standalone && data.layers.some((l) => l.maps) && html`<p>The whole, as one page that opens anywhere:</p><p class="row">
      <button onClick=${guarded(() => download(`/export.html?rec=${state.rec}&batch=${state.batch}&heads=`, "multihead.html"))}>Page as HTML</button>
      <span class="note">the heads that say most exactly, the others pooled</span></p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </${Dialog}>`;
}

/** The same columns in both; asked anew, for names come later. */
function Tables({ state, guarded, busy = false }) {
  const { rec, batch } = state;
  const heads = () => getJSON(paths.heads(rec, batch), { fresh: true });
  const csv = async () => (standalone ? save(new Blob([csvOf(await heads())], { type: "text/csv" }), "heads.csv") : download(`/heads.csv?rec=${rec}&batch=${batch}`, "heads.csv"));
  const json = async () => save(new Blob([JSON.stringify(await heads(), null, 1)], { type: "application/json" }), "heads.json");
  return html`<button disabled=${busy} onClick=${guarded(csv)}>CSV</button><button disabled=${busy} onClick=${guarded(json)}>JSON</button>`;
}

/** Rows as the server's own CSV has them: a list of keys by spaces, one of names by semicolons. */
function csvOf(rows) {
  const columns = Object.keys(rows[0]);
  const cell = (row, key) => (key === "sinks" ? row[key].join(" ") : key === "names" ? row[key].join("; ") : String(row[key] ?? ""));
  const safe = (text) => (/[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  return [columns, ...rows.map((row) => columns.map((key) => cell(row, key)))].map((line) => `${line.map(safe).join(",")}\n`).join("");
}

export function Exports({ state, layer, head }) {
  const [chosen, setChosen] = useState(`${layer.index}.${head}`), [error, setError] = useState(""), [busy, setBusy] = useState(false);
  const name = `head-${layer.index}.${head}`;
  const canvas = () => document.querySelector(".mapbox canvas");
  const guarded = (work) => async () => {
    setError(""); setBusy(true);
    try { await work(); } catch (problem) { setError(problem.message); }
    setBusy(false);
  };
  const button = (label, work) => html`<button disabled=${busy} onClick=${guarded(work)}>${label}</button>`;
  return html`<h3>This map</h3><p class="row">
      ${button("PNG", async () => save(await pngOf(canvas()), `${name}.png`))}
      ${button("SVG", async () => save(new Blob([await svgOf(canvas(), name)], { type: "image/svg+xml" }), `${name}.svg`))}</p>
    <h3>The table of heads</h3><p class="row">
      <${Tables} state=${state} guarded=${guarded} busy=${busy} /></p>
    ${!standalone && html`<h3>The whole, as one page</h3><p>One file that opens anywhere, with no network: the chosen heads exactly at every zoom, all others pooled, and it says so.</p>
      <p class="row"><label>heads, exactly <input value=${chosen} onInput=${(e) => setChosen(e.target.value)} size="24" placeholder="18.6,16.0" /></label>
        ${button("HTML", () => download(`/export.html?rec=${state.rec}&batch=${state.batch}&heads=${encodeURIComponent(chosen)}`, "multihead.html"))}</p>`}
    ${busy && html`<p role="status">Working …</p>`}${error && html`<p class="error" role="alert">${error}</p>`}`;
}

/** What a picture must say of itself: which head of which model, range, unit and pooling. */
function legend() {
  const text = (where) => document.querySelector(where)?.innerText.replace(/\s+/g, " ").trim() || "";
  const [low, high] = [...document.querySelectorAll(".legend .scale i")].map((i) => i.textContent);
  return [`head ${text(".title h1")} of ${text(".about")}`, `${low} to ${high}, ${text(".legend .unit")}; ${text(".sinks").replace(/ (show|hide)$/, "")}`];
}

const RAMP = 110; // pixels
const ramp = () => document.querySelector(".legend .ramp");

/** The map with its legend under it. */
function pngOf(canvas) {
  const m = canvas.headMap, whole = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height + 44 * m.ratio });
  const c = whole.getContext("2d"), style = getComputedStyle(document.documentElement);
  c.fillStyle = style.backgroundColor; c.fillRect(0, 0, whole.width, whole.height);
  c.drawImage(canvas, 0, 0);
  c.scale(m.ratio, m.ratio); c.fillStyle = style.color; c.font = '12px system-ui, "DejaVu Sans", sans-serif';
  const under = canvas.height / m.ratio, [of, range] = legend();
  c.fillText(of, 12, under + 16);
  c.drawImage(ramp(), 12, under + 25, RAMP, 10);
  c.fillText(range, RAMP + 20, under + 34);
  return new Promise((give) => { whole.toBlob(give, "image/png"); });
}

/** The map as a picture inside, its words as text around it. */
export async function svgOf(canvas, title) {
  const m = canvas.headMap, s = m.scale, side = m.side, MARGIN = m.margin;
  const cut = Object.assign(document.createElement("canvas"), { width: side * m.ratio, height: side * m.ratio });
  cut.getContext("2d").drawImage(canvas, -MARGIN.left * m.ratio, -MARGIN.top * m.ratio);
  const safe = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.codePointAt(0)};`);
  const words = [`<text x="${MARGIN.left - 14}" y="${MARGIN.top - 7}" text-anchor="end" font-weight="600">${TITLES.key}</text>`,
    `<text transform="translate(11 ${MARGIN.top}) rotate(-90)" text-anchor="end" font-weight="600">${TITLES.query}</text>`], step = Math.max(1, Math.ceil(13 / s));
  for (let i = Math.max(0, Math.ceil(m.view.q - NEARLY)); i < Math.min(m.shown.layer.queries, m.view.q + m.view.span); i += step) {
    words.push(`<text x="${MARGIN.left - 6}" y="${MARGIN.top + (i + 0.5 - m.view.q) * s + 4}" text-anchor="end">${safe(s >= 9 ? shortened(m.shown.words[0][i] ?? "") : String(i))}</text>`);
  }
  for (let i = Math.max(0, Math.ceil(m.view.k - NEARLY)); i < Math.min(m.shown.layer.keys, m.view.k + m.view.span); i += step) {
    words.push(`<text transform="translate(${MARGIN.left + (i + 0.5 - m.view.k) * s} ${MARGIN.top - 6}) rotate(-60)">${safe(s >= 9 ? shortened(m.shown.words[1][i] ?? "", 12) : String(i))}</text>`);
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${MARGIN.left + side} ${MARGIN.top + side + 44}" font-family="monospace" font-size="11"><title>${safe(title)}</title>
<image x="${MARGIN.left}" y="${MARGIN.top}" width="${side}" height="${side}" href="${cut.toDataURL("image/png")}"/>
${words.join("\n")}
<desc>${safe(legend().join("; "))}</desc>
<image class="ramp" x="12" y="${MARGIN.top + side + 25}" width="${RAMP}" height="10" preserveAspectRatio="none" href="${ramp().toDataURL("image/png")}"/>
<text>${legend().map((line, i) => `<tspan x="${i ? RAMP + 20 : 12}" y="${MARGIN.top + side + 16 + 18 * i}">${safe(line)}</tspan>`).join("")}</text></svg>`;
}
