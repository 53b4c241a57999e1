"""Lua values as trees: rendered as Lua, and looked over for what can be left out or made smaller.
Beside Python's bool, int, float and str there are tables, calls and text that stands as it is."""

import copy


class Raw:
    """A piece of Lua that is not looked into, as the body of a function."""

    def __init__(self, text):
        self.text = text


class Table:
    """Values with a name (a list of pairs) and without, which come first."""

    def __init__(self, *values, **named):
        self.items = [[None, value] for value in values] + [[name, value] for name, value in named.items()]

    def get(self, name, otherwise=None):
        return next((value for key, value in self.items if key == name), otherwise)

    def put(self, name, value):
        for item in self.items:
            if item[0] == name:
                item[1] = value
                return
        self.items.append([name, value])

    def values(self):
        return [value for key, value in self.items if key is None]

    def named(self):
        return {key: value for key, value in self.items if key is not None}


class Call:
    """function { … }, or with `then` function { … }(then): a strategy of a script, with its ways."""

    def __init__(self, function, table, then=None):
        self.function, self.table, self.then = function, table, then


def render(value, indent=None):
    """As Lua. With an indent a table of a call, and its plan, get a line for each value."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Call):
        then = "" if value.then is None else f"({render(value.then)})"
        return f"{value.function} {render(value.table)}{then}"
    if isinstance(value, Table):
        more = None if indent is None else indent + 2
        parts = [(f"{name} = " if name else "") + render(item, more if name == "plan" else None) for name, item in value.items]
        if not parts:
            return "{}"
        if indent is None:
            return "{ " + ", ".join(parts) + " }"
        pad = " " * (indent + 2)
        return "{\n" + "".join(f"{pad}{part},\n" for part in parts) + " " * indent + "}"
    return repr(value)


def children(value):
    """Each place below a value: (holder, position), such that `at` and `set_at` read and write it."""
    if isinstance(value, Call):
        yield value, "table"
        if value.then is not None:
            yield value, "then"
    elif isinstance(value, Table):
        for n in range(len(value.items)):
            yield value, n


def at(holder, position):
    return getattr(holder, position) if isinstance(position, str) else holder.items[position][1]


def set_at(holder, position, value):
    if isinstance(position, str):
        setattr(holder, position, value)
    else:
        holder.items[position][1] = value


def places(value):
    """Every place below a value, those near the root first."""
    level = [value]
    while level:
        below = []
        for parent in level:
            for holder, position in children(parent):
                yield holder, position
                below.append(at(holder, position))
        level = below


def edited(tree, which, edit):
    """A copy of the tree in which `edit` was done to the place of that number; None: there is no such, or it would not."""
    made = copy.deepcopy(tree)
    for n, (holder, position) in enumerate(places(made)):
        if n == which:
            return made if edit(holder, position) else None
    return None


def drop(holder, position):
    if isinstance(position, str):
        return False
    del holder.items[position]
    return True


def unwrap(holder, position):
    """{ kind = "x", … } becomes "x"."""
    value = at(holder, position)
    if not isinstance(value, Table) or value.get("kind") is None:
        return False
    set_at(holder, position, value.get("kind"))
    return True


SIZES = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence")


def smaller(by):
    """A number becomes what `by` makes of it. Sizes are tiny as they are: below them lie other faults."""
    def edit(holder, position):
        value = at(holder, position)
        if not isinstance(position, str) and holder.items[position][0] in SIZES:
            return False
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < by(value) < value:
            return False
        set_at(holder, position, by(value))
        return True
    return edit


def simple_function(holder, position):
    value = at(holder, position)
    simple = "function() return true end"
    if not isinstance(value, Raw) or not value.text.startswith("function(op)") or value.text == simple:
        return False
    set_at(holder, position, Raw(simple))
    return True


def put(name, value):
    """What has that name becomes the value."""
    def edit(holder, position):
        if isinstance(position, str) or holder.items[position][0] != name or render(at(holder, position)) == render(value):
            return False
        set_at(holder, position, copy.deepcopy(value))
        return True
    return edit
