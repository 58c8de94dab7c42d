"""How long induction takes to be born, when it turns, and what cutting the pair does.

python benchmarks/induction.py     writes results/induction.json and docs/induction.png
"""

import sys
import time
from pathlib import Path

from measure import RESULTS, save

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import induction  # noqa: E402

if __name__ == "__main__":
    start = time.process_time()  # of one core, however busy the machine is
    model, watched = induction.train(2000, 25)
    found = induction.cuts(model, watched)
    seconds = time.process_time() - start
    induction.tell(found)
    induction.draw(watched.samples, found["pair"], ROOT / "docs" / "induction.png")
    turned = induction.turn(watched.samples)
    save("induction", {"seconds": seconds, "chance": induction.CHANCE, "turn": turned,
                       "steps": watched.samples[-1]["step"], **found})  # fmt: skip
    print(f"wrote {RESULTS / 'induction.json'}")
