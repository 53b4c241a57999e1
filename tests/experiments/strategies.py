"""Random strategies of a script, with rules of every role, and random edits of the program."""

from lua_tree import Call, Raw, Table, render

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
SEGMENTS = ["forward", "backward", "dgrad", "wgrad", "gather", "reduce", "update"]


def where(maker, dim):
    chance = maker.chance
    low = chance.randint(-1, maker.layers)
    high = chance.randint(low, maker.layers)
    kind, part = chance.choice(WITH.get(dim, ["linear"])), chance.choice(PARTS.get(dim, ["mlp"]))
    return Raw("function(op) return " + chance.choice([
        f"op.layer >= {low} and op.layer <= {high}", f"op.layer >= {low}",
        f'op.kind == "{kind}"', f'op.kind ~= "{kind}"', f'op.name:find("{part}")', f'not op.name:find("{part}")',
        f'op.has.{chance.choice(["hidden", "heads", "ffn", "vocab"])}',
        f"hashed(op.name, {chance.randint(1, 9999)}) % 3 > 0", "#op.claimed == 0"]) + " end")


def rule(maker, dim):
    made = Table(dim)
    if maker.often(0.5):
        made.put("where", where(maker, dim))
    if maker.axes and maker.often(0.06):
        made.put("axis", maker.one(*maker.axes))
    if dim == "kv_heads" or maker.often(0.2):
        made.put("optional", True)
    return made if len(made.items) > 1 else dim


def rules(maker, role):
    dims = [dim for dim in OF_ROLE[role] if maker.experts or dim != "experts"]
    chosen = list(dict.fromkeys(maker.one(*dims) if maker.often(0.97) else maker.one(*RARE)
                                for _ in range(maker.one(1, 1, 2, 2, 3))))
    if maker.often(0.1):
        chosen.append(chosen[0])
    if "heads" in chosen and "kv_heads" not in chosen and maker.often(0.7):
        chosen.append("kv_heads")
    return Table(*(rule(maker, dim) for dim in chosen))


def store(maker):
    dim = maker.one("hidden", "hidden", "hidden", "hidden" if maker.experts else "ffn", "vocab")
    made = Table(dim)
    if maker.often(0.3):
        parts = {"hidden": ["mlp", "attention", "norm", "embed"], "ffn": ["mlp", "up"], "vocab": ["head", "embed"]}
        part = maker.one(*parts[dim])
        made.put("where", Raw(f'function(p) return p.name:find("{part}") end'))
    return made


def own_strategy(maker):
    """A strategy of the script, with its ways."""
    role, number = maker.one(*(role for role in ROLES if role != "layers" or maker.stages == 1)), len(maker.own)
    name = f"s{number}"
    axis = Table(name=f"a{number}")
    if role:
        axis.put("role", role)
    ways = 3 if maker.often(0.05) else 2
    lenders = [lent for lent, theirs in maker.roles if lent and lent != "layers" and theirs % ways == 0]
    borrows = bool(lenders) and maker.often(0.15)
    if borrows:
        axis.put("borrow", Table(maker.one(*lenders)))
    made = Table(name=name, axis=axis, rules=rules(maker, role))
    if maker.often(0.3):
        made.put("store", Table(*(store(maker) for _ in range(maker.one(1, 1, 2)))))
    if maker.often(0.15):
        made.put("overlap", True)
    if maker.often(0.15):
        made.put("bucket", 256)
    if maker.often(0.15):
        made.put("rules", Raw(f"function() return {render(made.get('rules'))} end"))
    if maker.often(0.15):
        made.put("passes", Table(own_pass(maker, 2 + number)))
    maker.own.append(name)
    maker.axes.append(f"a{number}")
    if not borrows:
        maker.roles.append((role, ways))
        maker.ranks *= ways
    if '"batch"' in render(made.get("rules")):
        maker.parts *= ways
    return Call("mw.strategy", made, then=ways)


def one_edit(maker):
    """Lines that move something of `code`, as far as dataflow allows."""
    axis = f', axis = "{maker.one(*maker.axes)}"' if maker.axes and maker.often(0.5) else ""
    over = maker.one("", "", '{ over = { piece = "wgrad" } }', f"{{ by = {maker.one(1, 3, 9)} }}")
    salt = maker.chance.randint(1, 9999)
    return maker.one(
        f'for i in code:each {{ code = "start"{axis}, optional = true }} do i:hoist({over or ""}) end',
        f'for i in code:each {{ code = "wait"{axis}, optional = true }} do i:sink({over or ""}) end',
        f'for i in code:each {{ code = "compute", optional = true }} do if hashed(i.label, {salt}) % 3 == 0 '
        f'then i:hoist({over or "{ by = 5 }"}) end end',
        f'for i in code:each {{ code = "compute", optional = true }} do if hashed(i.label, {salt}) % 3 == 0 '
        f'then i:sink({over or "{ by = 5 }"}) end end',
        f'for i in code:each {{ code = "start", phase = {{ "forward", "backward", "gradients" }}, optional = true }} do '
        f'if i.axis and not i.axis:find("^pp") and i.move ~= "send" and i.move ~= "recv" and hashed(i.label, {salt}) % 2 == 0 '
        f'then i:stream "{maker.one("one", "two")}" end end')


def own_pass(maker, number):
    edits = [one_edit(maker) for _ in range(maker.one(1, 1, 2))]
    made = Table(name=f"p{number}", edit=Raw(f"function(code) {' '.join(edits)} end"))
    if maker.often(0.4):
        made.put("segments", Table(*maker.chance.sample(SEGMENTS, maker.one(1, 2, 3))))
    return Call("mw.pass", made)


def own_directives(maker, number):
    axis = maker.one(*maker.axes) if maker.axes else "dp"
    transfers = Table(code="start", axis=axis, phase=maker.one("forward", "backward"), optional=True)
    sums, products = Table(code="start", phase="gradients", optional=True), Table(code="compute", piece="wgrad", optional=True)
    lists = [
        Table("order", transfers, before=sums), Table("order", sums, after=products, within="layer"),
        Table("stream", Table(axis=axis, phase="gradients", optional=True), "background"),
        Table("budget", Table(code="start", move=maker.one("all-gather", "all-reduce"), optional=True), maker.one(1, 2)),
        Table("issue", Table(code="start", move="all-gather", phase="forward", optional=True),
              layers_ahead=maker.one(0, 1, 2)),
        Table("reduce", Table(bucket=maker.one("*", "layers.*"), optional=True), after=maker.one("gradients", "chunk", "step")),
        Table("reduce", Table(bucket="*", optional=True), each=True)]
    made = Table(*maker.chance.sample(lists, maker.one(1, 1, 2)))
    made.put("name", f"d{number}")
    return Call("mw.directives", made)
