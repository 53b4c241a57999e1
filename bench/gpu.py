#!/usr/bin/env python3
"""Tokens/s of one rank on one GPU beside stock PyTorch and a matrix product, in one run.

Both train a Llama in bf16 with masters and states of AdamW in fp32, the same sizes, eagerly, and
take turns; each reports the median of its own steps. PyTorch's is written here: fused kernels
where it has them (scaled dot product attention, rms_norm, fused AdamW). The limit is a product of
two matrices of 8192 x 8192 in bf16. A cluster's prediction of the step stands beside, if named:

    bench/gpu.py --program build-cuda/bin/meshwright --cluster dgx-h100 --json rows.json"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

SIZES = {
    "134m": dict(layers=12, hidden=768, heads=12, ffn=2048, vocab=32000, sequence=1024, batch=16),
    "1b": dict(layers=24, hidden=2048, heads=16, ffn=5504, vocab=32000, sequence=2048, batch=4),
    "wide": dict(layers=2, hidden=8192, heads=64, ffn=22016, vocab=32000, sequence=4096, batch=1),
}
SCRIPT = """\
local mw = require "meshwright"
mw.train {{
  model = mw.llama {{ layers = {layers}, hidden = {hidden}, heads = {heads}, kv_heads = {heads}, ffn = {ffn},
                     vocab = {vocab} }},
  data = mw.synthetic {{}}, sequence = {sequence}, batch = {batch}, plan = {{}}, precision = "bf16",
  optimizer = mw.adamw {{ lr = 1e-4, clip = 1 }}, steps = {steps}, device = "cuda",
}}
"""


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        h, f = size["hidden"], size["ffn"]
        self.heads = size["heads"]
        self.qkv, self.out = torch.nn.Linear(h, 3 * h, bias=False), torch.nn.Linear(h, h, bias=False)
        self.up, self.down = torch.nn.Linear(h, 2 * f, bias=False), torch.nn.Linear(f, h, bias=False)
        self.first, self.second = (torch.nn.Parameter(torch.ones(h)) for _ in range(2))

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        qkv = self.qkv(F.rms_norm(x, (h,), self.first)).view(b, s, 3, self.heads, -1)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
        gate, up = self.up(F.rms_norm(x, (h,), self.second)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Model(torch.nn.Module):
    def __init__(self, size, block=Block):
        super().__init__()
        h = size["hidden"]
        self.embedding = torch.nn.Embedding(size["vocab"], h)
        self.blocks = torch.nn.ModuleList(block(size) for _ in range(size["layers"]))
        self.norm = torch.nn.Parameter(torch.ones(h))
        self.head = torch.nn.Linear(h, size["vocab"], bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(F.rms_norm(x, x.shape[-1:], self.norm))


def median_of_torch(size, steps):
    """Seconds of a step, and the most bytes that tensors took."""
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        model = Model(size).to(torch.bfloat16)
        width = size["hidden"] // size["heads"]
        angle = torch.outer(torch.arange(size["sequence"]), 1e4 ** (-torch.arange(0, width, 2) / width))
        cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
        tokens = torch.randint(size["vocab"], (size["batch"], size["sequence"] + 1))
    parameters = list(model.parameters())
    masters = [p.detach().float() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        logits = model(tokens[:, :-1], cos, sin)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for master, p in zip(masters, parameters):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)
        model.zero_grad(set_to_none=True)
        loss.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[steps // 3:]), torch.cuda.max_memory_allocated()


def product_rate():
    """FLOP/s of a product of two matrices in bf16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / (time.perf_counter() - start)


def ours(program, verb, size, steps, *more):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "script.lua"
        script.write_text(SCRIPT.format(**size, steps=steps))
        done = subprocess.run([program, verb, script, "--json", "--quiet", *more], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {verb} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build-cuda/bin/meshwright")
    parser.add_argument("--sizes", default=",".join(SIZES), help="some of " + ", ".join(SIZES))
    parser.add_argument("--steps", type=int, default=15, help="steps of a turn")
    parser.add_argument("--turns", type=int, default=2, help="turns of each of the two programs")
    parser.add_argument("--cluster", help="for which the step is predicted too: dgx-h100")
    parser.add_argument("--json", help="the file that the rows are written to")
    arguments = parser.parse_args()
    program = str(pathlib.Path(arguments.program).resolve())
    rate = product_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: a product of matrices runs at {rate / 1e12:.0f} TFLOP/s")
    rows = []
    for name in arguments.sizes.split(","):
        size, theirs, mine = SIZES[name], [], []
        for _ in range(arguments.turns):
            theirs.append(median_of_torch(size, arguments.steps))
            torch.cuda.empty_cache()
            mine.append(ours(program, "run", size, arguments.steps))
        seconds, baseline = (statistics.median(x) for x in ([r["step_seconds"] for r in mine], [t[0] for t in theirs]))
        row = dict(size=name, step_seconds=seconds, torch_step_seconds=baseline, ratio=baseline / seconds,
                   peak_bytes=mine[-1]["peak_bytes"], predicted_peak_bytes=mine[-1]["predicted"]["peak_bytes"],
                   torch_peak_bytes=theirs[-1][1], product_flops=rate)
        if arguments.cluster:
            plan = ours(program, "plan", size, arguments.steps, "--cluster", arguments.cluster, "--nodes", "1",
                        "--stack", "meshwright")
            row.update(predicted_step_seconds=plan["step_seconds"], cluster_peak_bytes=plan["peak_bytes"])
            row["of_product"] = plan["hardware_flops_per_step"] / seconds / rate
        rows.append(row)
        print(json.dumps(row), flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
