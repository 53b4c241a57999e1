"""The site that `./meshwright docs` makes of the pages is read and searched in a browser from
files, and asks nothing of a network: the search finds what an option means, a method of the SDK,
and an error's section; links lead to what is there."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

import browser

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
sys.path.insert(0, str(SOURCE / "docs/site"))
import declarations  # noqa: E402

FIND = """(async words => {
  const field = document.querySelector("input.md-search__input");
  field.focus(); field.value = words; field.dispatchEvent(new Event("input")); field.dispatchEvent(new KeyboardEvent("keyup"));
})(%r)"""
FOUND = """[...document.querySelectorAll(".md-search-result__link")].map(a => {
  const url = new URL(a.href); return url.pathname.split("/site/")[1] + url.hash + " " + a.innerText; })"""


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.site = pathlib.Path(cls.temporary.name) / "site"
        cls.made = subprocess.run([SOURCE / "meshwright", "docs", "-o", cls.site], capture_output=True, text=True, timeout=900)
        assert cls.made.returncode == 0, cls.made.stderr  # --strict: a link that leads nowhere is an error too

    def search(self, opened, words):
        opened.value(FIND % words)
        for _ in range(600):
            if found := opened.value(FOUND):
                return found
            time.sleep(0.1)
        self.fail(f"nothing is found for {words!r}: {opened.complaints()}")

    def test_the_search_finds_options_methods_and_errors(self):
        browser.require_chromium()
        with browser.Browser() as opened:
            for words, where, says in [
                ("z_weight", "lua/functions.html#mwmoe", "keeps router logits small"),
                ("shard_in", "sdk/strategy.html#draftshard_in", "void shard_in(Dim dim"),
                ("axis.cannot-split", "errors.html#axiscannot-split", "An axis cannot split a dim evenly"),
                ("tutorial question", "tutorial.html", "From a question to a result"),
            ]:
                with self.subTest(words):
                    opened.open(self.site / "index.html", ready="document.querySelector('input.md-search__input') !== null "
                                                                 "&& document.readyState === 'complete'")
                    found = self.search(opened, words)
                    self.assertTrue(any(each.startswith(where) and says in each for each in found[:6]), found[:6])
                    self.assertEqual(opened.complaints(), [])
        self.assertEqual({url for url in opened.logged if not url.startswith(("file:", "data:", "about:", "chrome"))}, set())

    def test_pages_load_nothing_from_a_network(self):
        read = 0
        for page in self.site.rglob("*.html"):
            read += 1
            for tag in re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", page.read_text()):
                self.assertNotRegex(tag, r"(src|href)=\"?(https?:)?//", page)
        self.assertGreater(read, 100)

    def test_links_lead_to_pages(self):
        followed = 0
        for page in self.site.rglob("*.html"):
            if page.name == "404.html":  # served from the site's root
                continue
            for target in re.findall(r'<a\b[^>]*href="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
                followed += 1
                there = (page.parent / urllib.parse.unquote(target)).resolve()
                self.assertTrue(there.is_file() or target in (".", "./"), f"{page}: {target}")
        self.assertGreater(followed, 1000)

    def test_what_headers_declare_is_on_their_pages(self):
        pages = dict(declarations.pages(SOURCE))
        for header in (SOURCE / "core/include/meshwright").rglob("*.h"):
            path = header.relative_to(SOURCE / "core/include/meshwright").with_suffix(".md")
            for kind, name in re.findall(r"(?m)^(class|struct|enum class) (\w+)[^;\n]*\{", header.read_text()):
                with self.subTest(f"{kind} {name}", header=str(path)):
                    self.assertTrue(f"\n## {name}\n" in pages[f"sdk/{path}"])

    def test_every_key_of_lua_is_on_a_page(self):
        text = "\n".join(said for page, said in declarations.pages(SOURCE) if page.startswith("lua/"))
        types = (SOURCE / "scripts/meshwright.d.lua").read_text()
        for name in re.findall(r"(?m)^function (mw[\w.]+)\(", types):
            self.assertTrue(f"\n## {name}\n" in text, name)
        keys = {key for block in re.split(r"\n\s*\n", types) if "@class meshwright.make." not in block and "function mw" not in block
                for key in re.findall(r"(?m)^---@field ([a-z_]\w+)\??", block)}
        self.assertGreater(len(keys), 300)
        self.assertEqual({key for key in keys if f"\n- `{key}`: " not in text}, set())


class Declarations(unittest.TestCase):
    def test_types_of_fields_are_told_from_what_is_said_of_them(self):
        for line, kind in [("integer of the mesh", "integer"), ("table<string, integer|table> sizes", "table<string, integer|table>"),
                           ("fun(x: V, layer: integer): V? a function", "fun(x: V, layer: integer): V?"),
                           ('"a b"|"c" said', '"a b"|"c"'), ("number", "number")]:
            self.assertEqual(declarations.split_type(line)[0], kind)

    def test_a_header_becomes_contracts(self):
        text = "\n".join(declarations.header_page("x.h", '''// What a test has.
#pragma once
namespace other {
class Much;
}
namespace mw {
class Later;  // y.h
// Holds `a` as a < b.
struct Held {
  int a = 1;  // in bytes
  // Counts them;
  // throws.
  int count(const std::function<bool(int)>& which = {}) const { return a; }
  std::function<void(int)> call;
 private:
  int hidden() const;
};
// Sums.
int sum(int a,
        int b);
}  // namespace mw
'''))
        for said in ("## Held\n\nHolds `a` as a \\< b.", "int a = 1;  // in bytes", "std::function<void(int)> call;",
                     "### Held::count\n\n```cpp\nint count(const std::function<bool(int)>& which = {}) const;\n```\n\nCounts them;",
                     "## sum\n\nSums.\n\n```cpp\nint sum(int a,\n        int b);"):
            self.assertIn(said, text)
        self.assertNotIn("hidden", text)
        self.assertNotIn("Later", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
