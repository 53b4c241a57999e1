# label: unit
"""Every floor of the kernel links with the floors below it alone, and every library with the kernel
and what CMake names: what its objects use is defined there or in it. And a header declares only
what its own floor or a lower one defines.

So nobody below declares, calls or throws what stands above, through whatever header. The kernel
itself, libmeshwright.so, needs none of the libraries that its users bring."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_floors import FLOORS, links  # noqa: E402

OURS = re.compile(r"\b(mw::|typeinfo for mw::|vtable for mw::)")


def part_of(path):
    """The part of an object, compiled apart (core/src/plan/x.cpp.o) or together (core_src_plan_0.cpp.o): a floor of
    the kernel, "libs/predict", "plugins/models", or "app"."""
    found = re.search(r"/(?:core[/_]src[/_]([a-z]+)|(libs|plugins)[/_]([a-z]+)|(app)[/_])", str(path))
    return found and (found[1] or found[4] or f"{found[2]}/{found[3]}")


def may_need(part, linked):
    """The parts whose definitions one may use; of built-in plugins and app all that is linked anyway."""
    if part in FLOORS:
        return set(FLOORS[: FLOORS.index(part) + 1])
    libraries = linked.get(part.removeprefix("libs/"), linked) if part.startswith("libs/") else linked
    others = {"app"} if part == "app" else set()
    return {*FLOORS, *(f"libs/{name}" for name in libraries), "plugins/models", part, *others}


def symbols(path):
    """What an object defines, what it lacks, and the functions that it alone defines."""
    listing = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
    defined, lacking, functions = set(), set(), set()
    for line in listing.splitlines():
        kind, name = line[17], line[19:]
        if OURS.search(name):
            (lacking if kind in "Uw" else defined).add(name)
            if kind == "T":
                functions.add(name)
    return defined, lacking, functions


def needed(library):
    """The names of the libraries that it names itself."""
    listing = subprocess.run(["readelf", "-dW", str(library)], capture_output=True, text=True, check=True,
                             env={**os.environ, "LC_ALL": "C"}).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", listing)


def findings(objects, linked):
    """objects: (part, defined, lacking)."""
    home = collections.defaultdict(set)
    for part, defined, _ in objects:
        for name in defined:
            home[name].add(part)
    for part, _, lacking in objects:
        may = may_need(part, linked)
        for name in sorted(lacking):
            if home[name] and not home[name] & may:
                yield f"{part} needs {name}, which {min(home[name])} defines"


def without_templates(text):
    text = text.replace("->", "").replace("<=", "").replace(">=", "").replace("<<", "")
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def named(text):
    """The function that is declared or demangled here, as (name, number of arguments); None for anything else."""
    text = without_templates(text.replace("[abi:cxx11]", ""))
    found = re.search(r"([~\w:]+)\s*\(", text)
    if not found or "operator" in text or "=" in text[: found.start()]:
        return None
    arguments, depth = 0, 0
    for at in range(found.end(), len(text)):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}" and depth == 0:
            return found[1], arguments + bool(text[found.end() : at].strip())
        elif text[at] in ")]}":
            depth -= 1
        elif text[at] == "," and depth == 0:
            arguments += 1
    return None


def declared(text):
    """The functions that a header declares and leaves to a source, with namespaces and classes before the name."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|^\s*#[^\n]*(\\\n[^\n]*)*|"(\\.|[^"\\\n])*"', " ", text, flags=re.S | re.M)
    scopes, head, body, nested = [], "", 0, 0
    for letter in text:
        if body:  # of a function, an enumeration, a value
            body += (letter == "{") - (letter == "}")
        elif letter == "{" and nested:  # a default argument
            body = 1
        elif letter == "{":
            scope = re.search(r"\b(?:namespace|class|struct)\s+([\w:]+)", without_templates(head))
            if scope and "(" not in head and "enum" not in head:
                scopes.append(scope[1])
            else:
                body = 1
            head = ""
        elif letter == "}":
            scopes, head = scopes[:-1], ""
        elif letter == ";" and not nested:
            what = None if re.search(r"=\s*(0|default|delete)\s*$|\b(friend|using|typedef)\b", head) else named(head)
            if what:
                yield "::".join([*scopes, what[0]]), what[1]
            head = ""
        else:
            nested += (letter == "(") - (letter == ")")
            head = re.sub(r"\b(public|private|protected):", "", head + letter)


def upward_declarations(headers, functions):
    """headers: (path, floor, text); functions: of each floor those that its objects define."""
    home = {}
    for floor in reversed(FLOORS):
        for name in functions.get(floor, ()):
            home[named(name)] = floor
    matched = 0
    upward = []
    for path, floor, text in headers:
        for what in declared(text):
            above = home.get(what, floor)
            matched += what in home
            if FLOORS.index(above) > FLOORS.index(floor):
                upward.append(f"{path} of {floor} declares {what[0]}, which {above} defines")
    return upward, matched


class Links(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
        cls.linked = links(pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]))
        # Not all that lies there: objects of folders that are no more may be left over.
        made = set(re.findall(r"CMakeFiles/meshwright(?:_\w+)?\.dir/\S+\.o", (build / "build.ninja").read_text()))
        cls.objects = [(part_of(path), *symbols(build / path)) for path in sorted(made) if part_of(path)]

    def test_no_part_needs_what_it_does_not_link(self):
        missing = {*FLOORS, *(f"libs/{name}" for name in self.linked)} - {part for part, *_ in self.objects}
        self.assertEqual(missing, set(), "parts without objects")
        self.assertEqual(list(findings([each[:3] for each in self.objects], self.linked)), [])

    def test_no_header_declares_what_a_higher_floor_defines(self):
        core = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]) / "core"
        functions = collections.defaultdict(set)
        for part, _, _, defined in self.objects:
            if part in FLOORS:
                functions[part] |= defined
        headers = [(path.name, path.relative_to(core / "src").parts[0], path.read_text())
                   for path in sorted(core.glob("src/**/*.h"))]
        upward, _ = upward_declarations(headers, functions)
        self.assertEqual(upward, [])
        headers += [(path.name, FLOORS[-1], path.read_text())
                    for path in sorted(core.glob("include/meshwright/**/*.h"))]
        _, matched = upward_declarations(headers, functions)
        every = len({named(name) for names in functions.values() for name in names})
        self.assertGreater(matched, every * 0.95, "declarations and symbols do not meet: is a header read wrongly?")

    def test_the_kernel_stands_alone(self):
        library = pathlib.Path(os.environ["MESHWRIGHT_BUILD"]) / "lib/libmeshwright.so"
        users = [name for name in needed(library) if re.match(r"lib(lua|hdf5|edit|mpi|meshwright)", name)]
        self.assertEqual(users, [])
        outside = sorted({part for part, defined, *_ in self.objects if part not in FLOORS
                          for name in defined if name in self.lacking_in_the_kernel()})
        self.assertEqual(outside, [], "libmeshwright.so needs what these define")

    def lacking_in_the_kernel(self):
        kernel = [each for each in self.objects if each[0] in FLOORS]
        return set().union(*(each[2] for each in kernel)) - set().union(*(each[1] for each in kernel))

    def test_what_is_preloaded_links_the_c_library_alone(self):
        for name in ("loopback", "clock"):
            # Older C libraries have dlsym in libdl.
            library = pathlib.Path(os.environ["MESHWRIGHT_BUILD"]) / f"lib/libmeshwright_{name}.so"
            self.assertEqual([name for name in needed(library) if not re.match(r"lib(c|dl)\.so|ld-", name)], [])

    def test_the_libraries_that_one_needs_are_found(self):
        library = pathlib.Path(os.environ["MESHWRIGHT_BUILD"]) / "lib/libmeshwright.so"
        self.assertTrue(any(name.startswith("libstdc++") for name in needed(library)), needed(library))

    def test_a_declaration_of_what_stands_above_is_found(self):
        text = """namespace mw {
        // void note(int);
        struct Times { double of(int stage) const { return stage; } int most = limit(3); Times(int a, int b); };
        constexpr Answer answer{"x(y)", Times(1)};
        std::vector<Times> times(const std::string& file, const std::map<int, std::vector<int>>& stages = {});
        }"""
        self.assertEqual(list(declared(text)), [("mw::Times::Times", 2), ("mw::times", 2)])
        low, high = FLOORS[0], FLOORS[-1]
        symbol = "mw::times[abi:cxx11](std::string const&, std::map<int, std::vector<int, A<int> > > const&)"
        self.assertEqual(upward_declarations([("a.h", low, text)], {high: {symbol}}),
                         ([f"a.h of {low} declares mw::times, which {high} defines"], 1))
        self.assertEqual(upward_declarations([("a.h", low, text)], {high: {symbol}, low: {symbol}}), ([], 1))

    def test_a_call_upwards_is_found(self):
        low, high = FLOORS[0], FLOORS[-1]
        objects = [(low, {"mw::a()"}, {"mw::b()"}), (high, {"mw::b()"}, {"mw::a()"})]
        self.assertEqual(list(findings(objects, {})), [f"{low} needs mw::b(), which {high} defines"])
        linked = {"common": {"common"}, "predict": {"predict", "common"}}
        objects = [("libs/common", {"mw::a()"}, {"mw::b()"}), ("libs/predict", {"mw::b()"}, {"mw::a()"})]
        self.assertEqual(list(findings(objects, linked)), ["libs/common needs mw::b(), which libs/predict defines"])


if __name__ == "__main__":
    sys.exit(unittest.main())
