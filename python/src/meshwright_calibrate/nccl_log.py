"""What nccl-tests print: which collective took how long among which devices.

Versions differ in their columns, which are found by the table's own header; what launchers put
before a line is taken off.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re

from meshwright_calibrate.problems import Problems
from meshwright_called.texts import plural, size

FEWEST_SIZES = 4
LEAST_LARGEST = 32 << 20  # bytes from which on a link's rate shows
RERUN = "run it with -b 1K -e 1G -f 2"

# By the programs' names without what people put between words. In sendrecv_perf each rank sends to
# the next one round a ring.
COLLECTIVES = {
    "allreduce": ("all_reduce_perf", "all-reduce"),
    "allgather": ("all_gather_perf", "all-gather"),
    "reducescatter": ("reduce_scatter_perf", "reduce-scatter"),
    "alltoall": ("alltoall_perf", "all-to-all"),
    "sendrecv": ("sendrecv_perf", "send"),
}
PERFS = {op: perf for perf, op in COLLECTIVES.values()}
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
COUNT = re.compile(r"\d{1,15}", re.ASCII)  # a double has all of its digits
# "[1,0]<stdout>:" of mpirun, and "3: " of srun's --label.
LABEL = re.compile(r"\[.*?\]<std.*?>:|\d+: ", re.ASCII)
PROGRAM = re.compile(r"(\w*?)_perf", re.ASCII)
# "Rank 0 Group 0 Pid 313 on host device 0 [0x18] NVIDIA H100 80GB HBM3"; Group is newer.
RANK = re.compile(
    r"Rank (\d{1,7})(?: Group (\S+))?(?: \S+)*? on (\S+) device \S+ \S+ (.+)", re.ASCII
)
# What nccl-tests, NCCL, launchers and the system print where a program does not come to its end.
FAILURE = re.compile(
    "Test failure|Test NCCL failure|Test CUDA failure|Test MPI failure|NCCL failure|CUDA failure|"
    "unhandled system error|unhandled cuda error|NCCL WARN|NCCL error|Segmentation fault|Bus error|"
    "Killed|Aborted|Caught signal|mpirun noticed|mpiexec noticed|MPI_ABORT|srun: error|CANCELLED|"
    "core dumped|terminate called|Out Of Memory|Traceback"
)


@dataclasses.dataclass
class Row:
    """A size that was measured: bytes of a rank's larger buffer."""

    bytes: float
    seconds: float
    line: int


@dataclasses.dataclass
class Table:
    """The table of one program."""

    file: str
    line: int = 0  # of its header
    op: str = ""  # "all-reduce"
    device: str = ""  # "NVIDIA H100 80GB HBM3"
    node: list[int] = dataclasses.field(default_factory=list)  # of each rank, by their order
    rows: list[Row] = dataclasses.field(default_factory=list)
    ended: bool = False  # the log has the lines that nccl-tests ends a table with

    @property
    def ranks(self) -> int:
        """How many took part."""
        return len(self.node)

    @property
    def nodes(self) -> int:
        """On how many nodes."""
        return max(self.node) + 1

    @property
    def most_of_node(self) -> int:
        """Ranks of the node that has most of them."""
        return max(collections.Counter(self.node).values())

    @property
    def perf(self) -> str:
        """The program: "all_reduce_perf"."""
        return PERFS[self.op]

    @property
    def place(self) -> str:
        """ "16 ranks on 2 nodes"."""
        return f"{plural(self.ranks, 'rank')} on {plural(self.nodes, 'node')}"

    @property
    def bus_share(self) -> float:
        """Bus bandwidth over that of the algorithm."""
        return bus_share(self.op, self.ranks)

    def is_curve(self, devices: int) -> bool:
        """Whether a description takes the rows as they are. Over nodes with fewer than all devices
        of each, a device had a larger share of the NICs than all of them together have."""
        whole = self.most_of_node == devices and self.ranks == devices * self.nodes
        return self.nodes == 1 or whole


def bus_share(op: str, ranks: int) -> float:
    """Bus bandwidth over that of the algorithm, as nccl-tests define it (doc/PERFORMANCE.md)."""
    return 1 if op == "send" else (2 if op == "all-reduce" else 1) * (ranks - 1) / ranks


