"""20 fp32 steps give the losses of a stock PyTorch trainer: same weights, tokens and AdamW."""
# label: parity

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import safetensors.numpy

import peer

BIN = os.environ["MESHWRIGHT_BIN"]
BOUND = 1e-5  # relative; about 2e-7 is seen, and printed
MIXES = ["{}", "{ dp(2) }", "{ tp(2) }", "{ dp(2), tp(2) }"]

SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
for _, mix in ipairs { %(mixes)s } do
  local copies = 1
  for _, form in ipairs(mix) do if form.plugin == "dp" then copies = copies * form.ways end end
  mw.train {
    model = mw.llama { %(model)s },
    data = mw.text { "text.txt", sequence = %(sequence)d, order = "sequential" },
    plan = mix,
    batch = %(batch)d,
    microbatch = %(batch)d // %(microbatches)d // copies,
    weights = "weights.safetensors",
    optimizer = mw.adamw { lr = %(lr)g },
    precision = "fp32",
    steps = %(steps)d,
  }
end
"""


class PeerLosses(unittest.TestCase):
    def train(self, name):
        """The configuration's losses: the peer's, and ours for each of the mixes."""
        c = peer.configurations()[name]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text.txt").write_bytes(peer.text())
            safetensors.numpy.save_file(peer.weights(c["model"]), folder / "weights.safetensors")
            keys = {**c, "mixes": ", ".join(MIXES),
                    "model": ", ".join(f"{key} = {value}" for key, value in c["model"].items())}
            (folder / "script.lua").write_text(SCRIPT % keys)
            done = subprocess.run([BIN, "run", "script.lua", "--json"], cwd=folder, capture_output=True,
                                  text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return c["losses"], [json.loads(line) for line in done.stdout.splitlines()]

    def check(self, name):
        theirs, runs = self.train(name)
        self.assertEqual([run["ranks"] for run in runs], [1, 2, 2, 4])
        self.assertLess(theirs[-1], 0.8 * theirs[0])  # it did learn: a frozen model would prove little
        for mix, run in zip(MIXES, runs):
            with self.subTest(mix=mix):
                ours = run["losses"]
                self.assertEqual(len(ours), len(theirs))
                worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
                print(f"{name} {mix}: losses differ by {worst:.1e} at most")
                self.assertLessEqual(worst, BOUND)

    def test_all_keys(self):
        self.check("mha")

    def test_grouped_keys_and_microbatches(self):
        self.check("gqa")


if __name__ == "__main__":
    unittest.main(verbosity=2)
