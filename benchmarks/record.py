"""Recording SmolLM2 against the plain SDPA forward, and beside eager `output_attentions`.

    python benchmarks/record.py           some minutes; writes results/record.json
    python benchmarks/record.py --quick   512 tokens only, writes nothing

CPU, float32, default statistics (entropy, distance, peak, first-token mass, received), queries and
keys kept. Medians of calls that take turns; memory is what a process of its own needs at its peak
beyond the same process with the plain forward.
"""

from __future__ import annotations

import argparse

import torch
from measure import in_its_own_process, machine, medians, peak_above, save

import multihead as mh

LENGTHS = (512, 1024, 2048, 4096)
EAGER_UP_TO = 1024  # its maps take 18 GB at 4,096
MEMORY_AT = (512, 4096)
EAGER_MEMORY_AT = (512, 1024)


def tokens(count: int, vocab: int) -> torch.Tensor:
    return torch.randint(0, vocab, (1, count), generator=torch.Generator().manual_seed(0))


def calls(model, ids) -> dict:
    def plain():
        return model(ids, use_cache=False)

    def recorded():
        with mh.record(model) as rec:
            model(ids, use_cache=False)
        return rec

    def eager():
        model.set_attn_implementation("eager")
        try:
            return model(ids, use_cache=False, output_attentions=True)
        finally:
            model.set_attn_implementation("sdpa")

    return {"plain": plain, "record": recorded, "eager": eager}


@torch.no_grad()
def time_all(lengths: tuple[int, ...]) -> list[dict]:
    model, _ = mh.load_model("smollm2")
    rows = []
    print(f"{'tokens':>7}{'plain':>12}{'record':>12}{'ratio':>8}{'eager':>8}")
    for n in lengths:
        some = calls(model, tokens(n, model.config.vocab_size))
        if n > EAGER_UP_TO:
            del some["eager"]
        found = medians(some, seconds=40)
        rows.append({"tokens": n, **found})
        slow = f"{found['eager'] / found['plain']:.2f}" if "eager" in found else "-"
        print(
            f"{n:>7}{found['plain']:>11.2f}s{found['record']:>11.2f}s"
            f"{found['record'] / found['plain']:>8.3f}{slow:>8}",
            flush=True,
        )
    return rows


@torch.no_grad()
def memory_of(kind: str, count: int) -> int:
    model, _ = mh.load_model("smollm2")
    calls(model, tokens(64, model.config.vocab_size))[kind]()
    return peak_above(calls(model, tokens(count, model.config.vocab_size))[kind])


def memory() -> list[dict]:
    rows = []
    for kind, lengths in (("record", MEMORY_AT), ("eager", EAGER_MEMORY_AT)):
        for n in lengths:
            above, plain = (
                in_its_own_process(__file__, "--memory-of", which, "--tokens", str(n))
                for which in (kind, "plain")
            )
            rows.append({"kind": kind, "tokens": n, "more": above - plain})
            print(
                f"memory, {kind}, {n}: {(above - plain) / 1e6:.0f} MB more than plain", flush=True
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="512 tokens, nothing written")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory_of:
        print(memory_of(asked.memory_of, asked.tokens))
        return
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    if asked.quick:
        time_all((512,))
        return
    save("record", {"times": time_all(LENGTHS), "memory": memory()})


if __name__ == "__main__":
    main()