def means(rows: list[Row]) -> list[Row]:
    """One row a size: the mean of those that were measured several times."""
    by_size: dict[float, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row.bytes, []).append(row)
    return [
        Row(of[0].bytes, sum(row.seconds / len(of) for row in of), of[0].line)
        for _, of in sorted(by_size.items())
    ]


def numeric(word: str) -> float | None:
    """The number that a word is."""
    value = float(word) if NUMBER.fullmatch(word) else math.inf
    return value if math.isfinite(value) else None


def plain(text: str) -> str:
    """Lower case, without what people put between words."""
    return re.sub("[_-]", "", text).lower()


@dataclasses.dataclass
class Section:
    """One program's output so far."""

    perf: str = ""  # "allreduce"; empty: no line names it
    ranks: list[tuple[int, str, str]] = dataclasses.field(
        default_factory=list
    )  # number, host, device
    columns: list[str] = dataclasses.field(default_factory=list)
    line: int = 0
    started: bool = False
    ended: bool = False
    groups: bool = False
    failed: bool = False
    bad: bool = False
    failure: int = 0  # the first line that says that the program failed
    rows: list[Row] = dataclasses.field(default_factory=list)
    wrong: list[int] = dataclasses.field(default_factory=list)
    largest: float = 0
    bus: float = 0  # of the largest row: bus bandwidth over the algorithm's


