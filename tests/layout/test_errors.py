"""docs/errors.md lists every code that the sources raise, each once, and no other."""
# label: unit
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ.get("MESHWRIGHT_SOURCE", pathlib.Path(__file__).parents[2]))
CODE = r"[a-z]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z]+)*"
# Where a code stands: behind a stage, or first in what adds or refuses a problem.
RAISED = [rf'Stage::\w+,\s*"({CODE})"', rf'\b(?:refused?)\(\s*"({CODE})"', rf'\bFaults \w+\(\s*problems_,\s*"({CODE})"',
          rf'\badd\("({CODE})"', rf'\brefused?\(\s*(?:speaker|rule|again),\s*"({CODE})"', rf'\.code = "({CODE})"',
          rf'\? "({CODE})" : "({CODE})"', rf'\bnot_started\("({CODE})"']


class Errors(unittest.TestCase):
    def test_every_code_is_listed_and_every_listed_one_is_raised(self):
        listed = re.findall(rf"(?m)^\| `({CODE})` \|", (SOURCE / "docs/errors.md").read_text())
        self.assertEqual(listed, sorted(set(listed)), "sorted, each once")
        raised = set()
        for folder in ("core", "libs", "plugins", "app"):
            for path in (SOURCE / folder).rglob("*.*"):
                if path.suffix not in (".cpp", ".h"):
                    continue
                text = re.sub(r"(?m)//.*$", "", path.read_text())
                for form in RAISED:
                    for found in re.findall(form, text):
                        raised.update([found] if isinstance(found, str) else found)
        for path in (SOURCE / "python/src").glob("meshwright_*/*.py"):  # for the program
            raised.update(re.findall(rf'[Rr]efused?\(\s*"({CODE})"', path.read_text()))
        self.assertGreater(len(raised), 100)
        self.assertEqual(sorted(raised), listed)


if __name__ == "__main__":
    unittest.main(verbosity=2)
