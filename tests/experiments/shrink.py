"""Makes an experiment that fails smaller while it fails the same way: greedy delta debugging over
the tree of its Lua (Misherghi and Su 2006), from the whole to the details."""

import time

import lua_tree
from lua_tree import Call, Table, edited, places, put, render
from judge import judged

# What stands in for whole parts, the simplest first.
SIMPLE = [
    put("model", Call("mw.llama", Table(layers=1, hidden=8, heads=4, vocab=16, ffn=8))),
    put("model", Call("mw.llama", Table(layers=2, hidden=8, heads=4, vocab=16, ffn=8))),
    put("optimizer", Call("mw.sgd", Table(lr=0.1))), put("schedule", "gpipe"), put("schedule", "1f1b"), put("sequence", 8)]
EDITS = [lua_tree.drop, *SIMPLE, lua_tree.unwrap, lua_tree.simple_function, lua_tree.smaller(lambda n: 1),
         lua_tree.smaller(lambda n: n // 2), lua_tree.smaller(lambda n: n - 1)]


def size(text):
    """What is shorter is smaller, and of what is as long the first in the alphabet."""
    return len(text), text


def candidates(keys):
    """What each edit of each place makes of the experiment if that is smaller, those near the root first."""
    limit = size(render(keys))
    for edit in EDITS:
        for which in range(sum(1 for _ in places(keys))):
            made = edited(keys, which, edit)
            if made is not None and size(render(made)) < limit:
                yield made


def still_fails(worker, keys, verbs, outcome, times):
    """Whether it fails the same way, in one of so many runs."""
    return any(judged(worker.run(keys, verbs=verbs), keys).same_as(outcome) for _ in range(times))


def shrunk(worker, keys, outcome, verbs, times=1, seconds=120, tries=400):
    """The smallest experiment found that has the same outcome, and how many were tried for it."""
    until, tried, seen = time.monotonic() + seconds, 0, {render(keys)}
    progress = True
    while progress:
        progress = False
        for candidate in candidates(keys):
            text = render(candidate)
            if text in seen:
                continue
            if time.monotonic() > until or tried >= tries:
                return keys, tried
            seen.add(text)
            tried += 1
            if still_fails(worker, candidate, verbs, outcome, times):
                keys, progress = candidate, True
                break
    return keys, tried


HEAD = """\
-- {what}
-- Made smaller from experiment {number} of seed {seed}: {command}
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep, coshard, diloco, kit = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep", "coshard", "diloco", "kit")
"""
HASHED = """\
local function hashed(text, salt)
  local h = salt
  for i = 1, #text do h = (h * 31 + text:byte(i)) % 65521 end
  return h
end
"""


def script(keys, seed, number, outcome):
    """What shows the failure by itself. Without what needs the tests' plugins it needs no plugin path."""
    text = render(keys, 0)
    head = HEAD.format(what=outcome.what, seed=seed, number=number,
                       command=f"tests/experiments/experiments.py --seed {seed} --only {number}")
    if not any(word in text for word in ("kit.", '"plain"', '"turns"', '"norms"', '"backwards"')):
        head = head.replace(", kit", "").replace(', "kit"', "")
    if "hashed(" in text:
        head += HASHED
    verb = outcome.what.split(":")[0]
    verb = verb if verb in ("prove", "verify", "train") else "train"
    return f"{head}mw.{verb} {text}\n"
