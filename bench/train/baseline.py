#!/usr/bin/env python3
"""The baseline of `meshwright bench train`: a Llama trained by stock PyTorch on CPU (gloo).

  python baseline.py --mix single ...
  TORCHRUN 4 baseline.py --mix ddp ...
  TORCHRUN 4 baseline.py --mix fsdp2+tp --tp 2 --sp ...
  TORCHRUN 4 baseline.py --mix pp --schedule 1F1B --microbatches 8 ...

with python -m torch.distributed.run --standalone --nproc-per-node for TORCHRUN. The mix is single,
ddp, zero1, fsdp2, ep, tp, pp, or one of ddp and fsdp2 joined with tp, pp or both by "+". Data
parallelism takes the ranks that tp and pp leave. Rank 0 prints one line of JSON.

Nothing that decides the losses depends on the mix:
  weights  each tensor is normal(0, 0.02) from a generator seeded with seed * 1000003 + crc32(name);
           norm weights are 1. A rank makes the whole tensors and keeps its shard.
  tokens   sequence g is step * batch + row. With --data it is the seq + 1 bytes of the file from
           offset (g * seq) % (size - seq - 1), each modulo vocab. Without it, token t is
           (start + t * stride) % vocab with start = (g * 2654435761 >> 8) % vocab and
           stride = 1 + g % 8.
  loss     the mean cross-entropy over the global batch; AdamW decays every tensor; nothing is
           clipped.
"""
import argparse
import contextlib
import datetime
import json
import os
import resource
import statistics
import sys
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started(pid):
    """The second on the boot clock at which a process started, to 10 ms."""
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")