class LogReader:
    """Reads a log, in which several tables may stand. Every problem names its line."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.file, self.problems = file, problems
        self.tables: list[Table] = []
        self.now, self.next, self.line, self.header_seen = Section(), "", 0, False

    def run(self, text: str) -> list[Table]:
        """All tables. Each row counts out of place, or in place where that alone was measured."""
        for line in text.split("\n"):
            self.line += 1
            label = LABEL.match(line)
            self.read(line[label.end() :] if label else line)
        self.finish()
        if not self.header_seen:
            self.problems.refuse(
                "calibration.log",
                "there is no table of nccl-tests in it",
                "give what all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf or "
                "sendrecv_perf prints, with its lines that begin with #",
                place=self.file,
            )
        return self.tables

    def refuse(self, code: str, line: int, message: str, hint: str) -> None:
        """Tells what is wrong with the table."""
        self.now.bad = True
        self.problems.refuse(code, message, hint, place=f"{self.file}:{line}")

    def read(self, line: str) -> None:
        """Takes in one line."""
        words = line.replace("#", " ").split()  # begins a line, and the name of a column
        if not words:
            return
        self.name_program(line)
        now, first = self.now, words[0]
        if first == "nThread":
            self.finish()
            self.now.started = True
            if self.next:
                self.now.perf, self.next = self.next, ""
        elif first == "Rank":
            self.read_rank(words)
        elif first == "size" and len(words) > 4 and words[1] == "count":
            if not now.columns:  # a second process prints the same
                now.columns, now.line, self.header_seen = words, self.line, True
        elif first == "Out" and "Out of bounds values" in line:
            now.ended, now.failed = True, "FAILED" in line
        elif now.columns and FAILURE.search(line):
            now.failure = now.failure or self.line
        elif first == "Avg" and "Avg bus bandwidth" in line:
            now.ended = True
        elif now.columns and len(words) > 1 and COUNT.fullmatch(first) and "NCCL" not in line:
            self.read_row(words)

    def name_program(self, line: str) -> None:
        """A command line, or "Collective test starting: all_reduce_perf"."""
        found = PROGRAM.search(line)
        if not found:
            return
        if "concluded" in line or (self.now.started and not self.now.ended):
            self.now.perf = self.now.perf or plain(found[1])
        else:
            self.next = plain(found[1])

    def read_rank(self, words: list[str]) -> None:
        """The line of a rank."""
        found = RANK.fullmatch(" ".join(words))
        if not found:
            hint = "copy the log as it is"
            return self.refuse("calibration.log", self.line, "the line of a rank is cut off", hint)
        number, group, host, device = found.groups()
        self.now.groups |= group not in (None, "0")
        self.now.ranks.append((int(number), host, device))

    def numbers_at(self, words: list[str]) -> int | None:
        """Where the numbers stand behind the columns on the left, of which an empty one leaves no
        word. None: the row is cut off."""
        columns = self.now.columns
        left = columns.index("time") if "time" in columns else len(columns)
        if len(columns) - left < 4:
            return None
        if len(words) == len(columns):
            return left
        no_op = len(words) > 3 and numeric(words[3]) is not None
        if len(words) + 1 == len(columns) and no_op and left > 3 and columns[3] == "redop":
            return left - 1
        return None

    def read_row(self, words: list[str]) -> None:
        """One size."""
        now, first = self.now, self.numbers_at(words)
        again = "run it again, or take the row out"
        if first is None or not COUNT.fullmatch(words[1]):
            message = f"a row of {len(now.columns)} columns is cut off: it has {len(words)}"
            return self.refuse("calibration.log", self.line, message, again)
        half = 4 if first + 6 < len(words) else 0  # in place, where it is there
        wrong = [numeric(words[at]) for at in (first + 3, first + half + 3) if at < len(words)]
        # Older versions print the largest error there, a fraction.
        if now.columns[-1] == "wrong" and any((count or 0) > 0 for count in wrong):
            now.wrong.append(self.line)
        count = float(words[0])
        at = first if (numeric(words[first]) or 0) > 0 else first + half
        micros, rate, bus = map(numeric, words[at : at + 3])
        if count <= 0:
            return None
        if micros is None or rate is None or bus is None or micros <= 0:
            return self.refuse("calibration.log", self.line, "a row has no time", again)
        own = 1e-3 * count / micros  # GB/s; printed with two digits behind the point
        if abs(own - rate) > 0.02 * own + 0.0051:
            return self.refuse(
                "calibration.log",
                self.line,
                f"{words[0]} bytes in {words[at]} us are {own:.2f} GB/s, and the row says "
                f"{words[at + 1]}",
                "the columns are not those of nccl-tests: copy the log as it is",
            )
        now.rows.append(Row(count, 1e-6 * micros, self.line))
        if count >= now.largest and rate >= 1:
            now.largest, now.bus = count, bus / rate
        return None

    def finish(self) -> None:
        """Keeps the table of the program that was read last, if it has one and that is right."""
        done = self.now
        if not done.columns:  # where nccl-tests are built without MPI every process prints
            return
        self.check_results(done)
        table = Table(self.file, done.line, rows=means(done.rows), ended=done.ended)
        self.place_ranks(done, table)
        if not done.bad:
            self.name_collective(done, table)
        if not done.bad:
            self.check_sizes(table)
        if not done.bad:
            self.tables.append(table)
        self.now = Section()

    def check_results(self, done: Section) -> None:
        """Refuses what computed wrongly, or did not come to its end."""
        if done.failure and not done.ended:
            self.refuse(
                "calibration.log",
                done.failure,
                f"the program failed after {plural(len(done.rows), 'row')}",
                "links that fail tell nothing of how fast they are: measure again; or take out "
                "this line and those below it, if the rows above are right",
            )
        if done.wrong or done.failed:
            rows = (
                f"in {plural(len(done.wrong), 'row')}" if done.wrong else "(out of bounds: FAILED)"
            )
            self.refuse(
                "calibration.wrong-results",
                done.wrong[0] if done.wrong else done.line,
                f"the collective gave wrong results {rows}",
                "what computes wrongly has no speed: mend the links first, and measure again",
            )

    def place_ranks(self, done: Section, table: Table) -> None:
        """Says on which nodes they are, and what device they have."""
        numbers, hosts, devices = zip(*done.ranks) if done.ranks else ((), (), ())
        order = list(dict.fromkeys(hosts))
        table.node = [order.index(host) for host in hosts]
        count, most = len(numbers), max(numbers, default=-1)
        refuse = lambda *words: self.refuse("calibration.log", done.line, *words)
        if count == 0:
            keep = 'keep the lines "#  Rank  0 Group  0 Pid … on HOST device …"'
            refuse("no line says which devices took part", keep)
        elif numbers.count(0) > 1:
            several = f"{numbers.count(0)} processes are all rank 0: each ran alone"
            refuse(several, "build nccl-tests with MPI=1")
        elif count != most + 1:
            several = f"{count} of {most + 1} ranks have a line of their own"
            refuse(several, 'keep all lines "#  Rank …"')
        elif count == 1:
            hint = "run it with -g 8, or by mpirun on several devices"
            refuse("a single rank sends nothing", hint)
        if done.groups:
            refuse("several groups of ranks ran at once", "measure without NCCL_TESTS_SPLIT")
        if len(set(devices)) > 1:
            self.refuse(
                "calibration.devices",
                done.line,
                f"ranks have devices of several kinds: {', '.join(sorted(set(devices)))}",
                "a description has one kind: measure each by itself",
            )
        table.device = devices[0] if devices else ""

    def name_collective(self, done: Section, table: Table) -> None:
        """Finds it by the log's lines, by the file's name, or by the bus bandwidth."""
        name, ranks = done.perf, table.ranks
        if not name:
            file = plain(self.file.rpartition("/")[2])
            name = "".join([one for one in COLLECTIVES if one in file][-1:])
        is_sum = (
            done.bus > 0 and ranks > 2 and abs(done.bus / bus_share("all-reduce", ranks) - 1) < 0.03
        )
        if not name and is_sum:
            name = "allreduce"
        read = f"what is read are {', '.join(perf for perf, _ in COLLECTIVES.values())}"
        if not name:
            hint = f"name the file after it, for example all_gather.txt; {read}"
            return self.refuse(
                "calibration.log", done.line, "no line says which collective it is", hint
            )
        if name not in COLLECTIVES:
            message = f"{name}_perf tells nothing that a description has"
            return self.refuse("calibration.log", done.line, message, f"take the table out; {read}")
        perf, table.op = COLLECTIVES[name]
        if done.bus > 0 and abs(done.bus / table.bus_share - 1) > 0.03:
            self.refuse(
                "calibration.log",
                done.line,
                f"by its name it is {perf}, whose bus bandwidth is {table.bus_share:.2f} times the "
                f"other among {ranks} ranks, and its rows say {done.bus:.2f}",
                'name the file after its collective, and keep all lines "#  Rank …"',
            )
        return None

    def check_sizes(self, table: Table) -> None:
        """Refuses tables that show no rate."""
        if len(table.rows) < FEWEST_SIZES:
            said = (
                f"{plural(len(table.rows), 'size')} in the table, and a curve takes {FEWEST_SIZES}"
            )
        elif table.rows[-1].bytes < LEAST_LARGEST:
            said = (
                f"the largest size is {size(table.rows[-1].bytes)}, and a link shows its rate from "
                f"{size(LEAST_LARGEST)} on"
            )
        else:
            return
        self.refuse("calibration.sizes", table.line, said, RERUN)


def check_together(tables: list[Table], problems: Problems) -> None:
    """What only all logs together show: devices of several kinds, times of one size that cannot
    both be true, and a table that is given twice."""
    for at, own in enumerate(tables):
        if own.device != tables[0].device:
            problems.refuse(
                "calibration.devices",
                f"it is of {own.device}, and {tables[0].file} is of {tables[0].device}",
                "a description has one kind of device: give the logs of one",
                place=f"{own.file}:{own.line}",
            )
            continue
        for earlier in tables[:at]:
            if (earlier.op, earlier.node) == (own.op, own.node):
                refuse_twice(own, earlier, problems)


def refuse_twice(own: Table, earlier: Table, problems: Problems) -> None:
    """Refuses a table that is an earlier one again, as no two programs take the very same times,
    and one by the first size for which an earlier table has another time."""
    least, apart = 64 << 10, 1.25  # times of smaller sizes scatter by more
    facts = lambda table: [(row.bytes, row.seconds) for row in table.rows]
    if facts(own) == facts(earlier):
        said = f"{plural(len(own.rows), 'row')} are those of {earlier.file}:{earlier.line}"
        return problems.refuse(
            "calibration.twice",
            f"its {said}, and would count twice",
            "give each log once",
            place=f"{own.file}:{own.line}",
        )
    same = {row.bytes: row for row in earlier.rows}
    for row in own.rows:
        other = same.get(row.bytes)
        if row.bytes < least or not other or 1 / apart < row.seconds / other.seconds < apart:
            continue
        return problems.refuse(
            "calibration.contradiction",
            f"{own.perf} of {size(row.bytes)} among {own.place} took {1e3 * row.seconds:.4g} ms, "
            f"and {1e3 * other.seconds:.4g} ms in {earlier.file}:{other.line}",
            "give the one of the two that holds",
            place=f"{own.file}:{row.line}",
        )
    return None
