// A text to read, its words shaded: thousands of them, so they are made once and only shades change.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { visible } from "./words.js";
import { wash } from "./colours.js";
import { useLatest } from "./hooks.js";

const FAINTEST = 0.004;
let readers = 0; // words are named by reader and place, for whoever is read to

/** `shades` are 0 to 1 a word; `hover` and `pick` are told the place of a word; `padding` are places that are no words. */
export function Reader({ words, padding, shades, pinned, hover, pick, label, follow = false }) {
  const box = useRef(), spans = useRef([]), shaded = useRef([]), own = useRef("");
  if (!own.current) own.current = `reader-${readers++}`;
  const hear = useLatest((what, at) => (what === "hover" ? hover(at) : pick(at)));
  useEffect(() => {
    const made = document.createDocumentFragment();
    spans.current = words.map((word, i) => {
      const span = document.createElement("span");
      span.className = "word";
      span.textContent = visible(word);
      span.dataset.i = i;
      span.id = `${own.current}-${i}`;
      span.title = `token ${i}`;
      span.setAttribute("role", "option");
      made.append(span);
      if (word.includes("\n")) made.append(document.createElement("br"));
      return span;
    });
    for (const i of padding || []) {
      const span = spans.current[i];
      span.classList.add("padding");
      span.title += ", padding";
      span.ariaLabel = `${span.textContent}, padding`;
    }
    shaded.current = [];
    box.current.replaceChildren(made);
  }, [words, padding]);
  useEffect(() => {
    for (const i of shaded.current) if (spans.current[i]) spans.current[i].style.backgroundColor = "";
    shaded.current = [];
    (shades || []).forEach((share, i) => {
      if (share > FAINTEST && spans.current[i]) {
        spans.current[i].style.backgroundColor = wash(share);
        shaded.current.push(i);
      }
    });
  });
  useEffect(() => {
    for (const span of box.current.querySelectorAll(".pinned")) { span.classList.remove("pinned"); span.ariaSelected = null; }
    const span = pinned === null ? null : spans.current[pinned];
    if (!span) return undefined;
    span.classList.add("pinned");
    span.ariaSelected = "true";
    if (!follow) return undefined;
    const bring = () => span.scrollIntoView({ block: "nearest" });
    bring();
    const watcher = new ResizeObserver(bring); // what comes later beside the text makes it smaller
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, [pinned, words, padding, follow]);
  const spaced = words.length > 1 && !words.some((word) => /^\s/.test(word)); // labels, or words without their spaces
  const at = (e) => (e.target.dataset.i === undefined ? null : Number(e.target.dataset.i));
  const key = (e) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[e.key];
    if (step === undefined) return;
    e.preventDefault(); e.stopPropagation();
    const to = Math.max(0, Math.min(words.length - 1, (pinned ?? -1) + step));
    if (to !== pinned) hear("pick", to);
  };
  return html`<div class=${spaced ? "reader spaced" : "reader"} ref=${box} tabindex="0" role="listbox" aria-label=${label}
    aria-activedescendant=${pinned === null || pinned >= words.length ? undefined : `${own.current}-${pinned}`} data-keys onKeyDown=${key}
    onPointerOver=${(e) => at(e) !== null && hear("hover", at(e))} onPointerLeave=${() => hear("hover", null)}
    onClick=${(e) => at(e) !== null && hear("pick", at(e))}></div>`;
}
