"""`meshwright calibrate --from`: from texts of logs and steps to the files of descriptions."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from typing import Any

from meshwright_calibrate.description import Description
from meshwright_calibrate.links import LinkFit
from meshwright_calibrate.nccl_log import LogReader, Table, check_together
from meshwright_calibrate.problems import Problems
from meshwright_calibrate.steps import (
    fit_steps,
    is_explained,
    refuse_repeated,
    refuse_unexplained,
)
from meshwright_calibrate.texts import duration, wrapped
from meshwright_called import Refused
from meshwright_called.texts import plural, size, table

BANDS = (
    (64 << 10, "to 64 KiB"),
    (1 << 20, "to 1 MiB"),
    (32 << 20, "to 32 MiB"),
    (1 << 30, "to 1 GiB"),
    (math.inf, "above"),
)


def words_of(device: str) -> list[str]:
    """ "NVIDIA", "A100", "SXM4", "80GB" of "NVIDIA A100-SXM4-80GB"."""
    return re.findall(r"[A-Za-z0-9]+", device)


def model_of(device: str) -> str:
    """ "A100" of "NVIDIA A100-SXM4-80GB": letters, then two digits or more. Empty: no word."""
    return next((word for word in words_of(device) if re.match(r"[A-Za-z]+\d\d", word)), "")


class Describer:
    """Describes a cluster, and the software on it, by the request's logs and steps. `ask` has the
    program answer what only it knows: descriptions, plans and prices."""

    def __init__(self, request: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> None:
        self.request, self.ask = request, ask
        self.file: str = request["file"]
        self.folder, self.name = os.path.split(self.file)
        self.stem, self.ending = os.path.splitext(self.name)
        self.stack_file = os.path.join(self.folder, f"{self.stem}-stack.lua")
        self.problems = Problems()
        self.tables: list[Table] = []
        self.steps: list[dict[str, Any]] = []
        self.hardware, self.software = Description(), Description()
        self.doubts: list[str] = []  # sentences that say what of the input may not be as it seems

    def run(self) -> dict[str, Any]:
        """The files to write, and what to say of them. Raises Refused."""
        for given in self.request["from"]:
            self.read(given)
        check_together(self.tables, self.problems)
        refuse_repeated(self.steps, self.problems)
        self.check_files()
        self.find_bases()
        self.problems.raise_if_any()
        self.hardware.table["name"] = self.stem
        LinkFit(self.hardware, self.tables, self.request["devices"], self.price_rows).run(
            self.problems
        )
        self.problems.raise_if_any()
        if self.steps:
            self.fit_steps_of_scripts()
        self.compare_rows()
        self.look_for_ends()
        files = [[self.file, self.hardware.text(self.head_of(self.hardware))]]
        if self.steps:
            files.append([self.stack_file, self.software.text(self.head_of(self.software))])
        return {"files": files, "result": self.result(), "text": self.text()}

    # What the program prices.

    def price(
        self, cluster: dict[str, Any], shares: dict[str, float], **asked: Any
    ) -> tuple[list[float], dict[str, float]]:
        """Seconds by a cluster with other shares, and the shares."""
        answer = self.ask({"price": {"cluster": cluster, "shares": shares, **asked}})
        return answer["seconds"], answer["shares"]

    def price_rows(
        self, cluster: dict[str, Any], shares: dict[str, float], tables: list[Table], least: float
    ):
        """Seconds of rows of so many bytes or more."""
        rows = [
            {
                "op": of.op,
                "node": of.node,
                "bytes": [row.bytes for row in of.rows if row.bytes >= least],
            }
            for of in tables
        ]
        nodes = max((of.nodes for of in self.tables), default=1)
        return self.price(cluster, shares, tables=rows, nodes=nodes)

    def price_steps(self, shares: dict[str, float]) -> tuple[list[float], dict[str, float]]:
        """Seconds of the steps that were planned."""
        stack = {"stack": self.software.table} if self.software.base else {}
        return self.price(self.hardware.table, shares, **stack)

    def planned(self) -> list[dict[str, Any]]:
        """The steps on the descriptions as they are."""
        cluster = {**self.hardware.table, "kind": "cluster"}
        stack = {**self.software.table, "kind": "stack"}
        bases = [self.hardware.base, self.software.base]
        return self.ask({"plan": {"cluster": cluster, "stack": stack, "bases": bases}})

    # The input.

    def refuse(self, code: str, option: str, value: str, message: str, hint: str) -> None:
        """`value`: what the option was given, which says where the user wrote it."""
        place = f"{option} {value}" if value else ""
        self.problems.refuse(code, message, hint, key=option, place=place)

    def read(self, given: dict[str, Any]) -> None:
        """Takes in a log or a list of steps."""
        file, kind = given["file"], given["irregular"]
        logs = "logs of nccl-tests"
        if kind == "a folder":
            hint = f"name the files in it: {logs}, and measured steps that end in .json"
            self.refuse("calibration.log", "--from", file, f"it is {kind}", hint)
        elif kind:
            hint = "name a file: a log of nccl-tests, or measured steps that end in .json"
            self.refuse("calibration.log", "--from", file, f"it is {kind}", hint)
        elif given.get("text") is None and given.get("steps") is None:
            message = "there is no such file, or it cannot be read"
            hint = f"name {logs}, and files of measured steps that end in .json"
            self.refuse("calibration.log", "--from", file, message, hint)
        elif "steps" in given:
            self.steps += given["steps"]
            self.problems += given["problems"]
        else:
            self.tables += LogReader(file, self.problems).run(given["text"])

    def check_files(self) -> None:
        """Refuses names that cannot be written, or that the user would miss."""
        file, folder = self.file, self.folder
        if self.ending != ".lua":
            message = (
                "a cluster file ends in .lua"
                if file
                else "--from writes a cluster file, and nothing names it"
            )
            self.refuse("calibration.output", "-o", file, message, f"-o {self.stem or 'mine'}.lua")
        elif folder and not os.path.isdir(folder):
            hint = f"make it first, or -o {self.name}"
            self.refuse("calibration.output", "-o", file, f"there is no folder {folder}", hint)
        else:
            self.check_outputs([file, self.stack_file] if self.steps else [file])

    def check_outputs(self, files: list[str]) -> None:
        """Refuses files that the program never overwrites, such as an input, and without
        --overwrite all files that exist."""
        try:
            self.ask({"write": files})
        except Refused as refused:
            self.problems += refused.problems
            return
        for file in files:
            if os.path.exists(file) and not self.request["overwrite"]:
                message = f"{file} exists already"
                self.refuse(
                    "calibration.exists", "-o", self.file, message, "another name, or --overwrite"
                )

    # What the descriptions begin as.

    def find_bases(self) -> None:
        """Reads the cluster and the stack that give all that was not measured."""
        request = self.request
        given = any("steps" in one for one in request["from"])
        if given and not request["stack"]:
            self.refuse(
                "calibration.base",
                "--stack",
                "",
                "steps were measured, and nothing says by which software",
                "name the stack that is nearest to it, for example --stack megatron-core",
            )
        if not given and request["stack"]:
            self.refuse(
                "calibration.base",
                "--stack",
                request["stack"],
                "it is the software of steps, and none are given",
                "give measured steps, a file .json, or leave --stack out",
            )
        self.hardware.base = request["cluster"] or self.shipped_with_devices()
        self.software.base = request["stack"]
        try:
            for made, what in ((self.hardware, "cluster"), (self.software, "stack")):
                if made.base:
                    [made.table] = self.ask({"describe": {"what": what, "names": [made.base]}})
            if self.hardware.base:
                self.price_steps({})  # refuses what no description can have
        except Refused as refused:
            self.problems += refused.problems
            return
        if self.software.base:
            self.software.table["name"] = f"{self.stem}-stack"
        if self.tables and self.hardware.base:
            self.compare_devices()

    def compare_devices(self) -> None:
        """Doubts a base whose devices are not those of the logs."""
        base = self.hardware.base
        own, logged = self.hardware.table["device"].get("name", ""), self.tables[0].device
        if not self.steps:
            self.hardware.unknown.append(
                "nccl-tests tell nothing of what devices compute: their rates and memory, and the "
                f"host, stay those of {base}"
            )
        if model_of(logged) != model_of(own) or not model_of(own):
            self.doubts.append(
                f"the logs are of {logged}, and the devices of {base} are {own}: if these are not "
                "the same, change device, or name another --cluster"
            )

    def shipped_with_devices(self) -> str:
        """The first cluster that ships whose devices are those of the logs, by memory too if one is
        so. Empty: there is none."""
        logged, names = self.tables[0].device if self.tables else "", self.request["clusters"]
        found = ""
        shipped = self.ask({"describe": {"what": "cluster", "names": names}}) if self.tables else []
        for cluster in shipped:
            device = cluster["device"].get("name", "")
            if not model_of(logged) or model_of(device) != model_of(logged):
                continue
            if device.rpartition("-")[2] in words_of(logged):
                return cluster["name"]
            found = found or cluster["name"]
        if not found and (self.tables or not self.problems):
            self.refuse(
                "calibration.base",
                "--cluster",
                "",
                (
                    f"no cluster that ships has {logged}"
                    if logged
                    else "no log says which devices the cluster has"
                ),
                f"name the nearest with --cluster: {', '.join(names)}",
            )
        return found

    # The fits.

    def fit_steps_of_scripts(self) -> None:
        """Fits the shares of both descriptions to the steps."""
        planned, base = self.planned(), self.hardware.base
        for step, plan in zip(self.steps, planned):
            if not plan["fits"]:
                # What was measured did fit.
                self.problems.refuse(
                    "calibration.steps",
                    f"its plan needs {size(plan['needed'])} of a device, and {base} has "
                    f"{size(plan['memory'])}: it cannot be what was measured",
                    'does "set" have the recompute, microbatch and sharding that ran? name the '
                    "cluster by --cluster if its devices have more",
                    key=step["place"],
                    place=step["place"],
                )
        self.problems.raise_if_any()
        self.look_for_full_devices(planned)
        self.shares, self.fit, self.before = fit_steps(
            self.hardware, self.software, self.steps, self.price_steps
        )
        # Planned anew, as `plan` will do it: stages may get other layers by the fitted shares.
        self.predicted = [plan["seconds"] for plan in self.planned()]
        for step, before, predicted in zip(self.steps, self.before, self.predicted):
            refuse_unexplained(step, before, predicted, base, self.problems)
            times = step["seconds"] / before
            if not is_explained(times):
                self.doubts.append(
                    f"{step['place']} took {times:.3g} times what {base} and {self.software.base} "
                    "have it take: the shares fitted to it are those of other hardware or of "
                    "another step"
                )
        self.problems.raise_if_any()

    def look_for_full_devices(self, planned: list[dict[str, Any]]) -> None:
        """Doubts steps that fill a device."""
        full = [
            plan["reported"]
            for plan in planned
            if plan["memory"] and plan["reported"] > plan["memory"]
        ]
        if full:
            self.doubts.append(
                f"a driver would report more than the {size(planned[0]['memory'])} of a device of "
                f"{self.hardware.base} for {len(full)} of {plural(len(planned), 'measured step')}, "
                f"up to {size(max(full))}: what was measured may hold pauses of an allocator that "
                "gives memory back"
            )

    def compare_rows(self) -> None:
        """Prices what the logs have by what they made."""
        seconds, _ = self.price_rows(self.hardware.table, {}, self.tables, 0)
        rows = [(of, row) for of in self.tables for row in of.rows]
        self.rows = [(of, row, predicted) for (of, row), predicted in zip(rows, seconds)]
        self.devices = self.hardware.table.get("node", {}).get("devices", 1)

    def look_for_ends(self) -> None:
        """Doubts tables that stop before their end."""
        for of in self.tables:
            if not of.ended:
                self.doubts.append(
                    f"the table at {of.file}:{of.line} ends with {size(of.rows[-1].bytes)}, "
                    'without the last lines of nccl-tests ("# Avg bus bandwidth"): it is cut off, or '
                    "the program did not come to its end"
                )

    # What is said of it.

    def head_of(self, description: Description) -> list[str]:
        """Sentences of a file's first comment."""
        names = ", ".join(os.path.basename(given["file"]) for given in self.request["from"])
        today = time.strftime("%Y-%m-%d", time.gmtime())
        made = (
            f"What `meshwright calibrate --from` made of {names} on {today}. "
            f"Numbers without a source above them are those of {description.base}."
        )
        unknown = (f"Not measured: {sentence}." for sentence in description.unknown)
        return [made, *unknown, *(f"Doubtful: {doubt}." for doubt in self.doubts)]

    def result(self) -> dict[str, Any]:
        """For --json."""
        result: dict[str, Any] = {
            "kind": "description",
            "file": self.file,
            "base": self.hardware.base,
            "sources": dict(sorted(self.hardware.sources.items())),
            "unknown": self.hardware.unknown + self.software.unknown,
            "doubts": self.doubts,
        }
        rows = [
            {
                "file": of.file,
                "line": row.line,
                "collective": of.perf,
                "ranks": of.ranks,
                "nodes": of.nodes,
                "bytes": row.bytes,
                "seconds": row.seconds,
                "predicted_seconds": predicted,
                "is_curve": of.is_curve(self.devices),
            }
            for of, row, predicted in self.rows
        ]
        if rows:
            result["rows"] = rows
        if not self.steps:
            return result
        result |= {"stack_file": self.stack_file, "base_stack": self.software.base, "steps": []}
        for k, step in enumerate(self.steps):
            said = {key: step[key] for key in ("script", "nodes", "seconds")}
            said |= {"before_seconds": self.before[k], "predicted_seconds": self.predicted[k]}
            if self.fit.left_out:
                said["left_out_seconds"] = self.fit.left_out[k]
            result["steps"].append(said)
        result["fitted"] = {
            share.key: {"value": value, "before": share.value, "told": told}
            for share, value, told in zip(self.shares, self.fit.values, self.fit.told)
        }
        return result

    def rows_text(self) -> str:
        """By how much the description misses each table's rows on average, by their size."""
        lines = [["mean error, by size", "ranks", *(name for _, name in BANDS)]]
        for of in self.tables:
            line, least = [of.perf, of.place], 0.0
            if of.is_curve(self.devices):
                line.append("taken as the curve")
            for most, _ in BANDS if len(line) == 2 else ():
                errors = [
                    abs(predicted / row.seconds - 1)
                    for other, row, predicted in self.rows
                    if other is of and least < row.bytes <= most
                ]
                line.append(f"{100 * sum(errors) / len(errors):.1f} %" if errors else "")
                least = most
            lines.append(line)
        return table(lines, range(2, len(lines[0])))

    def steps_text(self) -> str:
        """The steps before the fit and after it, and the shares that it changed."""
        lines = [["step", "nodes", "measured", "before", "", "fitted", "", "fit without it", ""]]
        for k, step in enumerate(self.steps):
            own = step["seconds"]
            line = [os.path.basename(step["script"]), str(step["nodes"]), duration(own)]
            for seconds in (self.before, self.predicted, self.fit.left_out):
                if seconds:
                    line += [duration(seconds[k]), f"{100 * (seconds[k] / own - 1):+.1f} %"]
            lines.append(line)
        shares = [["share", "before", "fitted"]]
        for share, value, told in zip(self.shares, self.fit.values, self.fit.told):
            if told:
                shares.append([share.key, f"{share.value:.4g}", f"{value:.4g}"])
        return table(lines, range(1, len(lines[0]))) + table(shares, range(1, len(shares[0])))

    def text(self) -> str:
        """For the terminal."""
        text = f"{self.file}: as {self.hardware.base}, with what was measured\n"
        text += self.rows_text() if self.rows else ""
        text += self.steps_text() if self.steps else ""
        sentences = [
            f"not measured: {one}" for one in self.hardware.unknown + self.software.unknown
        ]
        for sentence in sentences + [f"doubtful: {doubt}" for doubt in self.doubts]:
            kind, _, said = sentence.partition(": ")
            text += f"  {kind}: {wrapped(said, 100, ' ' * 4)}\n"
        stack = f" --stack {named(self.stack_file)}" if self.steps else ""
        return f"{text}  --cluster {named(self.file)}{stack}\n"


def named(file: str) -> str:
    """As mw.cluster takes it."""
    return file if os.path.dirname(file) else f"./{file}"
