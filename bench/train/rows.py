"""Makes rows of the pairs of a mix: medians, ratios with their spread, missed targets, tables."""
import datetime
import os
import platform
import re
import statistics

from mixes import LOSS, MEMORY, MIXES, SHAPE, SIZES, WORDS, least

MIB = 2**20


def ratio(pairs, key):
    """The median over pairs of the baseline's figure over ours, and the least and the most."""
    found = sorted(theirs[key] / ours[key] for theirs, ours in pairs)
    return dict(median=statistics.median(found), least=found[0], most=found[-1])


def row_of(size, mix, pairs):
    """A row from pairs (the baseline's figures or None, ours)."""
    def middle(side, key):
        return statistics.median(pair[side][key] for pair in pairs)

    tokens = SIZES[size]["batch"] * SIZES[size]["sequence"]
    row = dict(size=size, mix=mix, ranks=MIXES[mix]["ranks"], rounds=len(pairs),
               tokens_per_second=tokens / middle(1, "step"), cpu_seconds=middle(1, "cpu"),
               startup_seconds=middle(1, "startup"), resident_bytes=middle(1, "resident"),
               losses=pairs[0][1]["losses"],
               other_cores=max(side["others"] for pair in pairs for side in pair if side))
    if pairs[0][0] is not None:
        a, b = pairs[0][0]["losses"], pairs[0][1]["losses"]
        row["baseline"] = dict(
            tokens_per_second=tokens / middle(0, "step"), cpu_seconds=middle(0, "cpu"),
            startup_seconds=middle(0, "startup"), resident_bytes=middle(0, "resident"),
            proportional_bytes=middle(0, "proportional"), losses=a,
            first_step_seconds=max(pair[0]["first_step"] for pair in pairs))
        row.update(speed=ratio(pairs, "step"), cpu=ratio(pairs, "cpu"), startup=ratio(pairs, "startup"),
                   resident=ratio(pairs, "resident"),
                   loss_difference=max(abs(x - y) / abs(x) for x, y in zip(a, b)))
    return row


def put_beside_one(rows):
    """Sets `over_one`: CPU seconds over those of one rank that does the same work in the same way."""
    found = {(row["size"], row["mix"]): row for row in rows}
    for row in rows:
        one = found.get((row["size"], MIXES[row["mix"]].get("beside")))
        if one:
            row["over_one"] = row["cpu_seconds"] / one["cpu_seconds"]


def missed(rows, quiet):
    """What falls short of its target. On a machine that was busy meanwhile CPU seconds decide."""
    for r in rows:
        name, m = f"{r['size']} {r['mix']}", MIXES[r["mix"]]
        if "speed" in r:
            key, what = ("speed", "tokens/s") if r["other_cores"] <= quiet else ("cpu", "CPU seconds")
            target = least(r["size"], r["mix"])
            if r[key]["median"] < target:
                yield f"{name}: {r[key]['median']:.2f} x the baseline in {what}, target {target:.2f}"
            if r["loss_difference"] > LOSS:
                yield f"{name}: losses differ by {r['loss_difference']:.1e}, at most {LOSS:.0e}"
            if r["ranks"] == 4 and r["resident"]["median"] < 1 / MEMORY:
                yield (f"{name}: {1 / r['resident']['median']:.2f} of the baseline's resident memory, "
                       f"at most {MEMORY}")
        if "tax" in m and r["size"] != "mini" and r.get("over_one", 0) > m["tax"]:  # mini is mostly overhead
            yield f"{name}: {r['over_one']:.2f} x one rank's CPU seconds, at most {m['tax']:.2f}"


HEAD = ("size   mix            ranks  tokens/s  baseline  ratio    (range)     CPU s  baseline  ratio    (range)     "
        "x one rank  start-up s  baseline   MiB  baseline  losses differ  others' cores")


def line(r):
    """One row of the text table, under HEAD."""
    def pair(key):
        return f"{r[key]['median']:6.2f}x ({r[key]['least']:.2f}-{r[key]['most']:.2f})"

    one = f"{r['over_one']:.2f}" if "over_one" in r else "-"
    b = r.get("baseline")
    dash = f"{'-':>9} {'-':>6}  {'':12}"
    speed = f"{b['tokens_per_second']:9.0f} {pair('speed'):20}" if b else dash
    cpu = f"{b['cpu_seconds']:9.3f} {pair('cpu'):20}" if b else dash
    last = (f"{b['startup_seconds']:9.2f} {r['resident_bytes'] / MIB:6.0f} {b['resident_bytes'] / MIB:9.0f} "
            f"{r['loss_difference']:14.1e}" if b else
            f"{'-':>9} {r['resident_bytes'] / MIB:6.0f} {'-':>9} {'-':>14}")
    return (f"{r['size']:6} {r['mix']:14} {r['ranks']:5} {r['tokens_per_second']:9.0f} {speed} "
            f"{r['cpu_seconds']:6.3f} {cpu} {one:>11} {r['startup_seconds']:11.2f} {last} {r['other_cores']:14.2f}")


