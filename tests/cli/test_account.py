"""`account = true`: where the seconds of a step went. The lines add up to the step, agree with the
ledgers' books, name every product, and cost a run nothing but time."""
import collections
import os
import re
import unittest

import h5py

from cases import MODELS, ProgramCase

# Every form of parallelism, and several at once; ranks have one thread each.
HEAD = MODELS + """local function account(name, plan, model, more)
  local e = { model = models[model or "llama"], data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8, microbatch = 2,
              optimizer = mw.adamw { lr = 1e-3 }, steps = 8, trace = { 3, 4, 5, 6, 7 }, threads = 1, name = name,
              log = name .. ".h5", account = true }
  for key, value in pairs(more or {}) do e[key] = value end
  return mw.train(e)
end
"""
MIXES = {"one": "{}", "dp": "{ dp(2) }", "zero": "{ zero { 2, stage = 3 } }", "tp": "{ tp(2) }", "sp": "{ sp(2) }",
         "megatron_sp": "{ tp(2), sp() }", "pp": "{ pp { 2, schedule = '1f1b' } }", "ep": "{ dp(2), ep(2) }, 'moe'",
         "mix": "{ pp(2), tp(2) }", "zero1": "{ zero { 2, stage = 1 } }"}
TRACED = range(3, 43)
SUMS = f"{{ steps = {TRACED.stop + 1}, trace = {{ {', '.join(map(str, TRACED))} }} }}"
PRODUCTS = {"linear", "expert_linear", "attention"}
text = bytes.decode


