"""The command line of the package: `python -m meshwright to-wandb FILE…`."""

from __future__ import annotations

import argparse
import sys

from meshwright.errors import MeshwrightError
from meshwright.wandb_folder import to_wandb


def main(words: list[str] | None = None) -> int:
    """Does what the words say; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m meshwright")
    commands = parser.add_subparsers(dest="command", required=True)
    wandb = commands.add_parser(
        "to-wandb",
        help="write runs as offline folders of Weights & Biases, for `wandb sync`; needs wandb",
    )
    wandb.add_argument("runs", nargs="+", metavar="FILE", help="run files, or folders of runs")
    wandb.add_argument(
        "-o", "--output", default=".", metavar="FOLDER", help="where the folder wandb is made"
    )
    wandb.add_argument("--project", default="meshwright", help="the project's name")
    given = parser.parse_args(words)
    try:
        for run in given.runs:
            print(to_wandb(run, given.output, project=given.project), flush=True)
    except MeshwrightError as error:
        print(f"error: {error.problems[0]}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
