// A window over the page, left by Escape.

import { html, useEffect, useRef } from "./vendor/preact.js";

export function Dialog({ title, close, children }) {
  const box = useRef();
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} aria-label=${title} data-keys onClose=${close}
    onClick=${(e) => e.target === box.current && close()}>
    <div class="inside"><h2>${title}</h2>${children}
      <button class="close" aria-label="close" onClick=${close}>×</button></div></dialog>`;
}
