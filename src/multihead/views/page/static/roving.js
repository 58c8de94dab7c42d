// One stop of the Tab key for many things; arrows go from one to another.

/** What a key leads to, from one element among lines of them; null for other keys, or at an edge. */
export function stepped(lines, from, event) {
  if (event.altKey || event.metaKey || event.shiftKey || event.ctrlKey && !["Home", "End"].includes(event.key)) return null;
  const row = lines.findIndex((line) => line.includes(from)), column = lines[row].indexOf(from);
  const above = lines[row - 1], below = lines[row + 1], same = (line) => line?.[Math.min(column, line.length - 1)];
  const [first, last] = event.ctrlKey ? [lines[0], lines.at(-1)] : [lines[row], lines[row]];
  const to = {
    ArrowLeft: () => lines[row][column - 1], ArrowRight: () => lines[row][column + 1],
    ArrowUp: () => same(above), ArrowDown: () => same(below), Home: () => first[0], End: () => last.at(-1),
  }[event.key]?.();
  return to && to !== from ? to : null;
}

/** Elements that flow, as the lines that they stand in on the screen. */
export function linesOf(elements) {
  const lines = new Map();
  for (const one of elements) lines.set(one.offsetTop, [...lines.get(one.offsetTop) || [], one]);
  return [...lines.values()];
}

/** The nearest place in the direction of an arrow; what lies straight ahead is nearer than what lies aside. */
export function nearest(places, from, key) {
  const [ahead, aside, sign] = { ArrowLeft: ["x", "y", -1], ArrowRight: ["x", "y", 1], ArrowUp: ["y", "x", -1], ArrowDown: ["y", "x", 1] }[key];
  const mine = places.indexOf(from);
  let best = null, least = Infinity;
  places.forEach((place, i) => {
    const off = Math.abs(place[aside] - from[aside]);
    let far = sign * (place[ahead] - from[ahead]);
    if (far === 0 && off === 0) far = 1e-6 * sign * (i - mine); // one on top of another: in their order
    if (far > 0 && far + 2 * off < least) { least = far + 2 * off; best = place; }
  });
  return best;
}
