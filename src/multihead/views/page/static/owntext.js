// Your own text: typed in, recorded with live progress, and looked at from where one was.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { ENDED, postLines } from "./source.js";
import { setState } from "./state.js";
import { Dialog } from "./dialog.js";

export function OwnText({ data, close }) {
  const [text, setText] = useState(""), [tokens, setTokens] = useState(512);
  const [told, setTold] = useState(null), [error, setError] = useState("");
  const area = useRef(), running = useRef(null);
  const stop = () => running.current?.abort();
  useEffect(() => { area.current.focus(); return stop; }, []); // who leaves is not taken to another text later on
  const record = async () => {
    setError(""); setTold({ message: "Recording", share: 0 });
    running.current = new AbortController();
    let over = false;
    try {
      await postLines("/record.ndjson", { text, tokens }, (line) => {
        over = Boolean(line.error || line.recording);
        if (line.error) { setError(line.error); setTold(null); }
        else if (line.recording) { setState({ rec: line.recording, batch: 0, pin: "" }); close(); }
        else setTold(line);
      }, running.current.signal);
      if (!over) throw new Error(ENDED);
    } catch (problem) { setTold(null); if (problem.name !== "AbortError") setError(problem.message); }
  };
  return html`<${Dialog} title="Your own text" close=${close}>
    <p>${data.about.model} reads it, and every head of it is recorded. What you look at stays as it is.</p>
    <textarea rows="9" aria-label="text" placeholder="A paragraph or more" value=${text} ref=${area}
      onInput=${(e) => setText(e.target.value)}></textarea>
    <p class="row"><label>tokens at most <select value=${tokens} onChange=${(e) => setTokens(Number(e.target.value))}>
      ${[128, 512, 1024, 2048, 4096, 8192].map((n) => html`<option value=${n}>${n.toLocaleString("en")}</option>`)}</select></label>
    <button class="main" disabled=${told !== null || !text.trim()} onClick=${record}>Record</button></p>
    ${told && html`<p class="row"><span role="status">${told.message} <progress value=${told.share ?? undefined} max="1"></progress></span>
      <button onClick=${stop}>Stop</button> <span class="note">Closing this window stops it too.</span></p>`}
    ${error && html`<p role="alert" class="error">${error}</p>`}
  </${Dialog}>`;
}
