// Small ways for a view to follow the state and to ask for what it shows.

import { useEffect, useRef, useState } from "./vendor/preact.js";
import { getState, onState } from "./state.js";

export function usePageState() {
  const [state, set] = useState(getState());
  useEffect(() => onState(set), []);
  return state;
}

/** What `ask` answers, anew whenever `key` changes; the answer before stays until then. */
export function useAnswer(key, ask) {
  const [found, set] = useState({ key: null, value: null, error: "" });
  useEffect(() => {
    if (key === null) return undefined;
    let wanted = true;
    ask().then(
      (value) => wanted && set({ key, value, error: "" }),
      (error) => wanted && error.name !== "AbortError" && set({ key, value: null, error: error.message }));
    return () => { wanted = false; };
  }, [key]);
  return { ...found, fresh: found.key === key };
}

/** The same function at each drawing, which calls the latest one. */
export function useLatest(call) {
  const latest = useRef(call);
  latest.current = call;
  return useRef((...args) => latest.current(...args)).current;
}

/** Call something a moment after it was last asked; `drop` lets it be. */
export function useSoon(call, wait = 40) {
  const soon = useRef(null), latest = useLatest(call);
  if (!soon.current) {
    let timer = 0;
    const drop = () => clearTimeout(timer);
    soon.current = Object.assign((...args) => { drop(); timer = setTimeout(() => latest(...args), wait); }, { drop });
  }
  return soon.current;
}