def memory(pid, key, file="status"):
    """A line of /proc/PID/status or of smaps_rollup that is in kB, as MiB."""
    for line in open(f"/proc/{pid}/{file}"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.d = a.hidden // a.heads
        self.groups = a.heads // a.kv_heads
        self.q = nn.Linear(a.hidden, a.heads * self.d, bias=False)
        self.k = nn.Linear(a.hidden, a.kv_heads * self.d, bias=False)
        self.v = nn.Linear(a.hidden, a.kv_heads * self.d, bias=False)
        self.o = nn.Linear(a.heads * self.d, a.hidden, bias=False)
        self.rope = a.rope  # cos and sin of [seq, d], which all layers share; they are no parameters

    def rotate(self, x):
        cos, sin = (r.to(x.dtype) for r in self.rope)
        lo, hi = x.chunk(2, -1)
        return x * cos + torch.cat((-hi, lo), -1) * sin

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = self.rotate(q), self.rotate(k)
        if self.groups > 1:
            k, v = (t.repeat_interleave(self.groups, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.gate = nn.Linear(a.hidden, a.ffn, bias=False)
        self.up = nn.Linear(a.hidden, a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = in_splits, out_splits
        y = x.new_empty((sum(out_splits), x.shape[1]))
        dist.all_to_all_single(y, x.contiguous(), out_splits, in_splits)
        return y

    @staticmethod
    def backward(ctx, g):
        return AllToAll.apply(g, *ctx.splits), None, None


class Moe(nn.Module):
    """Each token chooses k experts, which lie on a.ep ranks. No token is dropped, and no loss balances them."""
    def __init__(self, a):
        super().__init__()
        self.n, self.k, self.ep, self.local = a.experts, a.topk, a.ep, a.experts // a.ep
        self.router = nn.Linear(a.hidden, a.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(self.local, a.ffn, a.hidden))
        self.up = nn.Parameter(torch.empty(self.local, a.ffn, a.hidden))
        self.down = nn.Parameter(torch.empty(self.local, a.hidden, a.ffn))

    def experts(self, x, counts):
        parts = x.split(counts)
        return torch.cat([F.linear(F.silu(F.linear(p, g)) * F.linear(p, u), d)
                          for p, g, u, d in zip(parts, self.gate, self.up, self.down)])

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weight, chosen = self.router(x).float().softmax(-1).topk(self.k, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).flatten()
        order = chosen.flatten().argsort(stable=True)
        token = order // self.k
        counts = chosen.flatten().bincount(minlength=self.n)
        y = x[token]
        if self.ep == 1:
            y = self.experts(y, counts.tolist())
        else:
            got = torch.empty_like(counts)
            dist.all_to_all_single(got, counts)
            send, recv = (c.view(self.ep, self.local).sum(1).tolist() for c in (counts, got))
            y = AllToAll.apply(y, recv, send)
            by_expert = torch.arange(self.local).repeat(self.ep).repeat_interleave(got).argsort(stable=True)
            y = self.experts(y[by_expert], got.view(self.ep, self.local).sum(0).tolist())
            y = AllToAll.apply(y[by_expert.argsort()], send, recv)
        y = torch.zeros_like(x).index_add(0, token, (y * weight[order, None]).to(x.dtype))
        return y.view(shape)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.recompute = a.recompute == "full"
        self.norm1, self.attn = nn.RMSNorm(a.hidden, eps=1e-5), Attention(a)
        self.norm2, self.mlp = nn.RMSNorm(a.hidden, eps=1e-5), Moe(a) if a.experts else Mlp(a)

    def run(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def forward(self, x):
        if self.recompute:
            return torch.utils.checkpoint.checkpoint(self.run, x, use_reentrant=False)
        return self.run(x)


class Decoder(nn.Module):
    """The layers from lo up to hi; the first part has the embedding and the last one the head."""
    def __init__(self, a, lo=0, hi=None):
        super().__init__()
        hi = a.layers if hi is None else hi
        self.embed = nn.Embedding(a.vocab, a.hidden) if lo == 0 else None
        self.layers = nn.ModuleDict({str(i): Block(a) for i in range(lo, hi)})
        self.norm = nn.RMSNorm(a.hidden, eps=1e-5) if hi == a.layers else None
        self.head = nn.Linear(a.hidden, a.vocab, bias=False) if hi == a.layers else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def build(a, lo=0, hi=None):
    with torch.device("meta"):
        model = Decoder(a, lo, hi)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.fill_(1)
                continue
            split = a.ep > 1 and p.dim() == 3  # experts in one tensor: all are made, ours are kept
            full = torch.empty(a.experts, *p.shape[1:]) if split else p
            g = torch.Generator().manual_seed(a.seed * 1000003 + zlib.crc32(name.encode()))
            full.normal_(0, 0.02, generator=g)
            if split:
                p.copy_(full[a.rank * p.shape[0]:(a.rank + 1) * p.shape[0]])
    return model


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


HF = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "norm1": "input_layernorm",
      "norm2": "post_attention_layernorm", "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj",
      "attn.v": "self_attn.v_proj", "attn.o": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj",
      "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj", "mlp.router": "block_sparse_moe.gate"}
EXPERT = {"mlp.gate": "w1", "mlp.up": "w3", "mlp.down": "w2"}


def hf_weights(model):
    """The weights by the names that Hugging Face gives to Llama, or to Mixtral where there are experts."""
    out = {}
    for name, p in model.named_parameters():
        p, part = p.detach(), name.removesuffix(".weight")
        if not part.startswith("layers."):
            out[HF[part] + ".weight"] = p
            continue
        _, i, part = part.split(".", 2)
        if p.dim() == 3:
            for e, w in enumerate(p):
                out[f"model.layers.{i}.block_sparse_moe.experts.{e}.{EXPERT[part]}.weight"] = w.contiguous()
        else:
            out[f"model.layers.{i}.{HF[part]}.weight"] = p
    return out


def make_batch(a, data, step):
    g = step * a.batch + torch.arange(a.batch)[:, None]
    t = torch.arange(a.seq + 1)
    if data is None:
        rows = (((g * 2654435761) >> 8) % a.vocab + t * (1 + g % 8)) % a.vocab
    else:
        rows = data[(g * a.seq) % (len(data) - a.seq - 1) + t].long() % a.vocab
    rows = rows.chunk(a.dp)[a.dp_rank]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def apply_tp(model, mesh, sp):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, parallelize_module)
    between = Shard(1) if sp else Replicate()  # the placement of the residual stream
    plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate())}
    if sp:
        plan["norm"] = SequenceParallel()
    for i in model.layers:
        p = f"layers.{i}."
        for n in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"):
            plan[p + n] = ColwiseParallel()
        for n in ("attn.o", "mlp.down"):
            plan[p + n] = RowwiseParallel(output_layouts=between)
        if sp:
            plan[p + "norm1"] = plan[p + "norm2"] = SequenceParallel()
            plan[p + "attn"] = plan[p + "mlp"] = PrepareModuleInput(
                input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan = {k: v for k, v in plan.items() if getattr(model, k.split(".")[0]) is not None}
    parallelize_module(model, mesh, plan, src_data_rank=None)  # every rank has made the whole weights


def apply_fsdp(model, mesh):
    from torch.distributed.fsdp import fully_shard
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def wrap(model, a, mesh):
    """Applies tp, then data parallelism, to a model or to a stage's part of it."""
    if a.tp > 1:
        apply_tp(model, mesh["tp"], a.sp)
    if a.data_kind == "fsdp2":
        apply_fsdp(model, mesh["dp"])
    elif a.data_kind in ("ddp", "zero1", "ep"):
        from torch.nn.parallel import DistributedDataParallel as DDP
        if a.tp > 1:
            from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
            _pre_dp_module_transform(model)
        if a.data_kind == "ep":
            DDP._set_params_and_buffers_to_ignore_for_model(
                model, [n for n, p in model.named_parameters() if p.dim() == 3])
        model = DDP(model, process_group=mesh["dp"].get_group() if mesh else None)
    return model


def make_optimizer(models, a):
    kw = dict(lr=a.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    params = [p for m in models for p in m.parameters()]
    if a.data_kind == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(params, torch.optim.AdamW, **kw)
    kinds = {}  # DTensors and plain tensors cannot share a fused update
    for p in params:
        kinds.setdefault(type(p.data), []).append(p)
    return torch.optim.AdamW([{"params": ps} for ps in kinds.values()], **kw)


def make_forward_backward(a, mesh):
    """The modules, and a function of inputs and targets that leaves gradients and returns the mean loss or None."""
    if a.pp == 1:
        model = wrap(build(a), a, mesh)
        if a.compile:
            model = torch.compile(model)
        def run(x, y):
            total = 0
            for i, (xm, ym) in enumerate(zip(x.chunk(a.microbatches), y.chunk(a.microbatches))):
                hold = hasattr(model, "no_sync") and i < a.microbatches - 1
                with model.no_sync() if hold else contextlib.nullcontext():
                    loss = loss_of(model(xm), ym) / a.microbatches
                    loss.backward()
                total = total + loss.detach()
            if a.data_kind == "ep":  # the experts' gradients are sums over all ranks' tokens, and are to be means
                for p in model.parameters():
                    if p.dim() == 3:
                        p.grad /= a.dp
            return total
        return [model], run

    from torch.distributed import pipelining as P
    from torch.distributed.pipelining import schedules as S
    cls = getattr(S, "Schedule" + a.schedule)
    many = issubclass(cls, S.PipelineScheduleMulti)
    count = a.pp * (a.chunks if many else 1)
    if a.schedule in ("ZBVZeroBubble", "DualPipeV"):
        mine = [a.pp_rank, count - 1 - a.pp_rank]
    else:
        mine = list(range(a.pp_rank, count, a.pp))
    per = a.layers // count
    assert per * count == a.layers, f"{a.layers} layers over {count} stages"
    parts = [wrap(build(a, i * per, (i + 1) * per), a, mesh) for i in mine]
    group = mesh["pp"].get_group()
    stages = [P.PipelineStage(m, i, count, torch.device("cpu"), group=group) for m, i in zip(parts, mine)]
    if a.no_p2p_warmup:  # the warm-up of a V sends from a rank to itself, which gloo refuses
        for stage in stages:
            stage._get_init_p2p_neighbors_ops = list
    schedule = cls(stages if many else stages[0], a.microbatches, loss_fn=loss_of)
    first, last = 0 in mine, count - 1 in mine
    def run(x, y):
        losses = []
        schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
        return torch.stack([l.detach() for l in losses]).mean() if last else None
    return parts, run


def parse():
    p = argparse.ArgumentParser()
    for name, value in dict(layers=4, hidden=256, heads=8, ffn=688, vocab=256, seq=128, batch=16, microbatches=1,
                            steps=10, warmup=2, seed=0, experts=0, topk=2, chunks=2, threads=0).items():
        p.add_argument("--" + name, type=int, default=value)
    for name in ("kv-heads", "tp", "pp"):
        p.add_argument("--" + name, type=int, default=0)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--mix", default="single")
    p.add_argument("--schedule", default="1F1B", help="as PyTorch names it: GPipe, InterleavedZeroBubble")
    p.add_argument("--recompute", choices=["none", "full"], default="none")
    p.add_argument("--data", help="a file that is read as bytes")
    p.add_argument("--save-weights", help="write the first weights to this file (safetensors) and stop")
    p.add_argument("--timeout", type=int, default=120, help="seconds that a collective may wait")
    for name in ("sp", "compile", "no-p2p-warmup"):
        p.add_argument("--" + name, action="store_true")
    return p.parse_args()


def resolve(a):
    """Sets each axis' ways, this rank's coordinates and the tables of the rotary embedding."""
    a.kv_heads = a.kv_heads or a.heads
    a.rank, a.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    kinds = set(a.mix.split("+"))
    a.data_kind = next(iter(kinds - {"tp", "pp"}), "none")
    a.tp = (a.tp or a.world // (a.pp or 1)) if "tp" in kinds else 1
    a.pp = (a.pp or a.world // a.tp) if "pp" in kinds else 1
    a.dp = a.world // (a.tp * a.pp)
    assert a.dp * a.tp * a.pp == a.world and (a.dp == 1 or a.data_kind != "none"), \
        f"{a.world} ranks do not fit tp {a.tp} and pp {a.pp} of the mix {a.mix}"
    a.ep = a.dp if a.data_kind == "ep" else 1
    a.dp_rank, a.pp_rank = a.rank // a.tp % a.dp, a.rank // (a.tp * a.dp)
    d = a.hidden // a.heads
    power = -torch.arange(0, d, 2).float() / d
    angle = torch.outer(torch.arange(a.seq).float(), 10000.0 ** power).repeat(1, 2)
    a.rope = angle.cos(), angle.sin()


def make_mesh(a):
    """The mesh of several ranks, where the mix needs one."""
    if a.world == 1:
        return None
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=a.timeout))
    if a.tp == 1 and a.pp == 1 and a.data_kind != "fsdp2":
        return None
    from torch.distributed.device_mesh import init_device_mesh
    return init_device_mesh("cpu", (a.pp, a.dp, a.tp), mesh_dim_names=("pp", "dp", "tp"))


def train(a, forward_backward, optimizer):
    """All steps; the losses, and the seconds and CPU seconds of each step."""
    data = None
    if a.data:  # mapped, not read: a copy in each rank would count as the trainer's memory
        data = torch.from_file(a.data, size=os.path.getsize(a.data), dtype=torch.uint8)
    losses, times, cpu = [], [], []
    for step in range(a.steps):
        x, y = make_batch(a, data, step)
        t0, c0 = clock(), time.process_time()
        losses.append(forward_backward(x, y))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(clock() - t0)
        cpu.append(time.process_time() - c0)
    return losses, times, cpu


def report(a, begin, losses, times, cpu):
    """Rank 0 prints what all ranks measured, as one line of JSON."""
    k = min(a.warmup, a.steps - 1)
    launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    mine = dict(step=statistics.median(times[k:]), cpu=statistics.median(cpu[k:]), first=times[0],
                launch=begin - started(launcher), pss=memory("self", "Pss", "smaps_rollup"),
                rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    has_loss = losses[0] is not None
    curve = torch.stack(losses).double() / (a.dp * a.tp) if has_loss else torch.zeros(a.steps, dtype=torch.double)
    every = [mine]
    if a.world > 1:
        # Data ranks have their own losses, tensor ranks the same one, and earlier stages none.
        dist.all_reduce(curve)
        every = [None] * a.world
        dist.all_gather_object(every, mine)
    if a.rank == 0:
        def most(key):
            return max(r[key] for r in every)

        def total(key):
            return sum(r[key] for r in every)

        out = dict(step_s=most("step"), cpu_s_per_step=total("cpu"), first_step_s=most("first"),
                   startup_from_launch_s=most("launch"), rss_sum_mib=total("rss"), pss_sum_mib=total("pss"),
                   launcher_rss_mib=memory(launcher, "VmHWM") if launcher != os.getpid() else 0,
                   losses=curve.tolist())
        print(json.dumps(out), flush=True)


def main():
    a = parse()
    if a.threads:
        torch.set_num_threads(a.threads)
    resolve(a)
    if a.save_weights:
        from safetensors.torch import save_file
        save_file(hf_weights(build(a)), a.save_weights)
        return
    models, forward_backward = make_forward_backward(a, make_mesh(a))
    optimizer = make_optimizer(models, a)
    begin = clock()
    report(a, begin, *train(a, forward_backward, optimizer))
    if a.world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # the threads of gloo now and then abort a process that is torn down


if __name__ == "__main__":
    main()
