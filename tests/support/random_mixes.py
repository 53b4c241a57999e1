"""Random mixes of strategies that ship and of a script's own, as Lua. For a seed and a number they
are always the same."""

import random

# What stands before all cases: `case` prints what became of one, in one line of fields.
HEAD = """\
local mw = require "meshwright"
local dp, tp, sp, pp, zero, ep, coshard = mw.plugins("dp", "tp", "sp", "pp", "zero", "ep", "coshard")
local function hashed(text, salt)
  local h = salt
  for i = 1, #text do h = (h * 31 + text:byte(i)) % 65521 end
  return h
end
local function case(n, make)
  local function say(...) io.write("\\29", n, "\\31", table.concat({ ... }, "\\31"), "\\30") io.flush() end
  say("begins")
  local ok, r = pcall(function() return mw.verify(make()) end)
  if ok then
    local e = r.max_relative_error
    say(r.verdict, tostring(e and math.max(e.loss or 0, e.gradients or 0, e.parameters or 0)), tostring(r.divergence))
  else
    local known, problems = pcall(function() return r.problems end)
    for _, p in ipairs(known and problems or { { stage = "script", code = "?", message = tostring(r) } }) do
      say(p.stage, p.code, (p.key or "") .. ": " .. p.message .. " -- " .. (p.hint or ""))
    end
  end
end
"""

ROLES = ["data", "model", "sequence", "experts", "layers", None]
# Dims that strategies of a role are likely to name.
OF_ROLE = {"data": ["batch"], "model": ["heads", "kv_heads", "ffn", "vocab", "hidden"], "sequence": ["seq", "seq", "heads"],
           "experts": ["experts", "batch", "ffn"], "layers": ["batch", "vocab", "ffn"],
           None: ["batch", "seq", "hidden", "heads", "ffn", "vocab"]}
RARE = ["keys", "head_dim", "experts", "expert_ffn", "layers"]
# Kinds of ops, and parts of their names, that have a dim, beside others that do not.
WITH = {"batch": ["linear", "attention", "rms_norm", "embedding", "rope", "add", "swiglu", "ce_stats", "ce_loss", "combine"],
        "seq": ["linear", "attention", "rms_norm", "embedding", "rope", "add", "swiglu", "ce_stats", "rope_table", "router"],
        "hidden": ["linear", "embedding", "add", "rms_norm"], "heads": ["linear", "attention", "rope"],
        "kv_heads": ["linear", "attention", "rope"], "ffn": ["linear", "swiglu"],
        "vocab": ["linear", "embedding", "ce_max", "ce_stats"], "experts": ["dispatch", "expert_linear", "combine"]}
PARTS = {"batch": ["mlp", "attention", "norm", "loss", "head", "embed", "add"],
         "seq": ["mlp", "attention", "norm", "loss", "head", "embed", "add"], "hidden": ["mlp", "embed", "head", "add"],
         "heads": ["attention", "attention.q", "attention.o"], "kv_heads": ["attention"], "ffn": ["mlp", "up", "down"],
         "vocab": ["loss", "head", "embed"]}