def machine():
    """The machine, in words that another reader can place."""
    try:
        text = open("/proc/cpuinfo").read()
        name = re.search(r"model name\s*: (.*)", text)
        wide = [w for w in ("avx512_bf16", "avx512f", "avx2") if re.search(rf"\b{w}\b", text)]
        kib = int(re.search(r"MemTotal:\s*(\d+)", open("/proc/meminfo").read())[1])
    except OSError:
        name, wide, kib = None, [], 0
    return dict(processor=name[1].strip() if name else platform.processor() or platform.machine(),
                cores=len(os.sched_getaffinity(0)), vectors=wide[0] if wide else "", memory_bytes=kib * 1024,
                system=f"{platform.system()} {platform.release().partition('-')[0]}")


def machine_text(m):
    return (f"{m['cores']} cores of {m['processor']}{', ' + m['vectors'] if m['vectors'] else ''}, "
            f"{m['memory_bytes'] / 2**30:.0f} GiB, {m['system']}")


def cell(r, key, scale=1.0, form=".0f"):
    """Ours, the baseline's, and the ratio with its range, for a Markdown table."""
    ours, names = r[key], dict(tokens_per_second="speed", cpu_seconds="cpu", startup_seconds="startup",
                               resident_bytes="resident")
    if "baseline" not in r:
        return f"{ours * scale:{form}} | "
    x = r[names[key]]
    spread = f" ({x['least']:.2f} to {x['most']:.2f})" if r["rounds"] > 1 else ""
    return f"{ours * scale:{form}} / {r['baseline'][key] * scale:{form}} | **{x['median']:.2f}**{spread}"


def tables(size, rows, note):
    """The Markdown of one size: a sentence on what it is, and a table of its rows."""
    s = SIZES[size]
    shape = ", ".join(f"{key} {s[key]}" for key in (*SHAPE, "sequence", "batch"))
    out = [f"{note} The model: {shape}.", "",
           "| mix | tokens/s, ours / theirs | ratio | CPU s a step | ratio | over one rank | start-up, s | ratio "
           "| resident, MiB | ratio |", "|---|" + "---|" * 9]
    for r in rows:
        one = f"{r['over_one']:.2f}" if "over_one" in r else ""
        out.append(f"| {WORDS[r['mix']]} | {cell(r, 'tokens_per_second')} | {cell(r, 'cpu_seconds', form='.3f')} | {one} | "
                   f"{cell(r, 'startup_seconds', form='.2f')} | {cell(r, 'resident_bytes', 1 / MIB)} |")
    return "\n".join(out) + "\n"


def note_of(result, rows):
    rounds = sorted({r["rounds"] for r in rows})
    span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    beside = f"beside stock PyTorch {result['baseline_torch']} with gloo" if result["baseline_torch"] else "ours alone"
    busy = max(r["other_cores"] for r in rows)
    return (f"Measured on {result['date']}, {beside}: {machine_text(result['machine'])}. Medians of {span} "
            f"{'pairs' if result['baseline_torch'] else 'runs'}; other programs kept at most {busy:.2f} cores busy.")


def fill_page(page, result, picture):
    """Puts each size's table, and the picture's link, between the page's marks of that size."""
    text = page.read_text()
    for size in dict.fromkeys(r["size"] for r in result["rows"]):
        rows = [r for r in result["rows"] if r["size"] == size]
        begin, end = marks(size)
        body = f"{begin}\n{tables(size, rows, note_of(result, rows))}\n![{size}]({picture(size)})\n{end}"
        if begin not in text:
            text = text.rstrip() + f"\n\n### {size}\n{begin}\n{end}\n"
        text = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: body, text, flags=re.DOTALL)
    page.write_text(text)


def marks(size):
    """Between which lines of a page the table of a size stands."""
    return f"<!-- bench train: {size} -->", f"<!-- /bench train: {size} -->"


def today():
    return datetime.date.today().isoformat()
