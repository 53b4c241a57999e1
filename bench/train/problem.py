"""What can go wrong in `meshwright bench train`, said as the program says it (docs/errors.md)."""
import json
import sys

EXIT = dict(options=2, run=1, environment=5)
INTERRUPTED = 130


def say(text):
    print(text, file=sys.stderr, flush=True)


class Problem(Exception):
    """What happened, and what to do about it."""
    def __init__(self, stage, code, message, hint=""):
        super().__init__(message)
        self.stage, self.code, self.message, self.hint = stage, code, message, hint

    def tell(self, as_json):
        """People's text on stderr and, if wanted, a line of JSON on stdout. Returns the exit code."""
        say(f"error: {self.message}" + (f"\n       {self.hint}" if self.hint else ""))
        if as_json:
            print(json.dumps(dict(kind="error", stage=self.stage, code=self.code, key="", message=self.message,
                                  hint=self.hint, file=None, line=None)), flush=True)
        return EXIT[self.stage]
