"""The sizes and the mixes of `meshwright bench train`, and how both sides are told of them."""
import difflib

from problem import Problem

# The model, the sequence and the batch of each size, and how many steps one run of it takes.
SIZES = {
    "mini": dict(layers=2, hidden=64, heads=4, ffn=176, vocab=256, sequence=32, batch=16, steps=20),
    "tiny": dict(layers=4, hidden=256, heads=8, ffn=688, vocab=256, sequence=128, batch=16, steps=8),
    "small": dict(layers=8, hidden=512, heads=8, ffn=1376, vocab=256, sequence=256, batch=8, steps=5),
    "wide": dict(layers=4, hidden=1024, heads=16, ffn=2752, vocab=256, sequence=128, batch=8, steps=4),
    "long": dict(layers=2, hidden=256, heads=8, ffn=688, vocab=256, sequence=8192, batch=1, steps=4),
}
SHAPE = ("layers", "hidden", "heads", "ffn", "vocab")
LOSS = 1e-4      # the largest relative difference of losses that passes --check
MEMORY = 0.25    # the resident memory of four ranks over the baseline's that passes --check


def pipeline(ways, theirs, ours, chunks=1):
    options = [f"--pp={ways}", f"--schedule={theirs}", "--microbatches=8"]
    options += [f"--chunks={chunks}"] if chunks > 1 or theirs == "InterleavedZeroBubble" else []
    # PyTorch's schedules in a V do not start on gloo with the warm-up of transfers.
    options += ["--no-p2p-warmup"] if theirs in ("ZBVZeroBubble", "DualPipeV") else []
    more = f", chunks={chunks}" if chunks > 1 else ""
    return dict(ranks=ways, theirs=["pp", *options], plan=f'{{pp{{{ways}, schedule="{ours}"{more}}}}}',
                microbatches=8, beside="one8", tax=1.03)


# A mix is: its ranks; what the baseline is told (None: it has no such mix); our plan; a step's
# microbatches, if not one; the least tokens/s over the baseline's that passes --check; the mix of
# one rank that does the same work; and the most CPU seconds over that one's that pass.
MIXES = {
    "one": dict(ranks=1, theirs=["single"], plan="{}", least=1.0, least_tiny=1.2),
    "compiled": dict(ranks=1, theirs=["single", "--compile"], plan="{}", least=1.0, least_tiny=1.1),
    "dp2": dict(ranks=2, theirs=["ddp"], plan="{dp(2)}", beside="one", tax=1.03),
    "dp4": dict(ranks=4, theirs=["ddp"], plan="{dp(4)}", beside="one", tax=1.03),
    # Stages 2 and 3 are both beside fully_shard, whose gradients and parameters lie in shards.
    "zero1-4": dict(ranks=4, theirs=["zero1"], plan="{zero{4, stage=1}}", beside="one", tax=1.03),
    "zero2-4": dict(ranks=4, theirs=["fsdp2"], plan="{zero{4, stage=2}}", beside="one", tax=1.03),
    "zero3-4": dict(ranks=4, theirs=["fsdp2"], plan="{zero{4, stage=3}}", beside="one", tax=1.03),
    "tp2": dict(ranks=2, theirs=["tp"], plan="{tp(2)}", beside="one", least=1.9, tax=1.03),
    "tp2-sp": dict(ranks=2, theirs=["tp", "--sp"], plan="{tp(2), sp()}", beside="one", least=1.9,
                   tax=1.03),
    "tp4": dict(ranks=4, theirs=["tp"], plan="{tp(4)}", beside="one", least=1.9, tax=1.10),
    "one8": dict(ranks=1, theirs=["single", "--microbatches=8"], plan="{}", microbatches=8, least=1.0),
    "pp2-gpipe": pipeline(2, "GPipe", "gpipe"),
    "pp2-1f1b": pipeline(2, "1F1B", "1f1b"),
    "pp4-1f1b": pipeline(4, "1F1B", "1f1b"),
    "pp2-int": pipeline(2, "Interleaved1F1B", "interleaved", 2),
    "pp2-bfs": pipeline(2, "LoopedBFS", "looped-bfs", 2),
    "pp2-zbh1": pipeline(2, "InterleavedZeroBubble", "zb-h1"),
    "pp2-zbv": pipeline(2, "ZBVZeroBubble", "zbv", 2),
    "pp2-dualpipev": pipeline(2, "DualPipeV", "dualpipev", 2),
    "dp2-tp2": dict(ranks=4, theirs=["ddp+tp", "--tp=2"], plan="{dp(2), tp(2)}", beside="one", tax=1.03),
    "dp2-pp2": dict(ranks=4, theirs=["ddp+pp", "--pp=2", "--schedule=1F1B", "--microbatches=4"],
                    plan='{pp{2, schedule="1f1b"}, dp(2)}', microbatches=4, data=2,
                    beside="one8", tax=1.03),
    # Ours alone: the baseline has no context parallelism.
    "onelong": dict(ranks=1, theirs=None, plan="{}"),
    "cp8-ring": dict(ranks=8, theirs=None, plan="{sp(8)}", beside="onelong", tax=1.08),
    "cp8-uneven": dict(ranks=8, theirs=None, plan='{sp{8, balance="none"}}', beside="onelong", tax=1.08),
    "cp8-gathered": dict(ranks=8, theirs=None, plan='{sp{8, form="allgather"}}', beside="onelong"),
    "cp8-ulysses": dict(ranks=8, theirs=None, plan='{sp{8, form="ulysses"}}', beside="onelong"),
    "cp8-both": dict(ranks=8, theirs=None, plan="{sp{8, ulysses=2}}", beside="onelong", tax=1.08),
}
# Experts: 8 of half the width, 2 of which a token chooses; no balancing loss, as in the baseline.
MIXES.update({
    f"moe-{ways}": dict(ranks=ways, theirs=["single" if ways == 1 else "ep"],
                        plan="{}" if ways == 1 else f"{{dp({ways}), ep({ways})}}", experts=8,
                        **(dict(least=1.0) if ways == 1 else dict(beside="moe-1", tax=1.08)))
    for ways in (1, 2, 4)})

