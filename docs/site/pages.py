"""What the site has that mkdocs does not make by itself: pages made from declarations, listings of
the files that pages name, and links of the repository that lead to the same place in the site.
mkdocs.yml names this file as a hook."""
import functools
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import declarations  # noqa: E402

ROOT = HERE.parent.parent
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
SPAN = re.compile(r"(?<![\[`\w])`((?:scripts|examples|clusters)/[\w./-]+\.(?:lua|cpp|h)|(?:core/include/)?meshwright/[\w./]+\.h)`(?![\]`])")
LANGUAGES = {".lua": "lua", ".cpp": "cpp", ".h": "cpp", ".py": "python", ".txt": "cmake", ".cmake": "cmake", ".json": "json",
             ".sh": "sh"}
HEADERS = "core/include/meshwright/"


def page_of(source):
    """The page of the site that shows a file or folder of the repository, both by path."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith(HEADERS) and source.endswith(".h"):
        return f"sdk/{source.removeprefix(HEADERS).removesuffix('.h')}.md"
    if source == "README.md":
        return "readme.md"
    return f"files/{source.rstrip('/')}" + ("" if source.endswith(".md") else ".md")


def source_of(page):
    """The file of the repository whose folder links of that page start from."""
    if page == "readme.md":
        return "README.md"
    if page.startswith("files/"):
        return page.removeprefix("files/")
    return f"docs/{page}"


def named(source, target):
    """The path in the repository that a link of the file `source` leads to; None where there is nothing."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if (ROOT / path).exists() else None


def header_of(span):
    return span if span.startswith(("core/", "scripts/", "examples/", "clusters/")) else f"core/include/{span}"


def without_code(change, text):
    """`change` made to the text outside of blocks of code."""
    parts = re.split(r"(?ms)(^```.*?^```[ ]*$)", text)
    return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


def sections_of_codes(text):
    """The table of errors.md as sections, so that each code has an address and is found by its name."""
    text = re.sub(r"(?m)^\| code \| [^|\n]+ \|\n\|[-|]+\|\n", "", text)
    return re.sub(r"(?m)^\| `([\w.-]+)` \| (.*?) \|$", r"### \1\n\n\2\n", text)


def rewritten(text, page):
    """The text of a page as mkdocs reads it: links to pages of the site, and lists set apart as Python-Markdown needs."""
    source, here = source_of(page), posixpath.dirname(page)

    def link(match):
        path = named(source, match[1])
        if path is None:
            return match[0]
        if (ROOT / path).suffix in (".svg", ".png"):
            return f"]({posixpath.relpath(path.removeprefix('docs/'), here or '.')})"
        return f"]({posixpath.relpath(page_of(path), here or '.')}{match[2] or ''})"

    def span(match):
        path = header_of(match[1])
        if not (ROOT / path).is_file():
            return match[0]
        return f"[`{match[1]}`]({posixpath.relpath(page_of(path), here or '.')})"

    def change(part):
        part = re.sub(r"(?m)^(?![-*|#]|\d+\. |\s*$)(.*\n)(?=(?:[-*]|1\.) )", r"\1\n", LINK.sub(link, part))
        return "\n".join(line if line.startswith("#") else SPAN.sub(span, line) for line in part.split("\n"))

    return without_code(change, text)


def wanted(text, page):
    """The paths outside docs/ that a page leads to."""
    found = set()

    def look(part):
        found.update(named(source_of(page), target) for target, _ in LINK.findall(re.sub(r"`[^`]*`(?!\])", "", part)))
        found.update(header_of(span) for span in SPAN.findall(part))
        return part

    without_code(look, text)
    return {path for path in found if path and not path.startswith(("docs/", HEADERS)) and (ROOT / path).exists()}


def listing(path):
    """A page with what a file has, or each file of a folder."""
    whole = ROOT / path
    files = sorted(file for file in whole.rglob("*") if file.is_file()) if whole.is_dir() else [whole]
    text = ["---\nsearch:\n  exclude: true\n---\n", f"# {path}\n"]
    for file in files:
        if len(files) > 1:
            text.append(f"## {file.relative_to(whole)}\n")
        text.append(f"~~~~ {LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}~~~~\n")
    return "\n".join(text)


@functools.cache
def made():
    """The pages that are not in docs/, by path. `README.md` of a folder is shown as it is."""
    texts = {page: text for page, text in declarations.pages(ROOT)}
    queue = [(path.name, path.read_text()) for path in (ROOT / "docs").glob("*.md")]
    queue += [("readme.md", (ROOT / "README.md").read_text())]
    texts["readme.md"] = queue[-1][1]
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        texts[page_of(name)] = (ROOT / name).read_text()
        queue.append((page_of(name), texts[page_of(name)]))
    while queue:
        page, text = queue.pop()
        for path in wanted(text, page):
            name = page_of(path)
            if name not in texts:
                texts[name] = (ROOT / path).read_text() if path.endswith(".md") else listing(path)
                if path.endswith(".md"):
                    queue.append((name, texts[name]))
    return texts


def on_config(config):
    """The headers go into the navigation by themselves; every other page is named in mkdocs.yml."""
    headers = sorted(page for page in made() if page.startswith("sdk/") and page != "sdk/index.md")
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    sdk = next(part["C++ SDK"] for part in reference if "C++ SDK" in part)
    sdk += [page for page in headers if "/engine/" not in page]
    sdk.append({"engine": [page for page in headers if "/engine/" in page]})
    return config


def on_files(files, config):
    made.cache_clear()
    for page, text in made().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri == "errors.md":
        page.meta["search"] = {"boost": 8}
        markdown = sections_of_codes(markdown)
    return rewritten(markdown, page.file.src_uri)


def slug(text, separator):
    """The anchor of a heading as GitHub makes it, so that links hold in both places."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)
