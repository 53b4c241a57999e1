"""Says what became of an experiment: accepted, refused with a reason, or failed in a way by which
it is known again while it is made smaller."""

import math
import re

from lua_tree import Call, render

BOUND = 1e-10
# Words of torch, of the standard library and of a failed assertion do not tell a user what to do.
FOREIGN = re.compile(r"sizes? (of|mismatch|don)|\btensor [ab]\b|INTERNAL|ASSERT|\bc10\b|\baten\b|std::|vector::|map::at|Expected|"
                     r"out of range|exception|bad_alloc|logic_error", re.IGNORECASE)
LOSSY = re.compile("sends less than the gradients|gathers less than the parameters")


class Outcome:
    """kind: "accepted", "refused" or "failed"; what: in few words, the same for like cases; why: all that is known."""

    def __init__(self, kind, what, why=""):
        self.kind, self.what, self.why = kind, what, why

    def same_as(self, other):
        return (self.kind, self.what) == (other.kind, other.what)


def failed(what, why):
    return Outcome("failed", what, why)


def plain(message):
    """A message without its numbers and names."""
    return re.sub(r'"[^"]*"|\b[a-z_]+\.[\w.]+|\d[\d.e+-]*', "…", message)[:120]


def of_problems(verb, problems):
    """What an error of a verb is: a refusal, or a failure."""
    first = problems[0]
    why = "\n".join(f"{p['stage']} {p['code']} {p.get('key', '')}: {p['message']} -- {p.get('hint', '')}" for p in problems)
    for p in problems:
        if p["message"].startswith("... and "):  # so many more like the last
            continue
        if p["code"].startswith("prove."):
            return failed(f"{verb}: {p['code']}", why)
        if p["stage"] not in ("options", "plan") and p["code"] != "script.argument":
            return failed(f"{verb}: {p['code']} {plain(p['message'])}", why)
        if FOREIGN.search(p["message"]) or p["code"].startswith("plugin.") or not p.get("hint"):
            return failed(f"{verb}: foreign words of {p['code']}", why)
    return Outcome("refused", first["code"], why)


def of_verify(facts):
    verdict, errors = facts.get("verdict"), facts.get("max_relative_error") or {}
    worst = max((abs(value) if value == value else math.inf for value in errors.values()), default=0)
    if verdict == "equal":
        return None if worst <= BOUND else failed("verify: equal beyond the bound", str(facts))
    if verdict == "different" and LOSSY.search(facts.get("note") or "") and not facts.get("first_divergence"):
        return Outcome("accepted", "lossy")
    if verdict == "undecided":
        return Outcome("accepted", "undecided")
    return failed(f"verify: {verdict}", f"{facts.get('divergence')}, worst {facts.get('worst')}, {errors}")


def books(uses, *more):
    return {(u["axis"], u["op"], u["phase"]): [u[key] for key in more] for u in uses if u["phase"] != "check"}


def of_train(facts, keys):
    if facts.get("status") != "done":
        return failed(f"train: {plain(facts.get('reason') or 'not done')}", str(facts.get("reason")))
    predicted = facts["predicted"]
    model = keys.get("model")
    experts = model.function == "mw.moe"  # how many rows go where is known when experts have been chosen
    if not all(map(math.isfinite, facts["losses"])) and keys.get("precision") not in ("bf16", "fp16"):
        return failed("train: a loss that is not finite", str(facts["losses"]))
    told = books(facts["communication"], "calls")
    expected = books(predicted["communication"], "calls")
    if told != expected:
        parting = {key: (told.get(key), expected.get(key)) for key in told.keys() | expected.keys()
                   if told.get(key) != expected.get(key)}
        return failed("train: calls are not those predicted", str(parting))
    if experts and (model.table.get("top_k") != model.table.get("experts") or model.table.get("capacity") is not None):
        return None
    if books(facts["communication"], "bytes") != books(predicted["communication"], "bytes"):
        if experts:  # tokens go to all experts, and some ranks have more tokens than others
            return None
        return failed("train: bytes sent are not those predicted", f"{facts['communication']}\n{predicted['communication']}")
    if "check" in keys.named():  # whose memory is not booked
        return None
    said = f"{facts['peak_bytes']} for {predicted['peak_bytes']}: {facts['memory']}\n{predicted['memory']}"
    # Predicted are the categories of the fullest rank, and held the most of any rank: a strategy of
    # one's own, or a dim that does not divide, may give another rank more of a category.
    plan = keys.get("plan")
    own = plan is not None and any(isinstance(entry, Call) and entry.function == "mw.strategy" for _, entry in plan.items)
    shares = [share for _, entry in plan.items if isinstance(entry, Call) and entry.function == "sp"
              for share in entry.table.values() or [1]] if plan is not None else []
    uneven = own or model.table.get("vocab", 0) % 2 == 1 or bool(shares) and (keys.get("sequence") % 4 > 0 or 3 in shares)
    for category, held in facts["memory"].items():
        most = max(stage[category] for stage in predicted["memory"])
        if category != "scratch" and (held < most or held > most and not uneven):
            return failed(f"train: {category} are not those predicted", said)
    # What kernels take for themselves is tried before the run, and is about what they take in it.
    # Kernels take less for rows of documents than for a row of one, with which they are tried.
    packed = keys.get("data").function == "mw.pack" and facts["peak_bytes"] < predicted["peak_bytes"]
    # What an update of a script allocates is counted as if no result lay in an operand's place.
    scripted = "mw.update" in render(keys.get("optimizer")) and facts["peak_bytes"] < predicted["peak_bytes"]
    if not packed and not scripted and abs(facts["peak_bytes"] - predicted["peak_bytes"]) > 0.02 * predicted["peak_bytes"] + 256:
        return failed("train: the peak is not the predicted one", said)
    return None


def judged(told, keys):
    """The outcome of what a worker told of the experiment."""
    if told.ended:
        verb = list(told.verbs)[-1:] or ["begin"]
        what = "hangs" if told.ended == "hangs" else f"ends its process ({told.ended})"
        return failed(f"{what} after {verb[0]}", told.stderr[-3000:])
    notes = []
    for verb, facts in told.verbs.items():
        if "problems" in facts:
            found = of_problems(verb, facts["problems"])
            if verb == "verify" and found.what == "plan.float64":  # where choices look at bytes
                return Outcome("accepted", "not in float64")
            if found.what.startswith("verify: verify.no-labels"):
                return Outcome("accepted", "no label counts")
            if found.kind == "refused" and verb != "prove":
                return failed(f"{verb}: refused behind a proof, {found.what}", found.why)
            return found
        # No proof tries a hook; each experiment's sums are verified.
        if verb == "prove" and facts["verdict"] != "proved" and "the reduction hook" not in facts["verdict"]:
            codes = sorted({refusal["code"] for refusal in facts["refusals"]})
            return failed(f"prove: {', '.join(codes)}", str(facts["refusals"])[:3000])
        found = of_verify(facts) if verb == "verify" else of_train(facts, keys) if verb == "train" else None
        if found and found.kind == "failed":
            return found
        if found:
            notes.append(found.what)
    return Outcome("accepted", notes[0] if notes else "equal")