# Words for several mixes at once.
GROUPS = {
    "all": [name for name in MIXES if not name.startswith("cp") and name != "onelong"],
    "main": ["one", "compiled", "dp2", "dp4", "zero1-4", "zero3-4", "tp2", "tp2-sp", "tp4", "one8",
             "pp2-gpipe", "pp2-1f1b", "pp4-1f1b", "pp2-zbh1", "dp2-tp2", "dp2-pp2", "moe-1", "moe-2", "moe-4"],
    "few": ["one", "compiled", "dp2", "dp4", "zero3-4", "tp2", "tp4", "one8", "pp2-1f1b"],
    "pipelines": ["one8"] + [name for name in MIXES if name.startswith("pp")],
    "context": ["onelong"] + [name for name in MIXES if name.startswith("cp")],
}
WORDS = {
    "one": "one rank", "compiled": "one rank, beside torch.compile", "dp2": "dp 2", "dp4": "dp 4",
    "zero1-4": "zero 1 on 4, beside ZeroRedundancyOptimizer", "zero2-4": "zero 2 on 4, beside fully_shard",
    "zero3-4": "zero 3 on 4, beside fully_shard", "tp2": "tp 2", "tp2-sp": "tp 2 with sp", "tp4": "tp 4",
    "one8": "one rank, 8 microbatches", "pp2-gpipe": "pp 2, GPipe", "pp2-1f1b": "pp 2, 1F1B",
    "pp4-1f1b": "pp 4, 1F1B", "pp2-int": "pp 2, interleaved", "pp2-bfs": "pp 2, looped BFS",
    "pp2-zbh1": "pp 2, ZB-H1", "pp2-zbv": "pp 2, ZBV", "pp2-dualpipev": "pp 2, DualPipeV",
    "dp2-tp2": "dp 2 × tp 2", "dp2-pp2": "dp 2 × pp 2, 1F1B", "moe-1": "experts, one rank",
    "moe-2": "experts, ep 2", "moe-4": "experts, ep 4", "onelong": "one rank, 8,192 tokens",
    "cp8-ring": "sp 8, ring", "cp8-uneven": "sp 8, ring, not balanced", "cp8-gathered": "sp 8, gathered keys",
    "cp8-ulysses": "sp 8, Ulysses", "cp8-both": "sp 8, ring of pairs by Ulysses",
}


def chosen(text, known, kind):
    """The names in a list with commas, each once; a group's word stands for its names."""
    names = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        found = GROUPS.get(word, [word]) if known is MIXES else [word]
        for name in found:
            if name not in known:
                words = [*known, *(GROUPS if known is MIXES else ())]
                near = difflib.get_close_matches(name, words, 1, 0)[0]
                raise Problem("options", "usage.value", f'there is no {kind} "{name}"; nearest: "{near}"',
                              f"the {kind} is one of {', '.join(words)}")
            if name not in names:
                names.append(name)
    if not names:
        raise Problem("options", "usage.value", f"no {kind} is named", f"name some of {', '.join(known)}")
    return names


def least(size, mix):
    """The tokens/s over the baseline's that this mix is to reach at this size."""
    m = MIXES[mix]
    return m.get(f"least_{size}", m.get("least", 1.25))
