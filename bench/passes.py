#!/usr/bin/env python3
"""Kernels and passes over memory of a step beside those of compiled PyTorch; needs no GPU.

Both train a Llama in bf16 with the same products. torch.compile generates code for forward and
backward, and its scheduler says which kernels there are and what each reads and writes; the plan
says the same of Meshwright. Update and gradient norm are left out, which PyTorch does not compile.

The code is that for CPUs, whose scheduler joins ops as that for GPUs does but in small things. The
table of rotary angles is a part of Meshwright's step, and given to PyTorch's. It needs a Python
with PyTorch, as that of the tests:

    ~/.cache/meshwright/venv/bin/python bench/passes.py --program build/bin/meshwright --layers 2"""

import argparse
import json
import pathlib

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch._inductor.scheduler import Scheduler

import gpu
from gpu import rotated

SIZE = dict(layers=2, hidden=768, heads=12, ffn=2048, vocab=32000, sequence=1024, batch=2)
LEFT_OUT = ("update", "gradient norm", "copy", "load", "seed")  # PyTorch compiles none of these


def linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs, bias=False)


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        h, f = size["hidden"], size["ffn"]
        self.heads = size["heads"]
        self.q, self.k, self.v, self.o = (linear(h, h) for _ in range(4))
        self.gate, self.up, self.down = linear(h, f), linear(h, f), linear(f, h)
        self.first, self.second = (torch.nn.Parameter(torch.ones(h)) for _ in range(2))

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        y = F.rms_norm(x, (h,), self.first)
        q, k, v = (part(y).view(b, s, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, h))
        y = F.rms_norm(x, (h,), self.second)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def kind_of_theirs(node):
    kernel = getattr(node.node, "python_kernel_name", None) or ""
    if "dot_product" in kernel:
        return "attention"
    return "products" if "mm" in kernel else "memory-bound"


def compiled(size):
    """By kind: the kernels of forward and backward, and the bytes that they read and write."""
    counts = {kind: [0, 0] for kind in ("products", "attention", "memory-bound")}
    generate = Scheduler.codegen

    def counted(scheduler):
        for node in scheduler.nodes:
            if type(node).__name__ == "NopKernelSchedulerNode" or type(node.node).__name__ == "MultiOutput":
                continue  # nothing runs
            count = counts[kind_of_theirs(node)]
            count[0] += 1
            count[1] += node.get_read_write_buffers_sizes()
        return generate(scheduler)

    Scheduler.codegen = counted
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.compile_threads = 1
    model = gpu.Model(size, Block).to(torch.bfloat16)
    width = size["hidden"] // size["heads"]
    angle = torch.outer(torch.arange(size["sequence"]), 1e4 ** (-torch.arange(0, width, 2) / width))
    tokens = torch.randint(size["vocab"], (size["batch"], size["sequence"] + 1))

    def loss(tokens, labels, cos, sin):
        return F.cross_entropy(model(tokens, cos, sin).flatten(0, 1).float(), labels.flatten())

    torch.compile(loss)(tokens[:, :-1], tokens[:, 1:], angle.cos().bfloat16(), angle.sin().bfloat16()).backward()
    Scheduler.codegen = generate
    return counts


def planned(program, size):
    counts = {kind: [0, 0] for kind in ("products", "attention", "memory-bound")}
    for row in gpu.ours(program, "plan", size, steps=1)["kernels"][0]["rows"]:
        if row["name"] in LEFT_OUT:
            continue
        op = row["name"].split()[0]
        count = counts["products" if op == "linear" else "attention" if op == "attention" else "memory-bound"]
        count[0] += row["kernels"]
        count[1] += row["bytes"]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/meshwright")
    for name, value in SIZE.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    size = {name: getattr(arguments, name) for name in SIZE}
    ours, theirs = planned(str(pathlib.Path(arguments.program).resolve()), size), compiled(size)
    residual = 2 * size["batch"] * size["sequence"] * size["hidden"]  # bytes of a layer's input
    rows = {}
    for kind in [*ours, "all"]:
        one, other = ([sum(column) for column in zip(*c.values())] if kind == "all" else c[kind] for c in (ours, theirs))
        rows[kind] = dict(kernels=one[0], torch_kernels=other[0], kernels_ratio=one[0] / other[0], bytes=one[1],
                          torch_bytes=other[1], bytes_ratio=one[1] / other[1])
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"torch {torch.__version__}; passes are over {residual / 2**20:.1f} MiB, a layer's input\n")
    print(f"{'':14}{'kernels':>9}{'compiled':>10}{'ratio':>8}{'passes':>10}{'compiled':>10}{'ratio':>8}")
    for kind, row in rows.items():
        print(f"{kind:14}{row['kernels']:>9}{row['torch_kernels']:>10}{row['kernels_ratio']:>8.2f}"
              f"{row['bytes'] / residual:>10.1f}{row['torch_bytes'] / residual:>10.1f}{row['bytes_ratio']:>8.2f}")


if __name__ == "__main__":
    main()