class Mix:
    def __init__(self, seed, number):
        self.chance = random.Random(f"{seed}/{number}")
        self.number = number
        self.own = []     # Lua of the script's strategies
        self.ranks = 1
        self.axes = []    # that rules may name
        self.roles = []   # that axes with ranks of their own have
        self.model = self.chance.choice(["llama"] * 4 + ["gpt", "moe", "moe"])
        self.layers = self.chance.choice([1, 2, 2, 4])

    def often(self, share):
        return self.chance.random() < share

    def one(self, *list):
        return self.chance.choice(list)

    def where(self, dim):
        low = self.chance.randint(-1, self.layers)
        high = self.chance.randint(low, self.layers)
        kinds, parts = WITH.get(dim, ["linear"]), PARTS.get(dim, ["mlp"])
        return self.one(
            f"function(op) return op.layer >= {low} and op.layer <= {high} end",
            f"function(op) return op.layer >= {low} end",
            f'function(op) return op.kind == "{self.one(*kinds)}" end',
            f'function(op) return op.kind ~= "{self.one(*kinds)}" end',
            f'function(op) return op.name:find("{self.one(*parts)}") end',
            f'function(op) return not op.name:find("{self.one(*parts)}") end',
            f'function(op) return op.has.{self.one("hidden", "heads", "ffn", "vocab")} end',
            f"function(op) return hashed(op.name, {self.chance.randint(1, 9999)}) % 3 > 0 end",
            "function(op) return #op.claimed == 0 end")

    def rule(self, dim):
        parts = [f'"{dim}"']
        if self.often(0.5):
            parts.append(f"where = {self.where(dim)}")
        if self.axes and self.often(0.06):
            parts.append(f'axis = "{self.one(*self.axes)}"')
        if dim == "kv_heads" or self.often(0.2):
            parts.append("optional = true")
        return parts[0] if len(parts) == 1 else "{ " + ", ".join(parts) + " }"

    def rules(self, role):
        dims = [dim for dim in OF_ROLE[role] if self.model == "moe" or dim != "experts"]
        count = self.one(1, 1, 2, 2, 3)
        chosen = list(dict.fromkeys(self.one(*dims) if self.often(0.96) else self.one(*RARE) for _ in range(count)))
        if self.often(0.15):
            chosen.append(chosen[0])
        if "heads" in chosen and "kv_heads" not in chosen and self.often(0.5):
            chosen.append("kv_heads")
        return [self.rule(dim) for dim in chosen]

    def store(self):
        dim = self.one("hidden", "hidden", "hidden", "ffn", "vocab")
        parts = {"hidden": ["mlp", "attention", "norm", "embed"], "ffn": ["mlp", "up"], "vocab": ["head", "embed"]}[dim]
        where = f', where = function(p) return p.name:find("{self.one(*parts)}") end' if self.often(0.3) else ""
        return f'{{ "{dim}"{where} }}'

    def own_strategy(self):
        role = self.one(*ROLES)
        name = f"s{len(self.own)}"
        axis = [f'name = "a{len(self.own)}"']
        if role:
            axis.append(f'role = "{role}"')
        borrows = bool(self.roles) and self.often(0.2)
        if borrows:
            axis.append(f'borrow = {{ "{self.one(*self.roles)}" }}')
        elif role:
            self.roles.append(role)
        rules = self.rules(role)
        fields = [f'name = "{name}"', "axis = { " + ", ".join(axis) + " }", "rules = { " + ", ".join(rules) + " }"]
        if self.often(0.3):
            fields.append("store = { " + ", ".join(self.store() for _ in range(self.one(1, 1, 2))) + " }")
        if self.often(0.2):
            fields.append(self.one("overlap = true", "bucket = 256"))
        self.own.append(f"local {name} = mw.strategy {{ " + ", ".join(fields) + " }")
        ways = 3 if self.often(0.06) else 2
        self.axes.append(f"a{len(self.own) - 1}")
        if not borrows:
            self.ranks *= ways
        return f"{name}({ways})"

    def entry(self, form):
        """One entry of the plan, in Lua."""
        if form == "own":
            return self.own_strategy()
        if form == "sp on tp":
            return "sp()"
        ways = 4 if form == "sp" and self.often(0.25) else 2
        self.axes.append({"sp": "cp"}.get(form, form))
        if form != "ep":
            self.ranks *= ways
            self.roles.append({"tp": "model", "sp": "sequence", "pp": "layers"}.get(form, "data"))
        options = ""
        if form == "tp" and self.often(0.4):
            options = ", overlap = true"
        elif form == "zero":
            options = f", stage = {self.one(1, 2, 3)}"
        elif form == "pp":
            options = f', schedule = "{self.one("1f1b", "1f1b", "gpipe", "zb-h1", "zbv", "interleaved")}"'
            if "interleaved" in options:
                options += ", chunks = 2"
        elif form == "sp":
            kind = self.one("ring", "ring", "allgather", "ulysses")
            options = f', form = "{kind}"'
            if kind != "ulysses":
                options += f', balance = "{self.one("zigzag", "none")}"'
                if ways == 4 and self.often(0.5):
                    options += ", ulysses = 2"
        return f"{form} {{ {ways}{options} }}"

    def plan(self):
        wanted = self.one(1, 2, 2, 3, 3, 4)
        entries = []
        forms = ["dp", "zero", "tp", "sp", "pp"] + (["ep"] if self.model == "moe" else [])
        for _ in range(wanted):
            form = "own" if self.often(0.6) else self.one(*forms)
            if form == "own" and len(self.own) == 2 or form != "own" and form not in forms:
                continue
            if self.ranks >= 8 and form != "ep":
                break
            if form != "own":
                forms.remove(form)
            entries.append(self.entry(form))
        if "tp" not in forms and self.often(0.3):
            entries.append(self.entry("sp on tp"))
        self.chance.shuffle(entries)
        return entries

    def slices(self):
        """Entries that compute a dim in slices, some of which are refused."""
        loss = ', ops = { "head", "ce_max", "ce_stats", "ce_loss" }'
        entry = self.one('"ffn", slices = 2', '"ffn", slices = 4', '"ffn", slices = 3', '"heads", slices = 2', '"heads", slices = 4',
                         f'"seq", slices = 2{loss}', f'"seq", slices = 4{loss}', '"seq", slices = 2', '"vocab", slices = 2')
        return f"coshard {{ {entry}{self.one('', ', recompute = false')} }}"

    def model_lua(self):
        dims = f"layers = {self.layers}, hidden = 8, heads = 4, vocab = {self.one(16, 16, 18)}"
        if self.model == "gpt":
            return f"mw.gpt {{ {dims}, tied = {self.one('true', 'false')} }}"
        dims += f", kv_heads = {self.one(4, 2)}, ffn = {self.one(8, 12)}"
        if self.model == "llama":
            return f"mw.llama {{ {dims}{', window = 5' if self.often(0.1) else ''} }}"
        more = self.one("", ", shared_experts = 1", ", dense_layers = 1" if self.layers > 1 else "")
        return f"mw.moe {{ {dims}, experts = 4, top_k = 2{more} }}"

    def lua(self):
        """Lines that end in one call of `case`."""
        model, plan = self.model_lua(), self.plan()
        keys = [f"model = {model}", "data = mw.synthetic {}", f"sequence = {self.one(8, 8, 8, 12, 7)}",
                "plan = { " + ", ".join(plan) + " }", "batch = 8", "steps = 1", "timeout = 60",
                "optimizer = " + self.one("mw.sgd { lr = .1 }", "mw.sgd { lr = .1 }", "mw.adamw { lr = 1e-3 }",
                                          "mw.muon { lr = 1e-3 }")]
        if self.often(0.5):
            keys.append(f"microbatch = {self.one(1, 2, 4)}")
        if self.often(0.3):
            keys.append(f'recompute = "{self.one("selective", "full")}"')
        if self.often(0.25):
            keys[0] = f"model = {model[:-2]}, attention = \"unfused\" }}"
        if self.often(0.25):
            plan = list(dict.fromkeys([*plan, *(self.slices() for _ in range(self.one(1, 1, 2)))]))
            keys[3] = "plan = { " + ", ".join(plan) + " }"
        lines = [*self.own, f"case({self.number}, function() return {{ " + ", ".join(keys) + " } end)"]
        return "do " + "\n   ".join(lines) + " end\n"


def mix(seed, number):
    return Mix(seed, number).lua()
