"""Draws random experiments, which are always the same for a seed and a number.

Sizes are tiny, and numbers are drawn such that most experiments can be planned. Each leaves most
features out (swarm testing, Groce et al. 2012), so that those that are left meet more often."""

import random

from lua_tree import Call, Raw, Table
from schedules import random_schedule
from strategies import own_directives, own_pass, own_strategy

MOST_RANKS = 8
LENDING = ("data", "model", "sequence")  # roles whose ranks ep borrows
FEATURES = {  # name: how often it is there
    "pp": 0.4, "dp": 0.35, "zero": 0.4, "tp": 0.45, "sp": 0.3, "sp on tp": 0.5, "ep": 0.6, "own": 0.35, "coshard": 0.12,
    "pass": 0.15, "directives": 0.15, "recompute": 0.3, "offload": 0.2, "microbatch": 0.6, "precision": 0.4, "odd": 0.3,
    "schedule": 0.2, "evaluate": 0.08, "check": 0.3, "steps": 0.5, "text": 0.35, "pair": 0.4, "hook": 0.3, "shape": 0.12,
    "documents": 0.5, "masked": 0.3, "diloco": 0.15}
BLOCKS = {
    "frozen first": "function(x, n) x = x + x:rms_norm { frozen = n == 1 }:attention { frozen = n == 1 } return x + x:rms_norm():mlp { frozen = n == 1 } end",
    "frozen beside": 'function(x) local h = x:rms_norm { frozen = true } x = x + h:mlp { frozen = true } + h:linear { "ffn", name = "a" }:linear "hidden" '
                     'return x + x:rms_norm():attention { frozen = true } end',
    "drawn": 'function(x) x = x + x:rms_norm():attention():dropout(0.2):drop_path(0.3) return x + x:rms_norm():mlp():noise(0.1) end',
    "side by side": "function(x) local h = x:rms_norm() return x + h:attention() + h:mlp() end",
    "layers that differ": 'function(x, n) if n % 2 == 0 then return x + x:rms_norm():attention() end '
                          'return x + x:layer_norm():mlp { act = "gelu", bias = true } end',
    "narrow": 'function(x, n) x = x + x:rms_norm():attention { kv_heads = "one" } x = x + x:rms_norm():attention() '
              'return x + x:rms_norm():mlp "narrow" + x:rms_norm():mlp() end',
    "in parts": 'function(x) local h = x:rms_norm():linear { to = "ffn", name = "up", bias = true } '
                'return x + h:gelu():linear { to = "hidden", name = "down" } + x:rms_norm():attention { bias = true } end'}

SCALED = """mw.update { lr = 1e-2, states = { "m" }, step = function(p, g, s, t)
  s.m = 0.9 * s.m + g
  local size = (s.m * s.m):sum():sqrt():max(1e-9)
  return p - t.lr * (p * p):mean():sqrt() / size * s.m end }"""
FACTORED = """mw.update { lr = 1e-2, states = { rows = "rows", columns = "columns" }, step = function(p, g, s, t)
  s.rows = 0.9 * s.rows + 0.1 * (g * g):mean("columns")
  s.columns = 0.9 * s.columns + 0.1 * (g * g):mean("rows")
  local u = g * (s.rows * s.columns / s.rows:mean("matrix"):max(1e-12)):max(1e-9):rsqrt()
  return p - t.lr / (u * u):mean():sqrt():max(1) * u end }"""


