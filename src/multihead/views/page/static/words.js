// Tokens as a person can see them: a space is ·, a line end is ⏎.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u; // what turns the line round, or cannot be seen at all
const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** One token on one line. */
export function visible(word) {
  if (word === "") return "∅";
  return [...word].map((c) => MARKS[c] || (UNSEEN.test(c) ? "\ufffd" : c)).join("");
}

/** A name that somebody gave, on one line: its spaces are spaces. */
export const legible = (label) => [...label].map((c) => (UNSEEN.test(c) ? "\ufffd" : c)).join("");

export function shortened(word, most = 14) {
  const letters = [...visible(word)];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

export const quoted = (words, place) => `‘${shortened(words[place] ?? "", 20)}’`;

/** 'ran' (7) */
export const named = (words, place) => `${quoted(words, place)} (${place})`;

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(1);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size >= 100 ? value.toFixed(1) : value.toFixed(size >= 10 ? 2 : digits);
}

/** 1 token, 2 tokens. */
export const counted = (count, what) => `${count.toLocaleString("en")} ${count === 1 ? what.replace(/s$/, "") : what}`;

/** A number and its unit: 0.5 rows, 1 row. */
export const measured = (value, unit) => `${number(value)} ${value === 1 ? unit.replace(/s$/, "") : unit}`.trim();

/** What a number of the map, or of a link, is of. */
export const UNITS = { weight: "weight", norm: "weight × ‖v W_O‖" };

export const percent = (share) => (share > 0 && share < 0.005 ? "<1 %" : `${Math.round(share * 100)} %`);
