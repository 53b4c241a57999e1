"""Reference pages from declarations: of Lua from the types that the program writes
(scripts/meshwright.d.lua), of the C++ SDK from its headers. Nothing is said here that those do not
say."""
import re

HEADERS = "core/include/meshwright"


def cell(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# --- Lua ---


def split_type(text):
    """A type and what follows it: a type may hold spaces within brackets, and behind the colon of what a function returns."""
    depth, quoted = 0, False
    for at, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == " " and depth == 0 and not quoted and text[at - 1] not in ":,":
            return text[:at], text[at + 1 :]
    return text, ""


class Block:
    """A class or a function of the type file: its name, what is said of it, its fields or parameters."""

    def __init__(self, text):
        self.name = self.parent = self.signature = self.returns = ""
        self.said, self.rows = [], []
        for line in text.splitlines():
            if found := re.match(r"---@class ([\w.\-]+)(?:: ([\w.]+))?", line):
                self.name, self.parent = found[1], found[2] or ""
            elif found := re.match(r"---@field (\S+?)(\?)? (.*)", line):
                kind, said = split_type(found[3])
                self.rows.append((found[1], kind, bool(found[2]), said))
            elif found := re.match(r"---@param (\S+?)(\?)? (.*)", line):
                kind, said = split_type(found[3])
                self.rows.append((found[1], kind, bool(found[2]), said))
            elif line.startswith("---@return "):
                self.returns = line.removeprefix("---@return ")
            elif line.startswith("---") and not line.startswith("---@"):
                self.said.append(line.removeprefix("---").strip())
            elif found := re.match(r"function (mw[\w.]*)(\(.*\)) end", line):
                self.name, self.signature = found[1], found[1] + found[2]

    def keys(self, rows):
        """A list, whose entries the search shows whole: a key with what it means."""
        for name, kind, optional, said in rows:
            about = f"`{kind.replace('meshwright.', '')}`{', may be left out' if optional else ''}"
            said = re.sub(r"([*_<\[\]])", r"\\\1", " ".join(said.split()))
            yield f"- `{name}`: {said + ' ' if said else ''}({about})"
        yield ""


def lua_blocks(text):
    blocks = [Block(part) for part in re.split(r"\n\s*\n", text)]
    return [block for block in blocks if block.name and block.name != "meshwright"]


def functions_page(blocks):
    classes = {block.name: block for block in blocks if not block.signature}
    yield "# Lua: functions and their options\n"
    yield "What a script can call, and the keys of the tables that it passes. The program makes this from what it checks scripts by.\n"
    for block in blocks:
        if not block.signature:
            continue
        yield f"## {block.name}\n"
        yield f"```lua\n{block.signature}\n```\n"
        yield " ".join(block.said) + "\n"
        if block.returns:
            yield f"Returns `{block.returns.replace('meshwright.', '')}`.\n"
        rest = []
        for row in block.rows:
            # The options stand with the function where a table of its own has them.
            names = [name for name in re.findall(r"meshwright\.[\w.\-]+", row[1]) if name in classes]
            own = [name for name in names if name.removeprefix("meshwright.") == block.name.removeprefix("mw.")]
            if own and classes[own[0]].rows:
                yield from block.keys(classes[own[0]].rows)
            elif not own:
                rest.append(row)
        if rest:
            yield from block.keys(rest)


def classes_page(title, said, blocks):
    yield f"# {title}\n"
    yield said + "\n"
    for block in blocks:
        yield f"## {block.name.removeprefix('meshwright.')}\n"
        if block.said:
            yield " ".join(block.said) + "\n"
        if block.parent:
            yield f"It has all of `{block.parent.removeprefix('meshwright.')}` too.\n"
        if block.rows:
            yield from block.keys(block.rows)


def lua_pages(text):
    blocks = lua_blocks(text)
    functions = {block.name.removeprefix("mw.") for block in blocks if block.signature}
    classes = [block for block in blocks if not block.signature]
    plugins = [block for block in classes if block.name.startswith("meshwright.plugin.")]
    ops = [block for block in classes if block.name.startswith("meshwright.op.")]
    others = [block for block in classes if block not in plugins and block not in ops and block.rows
              and block.name.removeprefix("meshwright.") not in functions and not block.name.startswith("meshwright.make.")]
    yield "lua/functions.md", functions_page(blocks)
    yield "lua/plugins.md", classes_page("Lua: options of strategies and schedules", "The keys of a plan's entries: "
                                         "`dp { … }`, `pp { schedule = …, … }`.", plugins)
    yield "lua/ops.md", classes_page("Lua: options of ops", "What an op of a model written in Lua takes "
                                     "([models](../models.md)).", ops)
    yield "lua/tables.md", classes_page("Lua: experiments, results and other tables", "The keys of an experiment, of what "
                                        "the functions return, and of what a script's own functions are given.", others)


# --- C++ ---


def declarations_in(lines):
    """(comment, declaration) of each, in order, of lines at one depth; ("", "public:") for a label of access."""
    comment, text, depth = [], [], 0
    for line in lines:
        bare = re.sub(r"\s*//.*", "", line)
        if not text and line.strip().startswith("//"):
            comment.append(line.strip()[2:].removeprefix(" "))
        elif not text and re.fullmatch(r"\s*(public|private|protected):", bare):
            yield "", bare.strip()
            comment = []
        elif not text and re.fullmatch(r"\s*|namespace [\w:]+ \{|}", bare):
            comment = []
        else:
            text.append(line)
            code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', '""', bare)
            depth += sum(code.count(each) for each in "({[") - sum(code.count(each) for each in ")}]")
            if depth == 0 and re.search(r"[;}]\s*$", bare):
                yield "\n".join(comment), "\n".join(text)
                comment, text = [], []


def plain(text):
    """A declaration without comments, arguments of templates and strings."""
    text = re.sub(r'//[^\n]*|"(\\.|[^"\\])*"', "", text).replace("->", "").replace("<=", "").replace("<<", "")
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return " ".join(text.split())


def function_name(text):
    found = re.search(r"(~?\w+|operator\S+?)\s*\(", plain(text))
    return found[1] if found and "=" not in plain(text)[: found.start()] else None


def signature(text):
    """A function as it is declared: without its body, and what a constructor begins with."""
    depth = 0
    for at, letter in enumerate(text):
        if letter == "{" and depth == 0:
            text = text[:at].rstrip() + ";"
            break
        depth += (letter == "(") - (letter == ")")
    text = re.sub(r"(\)(?:\s*(?:const|noexcept|override))*)\s*:\s[^:].*", r"\1;", text, flags=re.S)
    indent = min((len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()), default=0)
    return "\n".join(line[indent:] for line in text.splitlines())


def prose(comment):
    """A comment as paragraphs; lines that are set in are code, and what looks like Markdown is not."""
    out, code = [], False
    for line in comment.splitlines():
        is_code = line.startswith("  ")
        if is_code != code:
            out.append("```" if code else "\n```cpp")
            code = is_code
        spans = re.split(r"(`[^`]*`)", line)
        out.append(line if code else "".join(s if s.startswith("`") else re.sub(r"([*_<\[\]#|])", r"\\\1", s) for s in spans))
    return "\n".join([*out, "```"] if code else out) + "\n"


def members(name, lines):
    """The fields of a class as one block of code, then each public function."""
    public, fields, functions = lines[0].lstrip().startswith("struct") or " struct " in lines[0], [], []
    for comment, text in declarations_in(lines[1:-1]):
        if text in ("public:", "private:", "protected:"):
            public = text != "private:"
            continue
        if not public or re.search(r"=\s*(delete|default)\s*;|^\s*friend\b", text):
            continue
        function = function_name(text)
        if function:
            functions.append((function, comment, signature(text)))
        else:
            fields += [*(f"  // {line}".rstrip() for line in comment.splitlines()), text]
    if fields:
        yield "```cpp\n" + "\n".join(fields) + "\n```\n"
    for function, comment, text in functions:
        yield f"### {name}::{function}\n"
        yield f"```cpp\n{text}\n```\n"
        yield prose(comment)


def header_page(path, text):
    name = f"meshwright/{path}"
    lines = text.splitlines()
    opening = []
    while lines and lines[0].startswith("//"):
        opening.append(lines.pop(0)[2:].removeprefix(" "))
    text = re.sub(r"(?m)^[ ]*#(?:.*\\\n)*.*$", "", "\n".join(lines))
    yield f"# {name}\n"
    yield prose("\n".join(opening))
    for comment, declaration in declarations_in(text.splitlines()):
        lines = declaration.splitlines()
        kind = re.match(r"(?:template\s*)?\s*(class|struct|enum(?: class)?) (\w+)", plain(declaration))
        if kind and "{" not in declaration:  # of what another header has
            continue
        function = function_name(declaration)
        if kind:
            what = kind[2]
        elif function:
            what = function
        else:
            found = re.search(r"using (\w+)|(\w+)\s*(?:=|\{|;)", plain(declaration))
            what = found and (found[1] or found[2])
        if not what:
            continue
        yield f"## {what}\n"
        yield prose(comment)
        if kind and not kind[1].startswith("enum"):
            start = next(n for n, line in enumerate(lines) if re.search(r"\b(class|struct)\b.*", line) and
                         not line.strip().startswith("template"))
            head = "\n".join(lines[:start + 1]).rstrip(" {")
            if len(lines) == start + 1:
                yield f"```cpp\n{declaration}\n```\n"
            else:
                yield f"```cpp\n{head};\n```\n"
                yield from members(what, lines[start:])
        else:
            yield f"```cpp\n{signature(declaration) if function else declaration}\n```\n"


def sdk_pages(folder):
    rows = []
    for path in sorted(folder.rglob("*.h"), key=lambda p: (len(p.relative_to(folder).parts), p)):
        text, name = path.read_text(), path.relative_to(folder).as_posix()
        rows.append((name, " ".join(line[2:].strip() for line in re.match(r"(//.*\n)*", text)[0].splitlines())))
        yield f"sdk/{name.removesuffix('.h')}.md", header_page(name, text)
    table = [f"| [{name}]({name.removesuffix('.h')}.md) | {cell(re.split(r'(?<=[.:]) ', said)[0])} |" for name, said in rows]
    yield "sdk/index.md", ["# C++: the SDK's headers\n", "Each header's contracts: what is given, returned, thrown, and in "
                           "which units. A plugin includes `meshwright/plugin.h` and what it needs beside it; "
                           "[plugins](../plugins.md) says how one is made. Headers in `engine/` are for programs that "
                           "run, predict or record plans.\n", "| header | what it has |", "|---|---|", *table]


def pages(root):
    """(page, text) of all of them."""
    made = [*lua_pages((root / "scripts/meshwright.d.lua").read_text()), *sdk_pages(root / HEADERS)]
    for page, parts in made:
        # What declares a key is found before what uses it.
        boost = 4 if page.startswith("lua/") else 2
        yield page, "\n".join([f"---\nsearch:\n  boost: {boost}\n---\n", *parts])
