// A letter for each name that a head may have.

export const MARKS = {
  "induction": "I", "previous token": "P", "duplicate token": "D", "next token": "N", "separator": "S",
  "self": "=", "local": "L", "first token": "1",
};
export const markOf = (name) => MARKS[name.pattern] || "•";

/** The names of each head, strongest first, a pattern once. */
export function namesByHead(names) {
  const found = new Map();
  for (const name of names?.names || []) {
    const at = `${name.layer}.${name.head}`;
    if (!found.has(at)) found.set(at, []);
    if (!found.get(at).some((n) => n.pattern === name.pattern && n.where === name.where)) found.get(at).push(name);
  }
  return found;
}
