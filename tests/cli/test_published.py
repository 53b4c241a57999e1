"""Published configurations resolve: parameters, ranks and axes as their reports say, in seconds."""

import time
import unittest

from pipeline_tools import SOURCE, PipelineCase

# Parameters as published, in billions; ranks; axes.
CONFIGURATIONS = {
    "mixtral-8x22b": (140.6, 256, {"pp": 4, "zero": 16, "tp": 4, "ep": 8}),
    "deepseek-v3": (671.0, 2048, {"pp": 16, "zero": 128, "ep": 64}),
}


class Published(PipelineCase):
    def test_plans(self):
        for name, (billions, ranks, axes) in CONFIGURATIONS.items():
            with self.subTest(name):
                start = time.monotonic()
                plan = self.only("plan", SOURCE / "scripts/published" / f"{name}.lua")
                seconds = time.monotonic() - start
                print(f"{name}: {plan['parameters'] / 1e9:.2f} B parameters, {plan['ranks']} ranks, {seconds:.1f} s")
                self.assertLess(abs(plan["parameters"] / 1e9 / billions - 1), 1e-3)
                self.assertEqual(plan["ranks"], ranks)
                self.assertLess(seconds, 20)

    def test_exact_parameters(self):
        """By the checkpoints' own tensors: DeepSeek-V3's with the bias of each router."""
        h, layers, ffn, vocab = 6144, 56, 16384, 32768
        attention = 2 * h * h + 2 * h * 1024
        mixtral = 2 * vocab * h + h + layers * (attention + 8 * 3 * h * ffn + 8 * h + 2 * h)
        h, layers, dense, vocab, heads = 7168, 61, 3, 129280, 128
        attention = (h * 1536 + 1536 + 1536 * heads * 192 + h * (512 + 64) + 512 + 512 * heads * 256 +
                     heads * 128 * h)
        routed = 257 * 3 * h * 2048 + 256 * h + 256
        deepseek = (2 * vocab * h + h + layers * (attention + 2 * h) + dense * 3 * h * 18432 +
                    (layers - dense) * routed)
        for name, count in (("mixtral-8x22b", mixtral), ("deepseek-v3", deepseek)):
            plan = self.only("plan", SOURCE / "scripts/published" / f"{name}.lua")
            self.assertEqual(plan["parameters"], count)


if __name__ == "__main__":
    unittest.main(verbosity=2)
