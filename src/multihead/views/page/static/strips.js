// A number a token, along the text: the largest of each pixel, so that nothing is passed over.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { theme } from "./colours.js";
import { measured } from "./words.js";

const HEIGHT = 34;

export function Strip({ label, unit, values, also, mark, pick }) {
  const canvas = useRef();
  const top = Math.max(0, ...values.filter((v) => v !== null), ...(also || []).filter((v) => v !== null)), most = top || 1;
  useEffect(() => {
    const draw = () => {
      const box = canvas.current.parentElement.getBoundingClientRect(), ratio = devicePixelRatio || 1;
      const width = Math.max(60, Math.floor(box.width)), c = canvas.current.getContext("2d");
      canvas.current.width = width * ratio; canvas.current.height = HEIGHT * ratio;
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      const dark = theme() === "dark";
      line(c, values, width, most, dark ? "#6db58f" : "#2a5f8f", true);
      if (also) line(c, also, width, most, dark ? "#ff9d6e" : "#b3261e", false);
      if (mark !== null && mark !== undefined) {
        c.fillStyle = dark ? "#ff9d6e" : "#b3261e";
        c.fillRect(((mark + 0.5) / values.length) * width - 0.5, 0, 1.5, HEIGHT);
      }
    };
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(canvas.current.parentElement);
    return () => watcher.disconnect();
  });
  const at = (e) => {
    const box = canvas.current.getBoundingClientRect();
    return Math.max(0, Math.min(values.length - 1, Math.floor(((e.clientX - box.left) / box.width) * values.length)));
  };
  const here = mark !== null && mark !== undefined ? values[mark] : null;
  return html`<figure class="strip"><figcaption>${label} <i>${here === null ? `up to ${measured(top, unit)}` : measured(here, unit)}</i></figcaption>
    <div><canvas ref=${canvas} height=${HEIGHT} role="img" aria-label=${`${label} along the text, up to ${measured(top, unit)}`}
      onClick=${(e) => pick(at(e))}></canvas></div></figure>`;
}

function line(c, values, width, most, colour, filled) {
  c.fillStyle = c.strokeStyle = colour;
  c.lineWidth = 1.2;
  c.beginPath();
  for (let x = 0; x < width; x++) {
    const first = Math.floor((x / width) * values.length);
    const last = Math.max(first + 1, Math.floor(((x + 1) / width) * values.length));
    let top = 0;
    for (let i = first; i < last; i++) if (values[i] !== null && values[i] > top) top = values[i];
    const y = HEIGHT - (top / most) * (HEIGHT - 2);
    if (filled) c.fillRect(x, y, 1, HEIGHT - y);
    else if (x === 0) c.moveTo(x, y);
    else c.lineTo(x, y);
  }
  if (!filled) c.stroke();
}
