// What is on the screen as a drawing: boxes, words and pictures where they stand.

const safe = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.codePointAt(0)};`);
const INHERITED = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "opacity", "font-size", "font-weight", "font-family"];

/** An element and all in it as SVG, as far as it can be seen. */
export function svgOfView(root) {
  const frame = root.getBoundingClientRect(), paper = getComputedStyle(document.documentElement).backgroundColor;
  const drawn = [];
  draw(root, frame, frame, drawn);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${frame.width} ${frame.height}" width="${frame.width}" height="${frame.height}">
<title>${safe(document.title)}</title><rect width="100%" height="100%" fill="${paper}"/>
${drawn.join("\n")}</svg>`;
}

export async function pngOfView(root) {
  const svg = svgOfView(root), box = root.getBoundingClientRect(), picture = new Image();
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    await new Promise((done, failed) => { picture.onload = done; picture.onerror = () => failed(new Error("the view could not be drawn")); picture.src = address; });
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * box.width, height: 2 * box.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await new Promise((give) => { canvas.toBlob(give, "image/png"); });
  } finally { URL.revokeObjectURL(address); }
}

function draw(element, frame, clip, drawn) {
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  if (element.tagName === "DIALOG" || style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return;
  if (!meets(box, clip) && style.display !== "contents") return;
  if (element.tagName === "CANVAS") { drawn.push(imageOf(element, box, frame, style)); return; }
  if (element.tagName === "svg") { drawn.push(nested(element, box, frame)); return; }
  drawn.push(...boxOf(box, frame, style));
  if (element.tagName === "SELECT" || element.tagName === "INPUT" || element.tagName === "TEXTAREA") {
    const said = element.tagName === "SELECT" ? element.selectedOptions[0]?.textContent || "" : element.value;
    drawn.push(cutOff(words(said, box.left + 8, box.top + box.height / 2, frame, style), box, frame));
    return;
  }
  const inner = style.overflowX === "visible" ? clip : crossed(box, clip);
  if (inner !== clip) inner.dots = style.textOverflow === "ellipsis" && element.scrollWidth > element.clientWidth;
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) drawText(child, frame, inner, style, drawn);
    else if (child.nodeType === Node.ELEMENT_NODE) draw(child, frame, inner, drawn);
  }
}

const meets = (a, b) => a.right > b.left && a.left < b.right && a.bottom > b.top && a.top < b.bottom;
const crossed = (a, b) => ({
  left: Math.max(a.left, b.left), right: Math.min(a.right, b.right), top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom),
});

/** Only what of a drawing is inside of a box. */
function cutOff(drawing, box, frame) {
  const at = [box.left - frame.left, box.top - frame.top];
  return `<svg x="${at[0]}" y="${at[1]}" width="${box.width}" height="${box.height}" viewBox="${at.join(" ")} ${box.width} ${box.height}">${drawing}</svg>`;
}

function boxOf(box, frame, style) {
  const clear = /^rgba\(.*, 0\)$|^transparent$/.test(style.backgroundColor), edge = parseFloat(style.borderTopWidth);
  if (clear && !edge) return [];
  const line = edge && style.borderTopStyle !== "none" ? `stroke="${style.borderTopColor}" stroke-width="${edge}"` : "";
  if (clear && !line) return [];
  const round = Math.min(parseFloat(style.borderRadius) || 0, box.height / 2);
  return [`<rect x="${box.left - frame.left}" y="${box.top - frame.top}" width="${box.width}" height="${box.height}" rx="${round}" fill="${clear ? "none" : style.backgroundColor}" ${line}/>`];
}

function imageOf(canvas, box, frame, style) {
  if (!canvas.width || !canvas.height) return "";
  const sharp = style.imageRendering === "pixelated" ? ' style="image-rendering:pixelated"' : "";
  return `<image x="${box.left - frame.left}" y="${box.top - frame.top}" width="${box.width}" height="${box.height}" preserveAspectRatio="none"${sharp} href="${canvas.toDataURL("image/png")}"/>`;
}

/** A drawing inside, with the colours that the page gives it. */
function nested(svg, box, frame) {
  const copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((one, i) => { const style = getComputedStyle(one); for (const name of INHERITED) to[i].setAttribute(name, style.getPropertyValue(name)); });
  for (const name of ["class", "style", "role", "tabindex"]) copy.removeAttribute(name);
  copy.setAttribute("x", box.left - frame.left); copy.setAttribute("y", box.top - frame.top);
  copy.setAttribute("width", box.width); copy.setAttribute("height", box.height);
  return new XMLSerializer().serializeToString(copy);
}

/** Word by word, for spaces are not all as wide everywhere; what reaches past its box is cut off as on the screen. */
function drawText(node, frame, clip, style, drawn) {
  for (const found of node.textContent.matchAll(/\S+/g)) {
    for (const { text, box } of piecesOf(node, found.index, found[0])) {
      const middle = box.top + box.height / 2, say = (what, x) => words(what, x, middle, frame, style);
      if (!box.width || middle <= clip.top || middle >= clip.bottom || clip.full) continue;
      if (clip.dots) drawn.push(say(...dotted(text, box, clip, style)));
      else if (box.left >= clip.left - 1 && box.right <= clip.right + 1) drawn.push(say(text, box.left));
      else if (meets(box, clip)) drawn.push(cutOff(say(text, box.left), crossed(box, clip), frame));
    }
  }
}

/** A word, or what of it stands in each line where it is broken. */
function piecesOf(node, start, word) {
  const range = document.createRange(), boxOf = (from, to) => { range.setStart(node, from); range.setEnd(node, to); return range.getBoundingClientRect(); };
  const whole = boxOf(start, start + word.length);
  if (range.getClientRects().length < 2) return [{ text: word, box: whole }];
  const pieces = [];
  let at = start, first = start;
  for (const letter of word) {
    const box = boxOf(at, at + letter.length), last = pieces.at(-1);
    if (last && Math.abs(last.box.top - box.top) < box.height / 2) last.text += letter;
    else { first = at; pieces.push({ text: letter, box }); }
    at += letter.length;
    pieces.at(-1).box = boxOf(first, at);
  }
  return pieces;
}

/** In a line that ends in an ellipsis: a word and where it stands, or its beginning and the ellipsis. */
function dotted(text, box, clip, style) {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.font = style.font;
  const end = clip.right - pen.measureText("…").width;
  if (box.right <= end) return [text, box.left];
  const letters = [...text];
  while (letters.length && box.left + pen.measureText(letters.join("")).width > end) letters.pop();
  clip.full = true; // nothing stands behind it
  return [`${letters.join("")}…`, Math.min(box.left, end)];
}

function words(text, x, middle, frame, style) {
  return `<text x="${x - frame.left}" y="${middle - frame.top}" dominant-baseline="central" fill="${style.color}" font-family="${safe(style.fontFamily)}" font-size="${style.fontSize}" font-weight="${style.fontWeight}">${safe(text)}</text>`;
}
