"""Tables of training: the names model, heads, the monitor, induction."""

from __future__ import annotations

from .words import bold, machine, ms, table


def monitor(body: dict) -> str:
    """What a sample costs, and the share of training time."""
    head = f"told | a step | one that is looked at | share at every={body['every']}"
    cells = [(r["kind"], ms(r["plain"]), ms(r["seconds"]), r["share"]) for r in body["times"]]
    rows = [(*some, f"**{100 * share:.2f} %**") for *some, share in cells]
    return f"{machine(body)}\n\n{table(head, rows)}"


def induction(body: dict) -> str:
    """What cutting the links of each head does to a model that has learnt to copy."""
    rows = [
        (
            f"{r['links']}, {r['heads']}" if r["heads"] else r["links"], f"{r['copied']:.2f}",
            f"{100 * r['right']:.0f} %", f"{r['score']:.2f}",
        )
        for r in body["cut"]
    ]  # fmt: skip
    first, second = body["pair"]
    start, end = body["turn"]
    told = (
        f"The pair is {first} and {second}. {body['steps']:,} steps and the cuts took "
        f"{body['seconds']:.0f} s of one core; the loss on the copy makes most of its way from "
        f"{body['chance']:.2f} nats (chance, ln 63) between steps {start:,} and {end:,}."
    )
    head = f"links that are cut | loss on the second copy | right | induction score of {second}"
    return "\n\n".join([told, table(head, rows), machine(body)])


def names_loss(body: dict) -> str:
    """The names model beside a bigram, on all three parts of the split."""
    rows = [
        (which, f"{body['bigram'][which]:.3f}", f"**{body['loss'][which]:.3f}**")
        for which in ("train", "held out", "test")
    ]
    return f"{table('names | bigram | names model', rows)}\n\n{machine(body)}"


def names_samples(body: dict) -> str:
    told = body["samples"]
    return (
        f"Of {told['drawn']:,} names drawn at temperature 1, {told['different']:,} are different, "
        f"{told['trained_on']} are names it was trained on, {told['real_and_unseen']} are real "
        f"names it has not seen, and the others are new: {', '.join(told['new'])}."
    )


def names_heads(body: dict) -> str:
    """What each head puts on each pattern, those that are told in bold."""
    patterns = ("previous", "two before", "first", "self", "repeated", "after a copy")
    rows, chance = [], {}
    for head in body["heads"]:
        known = {habit["pattern"]: habit for habit in head["habits"]}
        chance |= {name: habit["chance"] for name, habit in known.items()}
        cells = [
            f"**{known[p]['score']:.2f}**" if known[p]["told"] else f"{known[p]['score']:.2f}"
            for p in patterns
        ]
        rows.append((f"{head['layer']}.{head['head']}", *cells))
    rows.append(("*chance*", *(f"*{chance[p]:.2f}*" for p in patterns)))
    return table(f"head | {' | '.join(patterns)}", rows)


def names_cuts(body: dict) -> str:
    """What cutting those links costs, and then the same in all heads."""
    own = [
        (
            f"{cut['layer']}.{cut['head']}", cut["says"], f"{cut['score']:.2f}",
            f"**{_change(cut['own'])}**", _change(cut["others"]),
        )
        for cut in body["cuts"]["own"]
    ]  # fmt: skip
    every = [(cut["pattern"], _change(cut)) for cut in body["cuts"]["together"]]
    head = "head | reads | share of its weight | loss without those links | loss without its others"
    return f"{table(head, own)}\n\n{table('links cut in all heads | loss', every)}"


def _change(told: dict) -> str:
    return f"{told['change']:+.3f} ± {told['half']:.3f}"


def one_head(body: dict) -> str:
    """Is one head enough: a row for each number of heads."""
    rows = [
        (
            f"{row['heads']}", f"{row['loss']:.3f} ± {row['half']:.3f}",
            "" if row["heads"] == 1 else f"{row['beside']:+.3f} ± {row['beside_half']:.3f}",
            "" if row["unlike"] is None else f"{row['unlike']:.2f}",
            f"{row['one']:.3f}", f"{row['worst']:.3f}", f"{row['layer']:.3f}",
            f"{row['sum'] / row['layer']:.2f}",
        )
        for row in body["rows"]
    ]  # fmt: skip
    head = (
        "heads | loss on unseen names | beside one head | how unlike (0 to 1) | one silenced | "
        "the worst one | a whole layer | one by one, of the whole"
    )
    minutes = sum(run["seconds"] for run in body["runs"]) / 60
    return f"{table(head, rows)}\n\n{machine(body)[:-2]}; {minutes:.0f} minutes of one core.*"


def one_head_gain(body: dict) -> str:
    row = body["rows"][-1]
    return f"{-row['beside']:.3f} ± {row['beside_half']:.3f} nats a character"


def one_head_time(body: dict) -> str:
    return f"{body['rows'][-1]['seconds'] / body['rows'][0]['seconds']:.1f} times the time"


def train(body: dict) -> str:
    """Tokens a second on three attentions."""
    speeds = body["tokens_per_second"]
    rows = [(name, f"{speed:,.0f}", bold(speeds["ours"] / speed)) for name, speed in speeds.items()]
    return f"{machine(body)}\n\n{table('attention | tokens/s | ours, of it', rows)}"