class Account(ProgramCase):
    def of_rank(self, rows, rank, inside=True):
        return [row for row in rows if row["rank"] == rank and (row["part"] != b"beside") == inside]

    def check_sums(self, file, name):
        """Rank 0's lines are the step, by the same readings of the clock, and no line is less than nothing. Where ranks take turns, a step goes from one
        meeting of all ranks to the next, and rank 0 may come to its core some time after it. In sums over successive
        steps all such delays but two cancel: one before the first step's begin, and one in the step after the last."""
        rows, steps = file["account"][:], {row["step"]: row["seconds"] for row in file["steps"][:]}
        self.assertEqual(set(rows["step"]), set(TRACED), name)
        self.assertGreaterEqual(rows["seconds"].min(), -1e-9, name)
        lines = {step: sum(row["seconds"] for row in self.of_rank(rows[rows["step"] == step], 0)) for step in TRACED}
        if max(rows["rank"]) < len(os.sched_getaffinity(0)):
            for step in TRACED:
                self.assertAlmostEqual(lines[step] / steps[step], 1, 9, (name, step))
        beyond = sum(lines.values()) - sum(steps[step] for step in TRACED)
        self.assertLess(-1.02 * steps[TRACED.start], beyond, name)
        self.assertLess(beyond, 1.02 * steps[TRACED.stop], name)

    def check_books(self, file, name):
        """Calls and operations of products, and seconds of transfers, are those of the ledgers."""
        for step in (4, 7):
            rows = file["account"][:]
            rows = rows[rows["step"] == step]
            work, sent = file["work"][:], file["communication"][:]
            for rank in sorted({rank for rank in rows["rank"] if rank >= 0}):
                own = self.of_rank(rows, rank)
                calls, flops = collections.Counter(), collections.Counter()
                for row in own:
                    if row["part"] == b"products":
                        self.assertTrue(row["shape"], row)
                        self.assertGreater(row["limit_seconds"], 0, (name, row))
                        calls[text(row["name"])] += row["calls"]
                        if row["name"].startswith(b"linear"):
                            self.assertEqual(row["kernels"], row["calls"], row)
                        flops[text(row["name"])] += row["flops"]
                booked = [row for row in work[(work["step"] == step) & (work["rank"] == rank)] if text(row["op"]) in PRODUCTS]
                self.assertEqual(dict(calls), {f"{text(row['op'])} {text(row['piece'])}": row["calls"] for row in booked}, name)
                for row in booked:
                    done = flops[f"{text(row['op'])} {text(row['piece'])}"]
                    self.assertAlmostEqual(done / row["flops"], 1, delta=0.3 if text(row["op"]) == "expert_linear" else 1e-9)
                waited = sum(row["seconds"] for row in own if row["part"] in (b"copies", b"waits") and b"step's end" not in row["name"])
                self.assertAlmostEqual(waited, sent[(sent["step"] == step) & (sent["rank"] == rank)]["seconds"].sum(), 6, name)

    def test_lines_add_up_and_agree_with_the_books(self):
        self.all("run", self.write(HEAD + "".join(
            f'account("{name}", {plan}{"" if "moe" in plan else ", nil"}, {SUMS})\n' for name, plan in MIXES.items())))
        for name in MIXES:
            with self.subTest(name), h5py.File(self.folder / f"{name}.h5") as file:
                self.check_sums(file, name)
                self.check_books(file, name)
                parts = set(file["account"][:]["part"])
                self.assertLessEqual({b"products", b"memory", b"engine", b"report"}, parts)
                self.assertEqual(b"copies" in parts, name != "one")
                rates = file["bandwidth"][:]
                self.assertGreater(rates["bytes_per_second"].min(), 0)
                self.assertEqual(set(rates["kind"]), {b"copy", b"triad"})
        result = self.only("runs", "show", "mix.h5", "--where")
        self.assertEqual((result["kind"], result["ranks"]), ("account", 4))
        self.assertAlmostEqual(sum(part["seconds"] for part in result["parts"]), result["together_seconds"], 9)
        self.assertGreater(result["limit_seconds"], result["products_alone_seconds"])
        for part in result["parts"]:
            self.assertLessEqual(part["fastest_seconds"], part["seconds"] + 1e-12)
            self.assertGreaterEqual(part["slowest_seconds"], part["seconds"] - 1e-12)
        shown = self.call("runs", "show", "mix.h5", "--where").stdout
        self.assertGreater(result["kernels"], sum(row["kernels"] for row in result["rows"] if row["part"] == "products"))
        for word in ("kernels  ", "products", "memory-bound ops", "collectives' copies", "waits for other ranks", "the engine", "together", "limit "):
            self.assertIn(word, shown)
        shapes = {row["shape"] for row in result["rows"] if row["name"] == "linear forward"}
        self.assertIn("2x16x24, 2x6x24", shapes)  # queries of two of four heads: the others are the other rank's

    def test_what_watches_and_records_has_its_lines(self):
        self.all("run", self.write(HEAD + """account("watched", { dp(2) }, nil, { check = true, trace = { 3, 5 },
          evaluate = { data = mw.synthetic {}, every = 2, batches = 1 }, checkpoint = { path = "points", every = 3 } })"""))
        with h5py.File(self.folder / "watched.h5") as file:
            rows = file["account"][:]
        for step in (3, 5):
            of = rows[rows["step"] == step]
            for rank in (0, 1):
                self.assertGreater(sum(row["seconds"] for row in self.of_rank(of, rank) if row["part"] == b"check"), 0)
                beside = {text(row["name"]) for row in self.of_rank(of, rank, inside=False)}
                self.assertLessEqual({"evaluation", "checkpoint"}, beside)
            self.assertLessEqual({"log, in its own thread"}, {text(row["name"]) for row in self.of_rank(of, -1, inside=False)})
        self.assertGreaterEqual(rows["seconds"].min(), -1e-9)

    def test_it_changes_no_number(self):
        with_it, without = self.all("run", self.write(HEAD + """account("with", { zero { 2, stage = 2 } })
          account("without", { zero { 2, stage = 2 } }, nil, { account = false })"""))
        self.sent_as_predicted(with_it)
        for key in ("losses", "grad_norms", "peak_bytes", "memory", "hash"):
            self.assertEqual(with_it[key], without[key], key)
        self.assertEqual(with_it["peak_bytes"], with_it["predicted"]["peak_bytes"])
        with h5py.File(self.folder / "without.h5") as file:
            self.assertEqual((len(file["account"]), len(file["bandwidth"])), (0, 0))
        self.refused(2, "account.missing", "runs", "show", "without.h5", "--where")
        self.assertIn("runs show with.h5 --where", self.call("runs", "show", "with.h5").stdout)
        self.assertNotIn("--where", self.call("runs", "show", "without.h5").stdout)
        for table in self.call("runs", "show", "with.h5", "--where").stdout.split("\n\n"):
            heads = re.split(r"  +", table.split("\n")[0].strip())
            self.assertEqual(len(heads), len(set(heads)), heads)

    def test_what_it_needs(self):
        self.refused(2, "option.value account", "run", self.write(HEAD + 'account("a", { dp(2) }, nil, { trace = {} })'))
        self.refused(2, "option.needs account", "run", self.write(HEAD + 'account("a", { dp(2) })'), "--set", "log=nil")


if __name__ == "__main__":
    unittest.main()
