// A window over the page, left by Escape, or by the key that opened it.

import { html, useEffect, useRef } from "./vendor/preact.js";

export function Dialog({ title, close, opener, children }) {
  const box = useRef();
  useEffect(() => {
    box.current.showModal();
    const own = (e) => { // before the page hears of it, wherever the focus is: Escape leaves the window, and nothing else
      e.stopPropagation();
      if (e.key === opener) close();
    };
    addEventListener("keydown", own, true);
    return () => removeEventListener("keydown", own, true);
  }, []);
  return html`<dialog ref=${box} aria-label=${title} data-keys onClose=${close}
    onClick=${(e) => e.target === box.current && close()}>
    <div class="inside"><h2>${title}</h2>${children}
      <button class="close" aria-label="close" onClick=${close}>×</button></div></dialog>`;
}
