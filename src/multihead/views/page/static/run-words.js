// What the statistics of a run are called.

const LABELS = {
  entropy: "entropy, as a share of the most", peak: "largest weight of a row", max_score: "largest score",
  "mass:prefix(1)": "weight on the first token", "mass:offset(-1)": "weight on the previous token",
};

export const labelOf = (stat) => LABELS[stat] || stat;
