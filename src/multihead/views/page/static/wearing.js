// Light or dark, as the address says it, or else the system.

import { setState } from "./state.js";
import { theme } from "./colours.js";

export const turn = () => setState({ theme: theme() === "dark" ? "light" : "dark" });

/** Put it on before anything is drawn with it. */
export function wear(chosen) {
  const root = document.documentElement;
  if ((root.dataset.theme || "") === chosen) return;
  if (chosen) root.dataset.theme = chosen;
  else delete root.dataset.theme;
  dispatchEvent(new Event("recolour"));
}
