// Colours whose lightness alone tells the order: they read the same to every eye, and in grey.

const RAMPS = {
  light: ["#fbfaf6", "#cfe3e2", "#8fc1c9", "#4b93b0", "#2a5f8f", "#1c3266", "#12132f"],
  dark: ["#0f1318", "#16324a", "#1f5a78", "#2f8795", "#6db58f", "#c2d77f", "#fff6c8"],
};
const BOTH_WAYS = {
  light: ["#1f4e9c", "#7da3d6", "#f5f3ec", "#e0a063", "#9a3d12"],
  dark: ["#7fb2ff", "#33588f", "#16191d", "#8f5420", "#ffb46b"],
};
// Less than even is quiet, more than even is loud: most links of a sharp head are next to nothing.
const TIMES = {
  light: ["#b9c7d8", "#d5dde5", "#f5f3ec", "#e0a063", "#9a3d12"],
  dark: ["#0a1a2c", "#10202f", "#1d2329", "#8f5420", "#ffb46b"],
};
export const HEADS = ["#3f8fb0", "#d9822b", "#5aa469", "#b65fcf", "#c94f4f", "#8a7a2f", "#5b6abf", "#4fa3a5"];

const chosen = () => document.documentElement.dataset.theme
  || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
export const theme = () => chosen();

function parsed(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function table(stops) {
  const made = new Uint8ClampedArray(256 * 3);
  const colours = stops.map(parsed);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    for (let c = 0; c < 3; c++) {
      made[i * 3 + c] = colours[low][c] + (at - low) * (colours[low + 1][c] - colours[low][c]);
    }
  }
  return made;
}
const tables = {};
for (const name of ["light", "dark"]) {
  tables[name] = table(RAMPS[name]);
  tables[name + "difference"] = table(BOTH_WAYS[name]);
  tables[name + "uniform"] = table(TIMES[name]);
}

export const DECADES = 4; // of a logarithmic scale

/** How a scale turns a value into a place from 0 to 1. `most` is the top of its range. */
export function shader(scale, most) {
  const top = most > 0 ? most : 1;
  if (scale === "log") return (v) => (v <= 0 ? 0 : 1 + Math.log10(v / top) / DECADES);
  if (scale === "uniform") {
    const reach = Math.min(10, Math.max(1, Math.log2(top)));
    return (v) => (v <= 0 ? 0 : 0.5 + Math.log2(v) / (2 * reach));
  }
  if (scale === "difference") return (v) => 0.5 + v / (2 * top);
  return (v) => v / top;
}

export function tableOf(scale) {
  return tables[theme() + scale] || tables[theme()];
}

/** Values into pixels; what is no number stays clear. */
export function paint(values, scale, most, pixels) {
  const place = shader(scale, most), colour = tableOf(scale);
  for (let i = 0; i < values.length; i++) {
    const v = values[i], o = i * 4;
    if (v !== v) { pixels[o + 3] = 0; continue; }
    const t = place(v), at = 3 * (t <= 0 ? 0 : t >= 1 ? 255 : Math.round(t * 255));
    pixels[o] = colour[at]; pixels[o + 1] = colour[at + 1]; pixels[o + 2] = colour[at + 2];
    pixels[o + 3] = 255;
  }
}

export function colourAt(share, scale = "linear") {
  const colour = tableOf(scale), at = 3 * Math.max(0, Math.min(255, Math.round(share * 255)));
  return `rgb(${colour[at]},${colour[at + 1]},${colour[at + 2]})`;
}

/** How a share is laid over words: the same hue, clearer or fainter. */
export function wash(share) {
  const strength = Math.max(0, Math.min(1, share));
  return theme() === "dark" ? `rgba(242,193,78,${(0.1 + 0.62 * strength).toFixed(3)})`
    : `rgba(42,118,170,${(0.07 + 0.6 * strength).toFixed(3)})`;
}