class Maker:
    def __init__(self, seed, number):
        self.chance = random.Random(f"{seed}/{number}")
        self.number = number
        self.on = {name for name, share in FEATURES.items() if self.chance.random() < share}
        self.ranks = self.parts = 1     # parts: ranks that each have samples of their own
        self.axes, self.roles, self.own, self.forms = [], [], [], []
        self.stages = self.chunks = 1
        self.groups = self.hides = False
        self.ep_ways, self.every = 2, 1
        dense, sparse = ("llama", "llama", "llama", "gpt", "composed", "composed"), ("moe", "moe", "latent")
        self.kind = self.one(*(sparse if "ep" in self.on else dense))
        self.experts = self.kind in ("moe", "latent")
        self.pp_options()
        vstages = self.stages * self.chunks
        self.layers = self.one(*range(max(1, vstages - 1), vstages + 2)) if vstages > 1 else self.one(1, 2, 2, 3)

    def often(self, share):
        return self.chance.random() < share

    def one(self, *list):
        return self.chance.choice(list)

    # Pipelines ---------------------------------------------------------------------------------

    def pp_options(self):
        if "pp" not in self.on:
            return
        self.stages = self.one(2, 2, 2, 3, 4)
        self.schedule = "text" if "text" in self.on else self.one("gpipe", "1f1b", "1f1b", "interleaved", "looped-bfs", "zb-h1",
                                                                  "zb-h2", "zbv", "v-half", "v-min", "dualpipev")
        if self.schedule in ("interleaved", "looped-bfs", "zbv", "v-half", "v-min", "dualpipev") or self.schedule == "text" and self.often(0.4):
            self.chunks = 2

    def pp(self):
        self.ranks *= self.stages
        self.axes.append("pp")
        self.roles.append(("layers", self.stages))
        made = Table(self.stages)
        count = self.microbatches
        if self.schedule == "text":
            rows, self.groups = random_schedule(self.chance, self.stages, self.chunks, count, "pair" in self.on)
            listed = ", ".join(f'"{row}"' for row in rows)
            made.put("schedule", Raw(f'mw.schedule("mine", function() return {{ {listed} }} end)'))
        elif "pair" in self.on and self.schedule in ("1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "v-min"):
            made.put("schedule", Table(kind=self.schedule, pair=True))
            self.groups = True
        else:
            made.put("schedule", self.schedule)
            self.groups = self.schedule == "dualpipev"
        if self.chunks > 1 and self.schedule in ("interleaved", "looped-bfs", "text"):
            made.put("chunks", self.chunks)
        if self.often(0.3):
            made.put("layout", self.layout())
        if self.groups and self.often(0.6):
            made.put("weave", self.weave())
        return Call("pp", made)

    def layout(self):
        vstages = self.stages * self.chunks
        cuts = sorted(self.chance.randint(0, self.layers) for _ in range(vstages - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, self.layers])]
        return "even" if 0 in sizes[1:-1] or self.often(0.3) else Table(*sizes)

    def weave(self):
        self.hides = self.often(0.2)
        if self.hides:
            return "hide"
        return self.one(
            "switch", "turns", Table(kind="switch", axes=Table(self.one(*self.axes))),
            Raw("mw.weave(function(a, b) b:rest() a:rest() end)"),
            Raw("mw.weave(function(...) local lanes = { ... } for n = #lanes, 1, -1 do local l = lanes[n] "
                "if l:has { through = 'wait' } then l:take { through = 'wait' } end end end)"),
            Raw("mw.weave(function(a, b) for al, bl in mw.zip(a:layers(), b:layers()) do "
                "if bl:has { through = 'start', last = true } then bl:take { through = 'start', last = true } end "
                "al:rest() bl:rest() end end)"))

    # Strategies --------------------------------------------------------------------------------

    def ways(self, *choices):
        fitting = [ways for ways in choices if self.ranks * ways <= MOST_RANKS]
        return self.one(*fitting) if fitting else 1

    def axis(self, name, role, ways):
        self.ranks *= ways
        self.axes.append(name)
        self.roles.append((role, ways))
        if role == "data":
            self.parts *= ways

    def dp(self):
        ways = self.ways(2, 2, 2, 3, 4)
        self.axis("dp", "data", ways)
        made = Table(ways)
        if self.often(0.4):
            made.put("bucket", self.one(64, 256, 1024, "4KiB"))
        if self.often(0.2):
            made.put("overlap", False)
        if "zero" in self.on and self.often(0.7):
            return Call("dp", made)
        if "hook" in self.on:
            made.put("hook", self.one("bf16", "int8", "powersgd", "plain", Raw("dp.powersgd { rank = 1 }"),
                                      Raw('function(bucket) return bucket.bytes > 900 and "bf16" or "none" end'),
                                      Raw('function(bucket) return #bucket.parameters > 2 and "plain" or "none" end')))
        elif self.often(0.25):
            made.put("reduce", "each")
        return Call("dp", made)

    def zero(self):
        ways = self.ways(2, 2, 2, 3, 4)
        self.axis("zero", "data", ways)
        stage = self.one(1, 2, 3, 3)
        made = Table(ways, stage=stage)
        if ways == 4 and self.often(0.6):
            made.put("replicas", 2)
        if stage == 3 and self.often(0.5):
            made.put(*self.one(("keep", True), ("prefetch", 0), ("prefetch", 2)))
        if stage < 3 and self.often(0.3):
            made.put("overlap_gather", False)
        if stage > 1 and self.often(0.3) and not made.get("keep"):
            made.put("reduce", "chunk")
        if stage < 3 and self.often(0.4):
            made.put("bucket", self.one(64, 256, "4KiB"))
        if "cp" in self.axes and self.often(0.5):
            made.put("sequence", True)
        if "hook" in self.on and "dp" not in self.on:
            made.put("hook", self.one("bf16", "int8", "powersgd", "plain", "plain"))
        if "hook" in self.on and stage == 3 and self.often(0.3):
            made.put("gather", "int8")
        if "offload" in self.on and self.often(0.6):
            made.put("offload", "parameters" if stage == 3 and self.often(0.5) and not made.get("keep") else "optimizer")
            if self.often(0.5):
                made.put("update", self.one("host", "device"))
            if made.get("update") == "host" and self.often(0.4):
                made.put("overlap_update", False)
        return Call("zero", made)

    def diloco(self):
        ways = self.ways(2, 2, 3)
        self.axis("diloco", "none", ways)
        self.parts *= ways
        self.every = self.one(1, 2, 2, 3)
        made = Table(ways, every=self.every)
        if self.often(0.7):
            made.put("outer", self.one("mean", Call("mw.adamw", Table(lr=1e-3)), Call("mw.sgd", Table(lr=0.5))))
        if self.every > 1 and self.often(0.5):
            made.put("delay", 1)
        if self.every > 1 and self.layers > 1 and self.often(0.5):
            made.put("fragments", 2)
        if self.often(0.3):
            made.put("keeps", 0.5)
        if self.often(0.3):
            made.put("dtype", "bf16")
        return Call("diloco", made)

    def tp(self):
        self.axis("tp", "model", self.ways(2, 2, 2, 4))
        made = Table(max(self.last_ways(), 1))
        if self.often(0.35):
            made.put("overlap", True)
        return Call("tp", made)

    def last_ways(self):
        return self.ranks // self.before

    def sp(self):
        ways = self.ways(2, 2, 3, 4)
        self.axis("cp", "sequence", ways)
        form = self.one("ring", "ring", "allgather", "ulysses")
        if self.unfused and form == "ring":
            form = "allgather"
        if form == "ulysses" and ways == 3:
            form = "allgather"
        made = Table(ways, form=form)
        if form != "ulysses":
            if self.often(0.4):
                made.put("balance", self.one("none", "zigzag", "documents", "documents"))
            if ways == 4 and self.often(0.5):
                made.put("ulysses", 2)
        return Call("sp", made)

    def ep(self):
        """On ranks of one role that lends, or of all of them."""
        lent = [(role, ways) for role, ways in self.roles if role in LENDING]
        role, ways = self.one(*lent)
        self.ep_ways = self.one(*(n for n in (2, 3, 4) if ways % n == 0))
        made = Table(self.ep_ways)
        self.axes.append("ep")
        dispatch = self.one("alltoall", "alltoall", "allgather")
        if dispatch != "alltoall" or self.often(0.2):
            made.put("dispatch", dispatch)
        elif self.often(0.3):
            made.put("overlap", True)
        if self.often(0.4):
            made.put("borrow", Table(role))
        return Call("ep", made)

    def coshard(self):
        ops = Table("head", "ce_max", "ce_stats", "ce_loss")
        made = self.one(Table("heads" if self.experts else "ffn", slices=2), Table("heads", slices=2),
                        Table("seq", slices=2, ops=ops), Table("seq", slices=4, ops=ops))
        if self.often(0.3):
            made.put("recompute", False)
        return Call("coshard", made)

    def plan(self):
        """All entries in a random order; what borrows ranks comes last in it or not, as it happens."""
        makers = {name: getattr(self, name) for name in ("pp", "dp", "zero", "tp", "sp", "diloco")}
        makers["own"] = lambda: own_strategy(self)
        names = [name for name in makers if name in self.on]
        if "offload" in self.on and "diloco" in names:
            names.remove("diloco")
        if "own" in self.on and self.often(0.3):
            names.append("own")
        if not names:
            names = [self.one("dp", "tp")]
        self.chance.shuffle(names)
        if "pp" in names:  # has its number of stages already
            names.remove("pp")
            names.insert(0, "pp")
        if "diloco" in names and self.often(0.9):  # else it may be refused, behind others that split the batch
            names.remove("diloco")
            names.insert(0, "diloco")
        entries = []
        for name in names:
            self.before = self.ranks
            if self.ranks * 2 > MOST_RANKS:
                break
            entries.append(makers[name]())
            self.forms.append(name)
        if "tp" in self.forms and "sp on tp" in self.on:
            entries.append(Call("sp", Table()))
            self.forms.append("sp on tp")
        if self.experts and any(role in LENDING for role, _ in self.roles):
            entries.append(self.ep())
            self.forms.append("ep")
        self.chance.shuffle(entries)
        if "diloco" in self.forms and self.often(0.9):
            entries.sort(key=lambda entry: entry.function != "diloco")
        more = {"coshard": self.coshard, "pass": lambda: own_pass(self, 1), "directives": lambda: own_directives(self, 1)}
        for name, make in more.items():
            if name in self.on:
                entries.append(make())
                self.forms.append(name)
        return Table(*entries)

    # The rest ----------------------------------------------------------------------------------

    def model(self):
        odd = "odd" in self.on and "coshard" not in self.on
        made = Table(layers=self.layers, hidden=8, heads=4, vocab=self.one(16, 17) if odd else 16)
        ffn = self.one(7, 9, 12) if odd else self.one(8, 8, 16)
        if self.kind == "composed":
            return self.composed(ffn, made.get("vocab"))
        if self.kind == "gpt":
            made.put("tied", self.often(0.5))
            made = self.unfused_in(made)
            return Call("mw.gpt", made)
        made.put("ffn", ffn)
        if self.kind != "latent":
            few = (4, 2, 2, 1) if odd and "tp" not in self.on else (4, 2)
            made.put("kv_heads", 4 if "coshard" in self.on else self.one(*few))
            if self.often(0.15):
                made.put("window", self.one(2, 5))
            if self.often(0.1):
                made.put("head_dim", 6)
        if self.often(0.2):
            made.put("tied", True)
        if self.kind == "llama":
            return Call("mw.llama", self.unfused_in(made))
        return Call("mw.moe", self.moe(made))

    def composed(self, ffn, vocab):
        frozen = ("frozen first", "frozen first", "frozen beside")
        which = self.one(*BLOCKS, *frozen) if self.layers > 1 else self.one("side by side", "narrow", "in parts", "frozen beside", "frozen beside")
        dims = Table(hidden=8, heads=4, kv_heads=self.one(4, 2), vocab=vocab)
        if which == "narrow":
            dims.put("ffn", ffn)
            dims.put("narrow", Table(6, like="ffn"))
            dims.put("one", Table(1, like="kv_heads"))
        else:
            dims.put("ffn", ffn)
        if which.startswith("frozen"):
            self.on.add("frozen")
        if which == "drawn":
            self.on.add("draws")
        made = Table(name="composed", layers=self.layers, dims=dims, block=Raw(BLOCKS[which]))
        if self.often(0.3):
            made.put("tied", True)
        return Call("mw.model", made)

    def unfused_in(self, made):
        if self.unfused:
            made.put("attention", "unfused")
        return made

    def moe(self, made):
        made.put("experts", self.ep_ways * self.one(1, 2, 2) if self.ep_ways > 2 else self.one(4, 4, 6, 8))
        made.put("top_k", self.one(1, 2, 2, 3))
        if self.often(0.2):
            self.on.add("draws")
            made.put(self.one("jitter", "noise"), 0.1)
        if self.number % 4 == 0:  # tokens that go to all experts: how many rows there are is predicted
            made.put("top_k", made.get("experts"))
        if self.often(0.3):
            made.put("expert_ffn", self.one(4, 5))
        if self.often(0.3):
            made.put("shared_experts", 1)
        if self.often(0.3) and self.layers > 1:
            made.put("dense_layers", 1)
        if self.often(0.25):
            made.put("capacity", self.one(1.0, 1.5))
        if self.often(0.5):
            made.put("balance", self.one("bias", "none", "aux"))
        if self.often(0.2):
            made.put("z_weight", 0.01)
        if self.often(0.3):
            made.put("score", "sigmoid")
        if self.often(0.2):
            made.put("normalise", False)
        if self.kind == "latent":
            for name, size in (("kv_lora_rank", 6), ("qk_nope_head_dim", 4), ("qk_rope_head_dim", 2)):
                made.put(name, size)
            made.put("v_head_dim", self.one(4, 6))
            if self.often(0.6):
                made.put("q_lora_rank", 6)
        return made

    def recompute(self):
        kinds = self.one('"linear"', '"attention"', '"linear", "attention"', '"expert_linear"' if self.experts else '"add"')
        salt = self.chance.randint(1, 9999)
        limit = self.one("1MiB", "100KiB", "40KiB", "20KiB")
        base = self.one("selective", "full", Table(every=self.one(1, 2)), Table(ops=Raw(f"{{ {kinds} }}")),
                        Raw(f"function(op) return hashed(op.name, {salt}) % 2 == 0 end"), Table(fit=limit), Table(gathers=True),
                        Table(what=self.one("selective", "full", "none"), gathers=True), "norms")
        if isinstance(base, Table) and base.get("every") and self.often(0.5):
            base.put("collectives", "keep")
        return base

    def offload(self):
        salt = self.chance.randint(1, 9999)
        return self.one("full", Table(layers=1), Table(layers=1, prefetch=1), Table(ops=Table("attention")), Table(least=256),
                        Raw(f"function(op) return hashed(op.name, {salt}) % 2 == 0 end"))

    def shape(self):
        """Batch and microbatch; sets how many microbatches there are in a step."""
        per = self.one(1, 2, 3, 4) if self.stages == 1 else self.one(self.stages, self.stages, 2 * self.stages, 3, 4)
        self.microbatches = 1
        given = None
        if "microbatch" in self.on or self.stages > 1:
            size = min(per, self.one(1, 1, 1, 2))
            given, self.microbatches = size, -(-per // size)
            if self.stages == 1 and self.often(0.25) and per > 1:
                first = self.chance.randint(1, per - 1)
                given, self.microbatches = Table(first, per - first), 2
        if "shape" in self.on and self.stages == 1:
            per = max(per, 2)
            given = self.one(Raw("function(step) return step % 2 == 0 and 1 or 2 end"),
                             Call("mw.microbatch.fit", Table(memory="1MiB")), Call("mw.microbatch.ramp", Table(steps=2, size=1)))
        return per, given

    def precision(self, keys):
        kind = self.one("fp64", "bf16", "bf16", "fp16")
        keys.put("precision", kind)
        if kind != "fp64" and self.often(0.4):
            keys.put(self.one("main_gradients", "reductions"), "fp32")
        if kind == "fp16" and self.often(0.5) or self.often(0.1):
            keys.put("loss_scale", self.one(128, "dynamic", Table(init=256, interval=1),
                                            Raw("function(step, scale, overflowed) return 64 end")))

    def optimizer(self):
        clip = {"clip": 0.5} if self.often(0.4) else {}
        if self.often(0.3):
            return self.one(Raw(SCALED), Call("mw.groups", Table(Table(Raw(FACTORED), where=Raw("function(p) return p.matrix end")), Raw(SCALED), **clip)),
                            Call("mw.ema", Table(Call("mw.adamw", Table(lr=1e-3)), decay=0.5)), Call("mw.ema", Table(Call("mw.muon", Table(lr=1e-3)), decay=0.5)))
        return self.one(Call("mw.adamw", Table(lr=1e-3, **clip)), Call("mw.adamw", Table(lr=1e-3, weight_decay=0, **clip)),
                        Call("mw.sgd", Table(lr=0.1, **clip)), Call("mw.sgd", Table(lr=0.1, momentum=0.9, **clip)),
                        Call("mw.muon", Table(lr=1e-3, matrices=self.one("every", "owner", "shards"), **clip)), Call("mw.shampoo", Table(lr=1e-3, **clip)),
                        Call("mw.groups", Table(Table(Call("mw.sgd", Table(lr=0.1, momentum=0.9)), where="norm"),
                                                self.one(Call("mw.adamw", Table(lr=1e-3)), Call("mw.muon", Table(lr=1e-3))), **clip)))

    def data(self):
        """Tokens, of which some may count nothing as labels, in rows that may be of several documents."""
        source = Call("mw.synthetic", Table(masked=self.one(0.3, 0.8)) if "masked" in self.on else Table())
        if "documents" not in self.on:
            return source
        lengths = self.one(2, 3, Call("mw.uniform", Table(least=1, most=9)), Call("mw.lognormal", Table(median=4, sigma=1)))
        into = self.one("sequential", "greedy", "balanced", Raw("function(lengths, rows) local all = {} for d = 1, #lengths do all[d] = #lengths + 1 - d end return { all } end"))
        return Call("mw.pack", Table(data=source, lengths=lengths, into=into, balance_ranks=self.often(0.5)))

    def experiment(self):
        self.unfused = self.kind in ("llama", "gpt") and self.often(0.15)
        per, microbatch = self.shape()
        plan, model = self.plan(), self.model()
        lengths = (7, 9, 11, 12) if "odd" in self.on and "coshard" not in self.on else (8, 8, 16)
        keys = Table(model=model, data=self.data(), sequence=self.one(*lengths), plan=plan,
                     batch=per * self.parts, optimizer=self.optimizer(), steps=self.every if self.every > 1 else self.one(2, 3) if "steps" in self.on else 1)
        if isinstance(microbatch, Call) and microbatch.function == "mw.microbatch.ramp":
            microbatch.table.put("from", self.parts)
        if microbatch is not None:
            keys.put("microbatch", microbatch)
        for name in ("recompute", "offload"):
            if name in self.on:
                keys.put(name, getattr(self, name)())
        if "precision" in self.on:
            self.precision(keys)
        if "schedule" in self.on:
            keys.put("schedule", self.one(Call("mw.cosine", Table(warmup=1)), Raw("function(step) return 1e-3 / (1 + step) end")))
        if "evaluate" in self.on:
            keys.put("evaluate", Table(data=Call("mw.synthetic", Table(seed=5)), every=1, batches=1))
            if isinstance(keys.get("optimizer"), Call) and keys.get("optimizer").function == "mw.ema":
                keys.get("evaluate").put("by", "average")
            elif "diloco" in self.forms and self.often(0.5):
                keys.get("evaluate").put("by", "anchor")
        if "check" in self.on:
            keys.put("check", "replicas" if self.number % 3 == 0 else True)
        if self.often(0.1):
            keys.put("on_nan", "continue")
        if self.hides:
            keys.put("cluster", Raw('mw.cluster("dgx-h100", { nodes = 1 })'))
        return keys


def experiment(seed, number):
    """The experiment's table, and the names of the forms and features in it."""
    maker = Maker(seed, number)
    keys = maker.experiment()
    options = [name for name in keys.named() if name in ("recompute", "offload", "precision", "schedule", "evaluate", "check")]
    optimizer = keys.get("optimizer").function.removeprefix("mw.") if isinstance(keys.get("optimizer"), Call) else "update"
    names = {*maker.forms, *options, optimizer, maker.kind, *({"documents", "masked", "frozen", "draws"} & maker.on)}
    if "pp" in maker.forms and maker.schedule == "text":
        names.add("text schedule")
    if maker.groups:
        names.add("braids")
    return keys, sorted(names)
