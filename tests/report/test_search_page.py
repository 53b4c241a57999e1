"""`search SCRIPT --html` and `--as`: the page read as data and looked at in a browser, and plans
as flags of other software."""
import tomllib
import unittest

from browser import Browser, require_chromium
from cases import ProgramCase
from test_report import Data

SCRIPT = """\
local mw = require "meshwright"
mw.search {
  model = mw.llama { layers = 16, hidden = 2048, heads = 32, ffn = 5632, vocab = 32000 }, sequence = 2048, batch = 64,
  precision = "bf16", optimizer = mw.adamw { lr = 1e-4 }, cluster = mw.cluster("dgx-h100", { nodes = 1 }), best = 2,
  checked = 8, %s
}
"""
STAGES = 'strategies = { "pp", "zero", "tp", "sp" }, schedules = { "interleaved" }, microbatch = 1, recompute = "full"'


class SearchPage(ProgramCase):
    def found(self, keys, *more):
        return self.only("search", self.write(SCRIPT % keys), *more)

    def test_the_page(self):
        require_chromium()
        found = self.found('schedules = { "1f1b" }, stack = mw.stack "megatron-core"', "--html", "search.html")
        path = self.folder / "search.html"
        search, = Data(path.read_text()).data["searches"]
        fits = [one for one in found["checked"] if one["fits"]]
        self.assertEqual([(p["plan"], p["microbatch"], p["bytes"]) for p in search["plans"]],
                         [(p["plan"], p["microbatch"], p["predicted"]["peak_bytes"]) for p in fits])
        self.assertEqual(sum(p["first"] for p in search["plans"]), 1)
        self.assertEqual(sum(p["edge"] for p in search["plans"]), len(found["edge"]))
        for one in (p for p in search["plans"] if p["edge"]):
            beaten = [p for p in search["plans"] if p["seconds"] < one["seconds"] and p["bytes"] < one["bytes"] and p["room"] in ("", "nearly full")]
            self.assertEqual(beaten, [])
        with Browser() as browser:
            for width, dark in ((1280, False), (390, True)):
                browser.open(path, width, dark=dark)
                self.assertEqual(browser.complaints(), [])
                self.assertEqual(browser.requested(), [path.as_uri()])
                self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), width)
                self.assertEqual(browser.value("document.body.dataset.drawn"), "1")

    def test_as_flags_of_megatron(self):
        found = self.found(STAGES, "--as", "megatron")
        best = found["best"][0]
        forms = {entry["plugin"]: entry for entry in best["entries"]}
        flags = best["megatron"]["text"].replace("\\\n", "").split()
        value = {flag: flags[i + 1] for i, flag in enumerate(flags[:-1])}
        self.assertEqual(int(value["--tensor-model-parallel-size"]), forms.get("tp", {"ways": 1})["ways"])
        self.assertEqual("--sequence-parallel" in flags, "sp" in forms)
        self.assertEqual("--pipeline-model-parallel-size" in flags, "pp" in forms)
        if "pp" in forms:
            self.assertEqual(len(best["layers"]), forms["pp"]["ways"] * forms["pp"]["chunks"])
            if len(set(best["layers"])) == 1:
                self.assertEqual(int(value["--num-layers-per-virtual-pipeline-stage"]), best["layers"][0])
            else:
                self.assertEqual(value["--pipeline-model-parallel-layout"].count("|"), len(best["layers"]) - 1)
        self.assertEqual("--use-distributed-optimizer" in flags, "zero" in forms)
        self.assertEqual("--use-megatron-fsdp" in flags, forms.get("zero", {}).get("stage", 1) > 1)
        self.assertEqual((value["--micro-batch-size"], value["--global-batch-size"], value["--num-layers"]), ("1", "64", "16"))
        self.assertEqual(value["--recompute-granularity"], "full")
        shown = self.call("search", self.folder / "script.lua", "--as", "megatron").stdout
        self.assertIn(best["megatron"]["text"].splitlines()[0], shown)

    def test_as_a_config_of_torchtitan(self):
        found = self.found('strategies = { "zero", "tp", "sp" }, stack = mw.stack "fsdp2", recompute = "selective"', "--as", "torchtitan")
        for best in found["best"]:
            forms = {entry["plugin"]: entry for entry in best["entries"]}
            config = tomllib.loads(best["torchtitan"]["text"])
            parallelism = config["parallelism"]
            self.assertEqual(parallelism["tensor_parallel_degree"], forms.get("tp", {"ways": 1})["ways"])
            zero = forms["zero"]
            self.assertEqual(parallelism["data_parallel_shard_degree"] * parallelism["data_parallel_replicate_degree"], zero["ways"])
            self.assertEqual(parallelism["data_parallel_replicate_degree"], zero.get("replicas", 1))
            self.assertEqual(config["training"], {"local_batch_size": best["microbatch"], "global_batch_size": 64, "seq_len": 2048,
                                                  "mixed_precision_param": "bfloat16"})
            self.assertEqual(config["activation_checkpoint"]["mode"], "selective")
            self.assertTrue(any("flavor" in one for one in best["torchtitan"]["cannot"]))
        other = self.found('strategies = { "zero" }, schedules = {}', "--as", "torchtitan")["best"]
        for one in other:
            stage = one["entries"][0].get("stage", 1)
            self.assertEqual(any("fully_shard" in each for each in one["torchtitan"]["cannot"]), stage < 3)
        self.refused(2, "usage.option", "search", self.write(SCRIPT % STAGES), "--as", "deepspeed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
