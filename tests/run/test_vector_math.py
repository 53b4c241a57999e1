"""Vector functions choose their kernels before ranks call them: each one's first call, seen from a
library that stands before oneMKL's, is of one element, whichever functions a run needs."""
import os
import subprocess
import unittest

from cases import ProgramCase

# What ATen calls of oneMKL, each passed on and its first number of elements told.
CALLS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#define PASSED_ON(name, type) \\
  void name(const int count, const type* in, type* out, long long mode) { \\
    static atomic_int calls; \\
    if (atomic_fetch_add(&calls, 1) == 0) fprintf(stderr, "first " #name " of %d\\n", count); \\
    ((void (*)(int, const type*, type*, long long))dlsym(RTLD_NEXT, #name))(count, in, out, mode); \\
  }
#define BOTH(name) PASSED_ON(vms##name, float) PASSED_ON(vmd##name, double)
BOTH(Acos) BOTH(Asin) BOTH(Atan) BOTH(Cos) BOTH(Cosh) BOTH(Erf) BOTH(Erfc) BOTH(ErfInv) BOTH(Exp)
BOTH(Expm1) BOTH(Ln) BOTH(Log10) BOTH(Log1p) BOTH(Log2) BOTH(Sin) BOTH(Sinh) BOTH(Sqrt) BOTH(Tan)
BOTH(Tanh)
"""
SCRIPT = """local mw = require "meshwright"
local dp = mw.plugins "dp"
for _, ranks in ipairs { 1, 2 } do
  for _, precision in ipairs { "fp32", "fp64" } do
    mw.train { model = mw.gpt { layers = 1, hidden = 16, heads = 2, vocab = 1000 }, data = mw.text { "text.txt" }, sequence = 8,
               batch = 4, optimizer = mw.adamw { lr = 1e-3 }, precision = precision, plan = { dp(ranks) }, steps = 2 }
  end
end
"""


class VectorMath(ProgramCase):
    def test_first_calls_are_made_before_ranks_run(self):
        (self.folder / "calls.c").write_text(CALLS)
        (self.folder / "text.txt").write_text("some text of which there is enough " * 20)
        subprocess.run(["cc", "-shared", "-fPIC", "calls.c", "-o", "calls.so", "-ldl"], cwd=self.folder, check=True)
        done = self.call("run", self.write(SCRIPT), "--json", LD_PRELOAD=str(self.folder / "calls.so"))
        self.assertEqual(done.returncode, 0, done.stderr)
        first = dict(line.split(" of ") for line in done.stderr.splitlines() if line.startswith("first "))
        # libtorch of other CPUs has functions of its own.
        if os.uname().machine == "x86_64":
            self.assertLessEqual({"first vmsExp", "first vmsLn", "first vmdExp", "first vmdLn"}, set(first))
        self.assertEqual(set(first.values()) - {"1"}, set(), first)


if __name__ == "__main__":
    unittest.main(verbosity=2)
