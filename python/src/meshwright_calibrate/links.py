"""Fits a cluster's links: curves are taken as they were measured; shares and latencies, for groups
that nobody measured, are those with which the rows come out best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright_calibrate.description import Description
from meshwright_calibrate.nccl_log import COLLECTIVES, Row, Table, means
from meshwright_calibrate.problems import Problems
from meshwright_calibrate.shares import Fit, Share, fit_shares
from meshwright_called.texts import plural, size

RATE_SIZE = 1 << 20  # bytes of a row by which a rate is fitted
LATENCY_SIZE = 64 << 10  # least bytes of a row by which latencies are fitted
ROW_ERROR = 0.02  # of a measured row, as the fit weighs it
RATES = {"node": "bandwidth", "network": "nic"}  # the rate of the links of each part
FREE_CHANGE = 3  # of a logarithm: what the base says hardly counts

# Seconds of the rows of tables of these bytes or more, on a cluster with other shares; and the
# shares.
Price = Callable[
    [dict[str, Any], dict[str, float], list[Table], float], tuple[list[float], dict[str, float]]
]


def rounded(value: float) -> float:
    """A fitted number with as many digits as it is worth."""
    return float(f"{value:.5g}")


def listed(tables: list[Table]) -> str:
    """Which tables these are."""
    return ", ".join(
        f"{table.perf} among {table.place} ({table.file}:{table.line}, "
        f"{plural(len(table.rows), 'size')})"
        for table in tables
    )


def bus_bandwidth(table: Table, row: Row) -> float:
    """Bytes a second through a device's link, as nccl-tests count them."""
    return table.bus_share * row.bytes / row.seconds


def is_ring(table: Table) -> bool:
    """All-reduces inside a node and their halves, which say the same of its links."""
    return table.nodes == 1 and table.op not in ("all-to-all", "send")


class LinkFit:
    """Puts into a description what the tables tell: their rows as curves, and for what no curve
    tells the share of a node's links, the network's share and latencies."""

    def __init__(self, made: Description, tables: list[Table], devices: int, price: Price) -> None:
        self.made, self.tables, self.price = made, tables, price
        self.devices = devices  # of a node; 0: the most ranks that a node has in any table
        self.node = made.table.get("node", {})

    def run(self, problems: Problems) -> None:
        """Problems if the description has no place for them."""
        if self.tables and not self.has_place(problems):
            return
        if self.devices > 0:
            self.made.table["node"] = self.node
            self.node["devices"] = self.devices
        if not self.tables:
            return
        self.forget_curves()
        self.add_curves("node", is_ring)
        self.node_share()
        self.measured_on("node")
        self.network()
        # Curves hide the shares, which the sends and exchanges were needed to find.
        self.add_curves("node", lambda table: table.nodes == 1 and not is_ring(table))
        self.add_curves("network", lambda table: table.nodes > 1)

    def has_place(self, problems: Problems) -> bool:
        """Whether the base has nodes and a network, and nodes that are large enough."""
        made, most = self.made, max(table.most_of_node for table in self.tables)
        nodes = max(table.nodes for table in self.tables)
        if self.devices == 0:
            self.devices = most
            base = self.node.get("devices", most)
            if base > most:
                made.unknown.append(
                    f"a node is taken to have {most} devices, the most that a log has on one; "
                    f"{made.base} has {base}: if yours does too, say --devices {base}"
                )
        if self.devices < most:
            problems.refuse(
                "calibration.devices",
                f"--devices {self.devices}, and a log has {most} ranks on one node",
                f"--devices {most}, or leave it out",
                key="--devices",
            )
        elif "torus" in made.table:
            problems.refuse(
                "calibration.base",
                f"{made.base} is a torus, which has no nodes and no network",
                "name a cluster of nodes with --cluster, for example dgx-h100",
                key="--cluster",
            )
        elif nodes > 1 and "network" not in made.table:
            problems.refuse(
                "calibration.base",
                f"{made.base} has no network, and a log is of {nodes} nodes",
                "name one with --cluster that has: network = { nic = 50e9 }, a device's share of "
                "its node's NICs",
                key="--cluster",
            )
        else:
            return True
        return False

    def whole(self) -> list[Table]:
        """Tables with all devices of several nodes."""
        return [table for table in self.tables if table.nodes > 1 and table.is_curve(self.devices)]

    def add_curves(self, part: str, wanted: Callable[[Table], bool]) -> None:
        """Rows become curves as they were measured, the mean where several tables have a size."""
        places: dict[tuple[int, int, int], list[Table]] = {}
        ops = [op for _, op in COLLECTIVES.values()]
        for table in self.tables:
            if table.is_curve(self.devices) and wanted(table):
                place = (ops.index(table.op), table.nodes, table.ranks)
                places.setdefault(place, []).append(table)
        for (op, nodes, ranks), of in sorted(places.items()):
            rows = means([row for table in of for row in table.rows])
            curve = {
                "op": ops[op],
                **({"nodes": nodes} if nodes > 1 else {}),
                "ranks": ranks,
                "points": [[row.bytes, rounded(row.seconds)] for row in rows],
            }
            curves = self.made.table[part].setdefault("curves", [])
            curves.append(curve)
            self.made.sources[f"{part}.curves[{len(curves)}]"] = listed(of)
        if part == "node" or places:
            self.measured_on(part)

    def forget_curves(self) -> None:
        """What was measured takes the place of the base's curves. Those that stay were measured on
        other links, and are written as they are priced on these."""
        node, made = self.node, self.made
        inside = [table for table in self.tables if table.nodes == 1]
        measured = {table.op for table in inside}
        most = max((table.ranks for table in inside if is_ring(table)), default=0)
        rate = max((bus_bandwidth(table, row) for table in inside for row in table.rows), default=0)
        if rate > 0:
            node.setdefault("bandwidth", rounded(rate))
        on = node.get("curve_bandwidth", 0)
        scale = node.get("bandwidth", 0.0) / on if on > 0 else 1
        kept = []
        for curve in node.get("curves", []):
            op = curve.get("op", "all-reduce")
            if op in measured if op in ("all-to-all", "send") else most > 0:
                continue
            if scale != 1:
                points = [
                    [rounded(scale * bytes_), *seconds] for bytes_, *seconds in curve["points"]
                ]
                curve = {**curve, "points": points}
            kept.append(curve)
        if "curves" in node:
            node["curves"] = kept
        if most == 0:
            made.unknown.append(
                f"no all-reduce inside a node was measured: node.curves stay those of {made.base}"
            )
        elif most < self.devices:
            made.unknown.append(
                f"the largest group measured inside a node has {most} of {self.devices} devices: "
                "larger ones are priced by the bus bandwidth of that"
            )
        if self.whole():
            made.table["network"].pop("curves", None)

    def measured_on(self, part: str) -> None:
        """The curves say what these links do, whatever rate the description comes to give them."""
        table, rate = self.made.table[part], RATES[part]
        if rate in table and table.get("curves"):
            table[f"curve_{rate}"] = table[rate]

    def set_share(self, part: str, share: float, source: str) -> None:
        """Sets a rate of the data sheet and the share of it that is reached, of which no more than
        all makes sense."""
        table, rate, sources = self.made.table[part], RATES[part], self.made.sources
        sources[f"{part}.share"] = source
        if share > 1:
            table[rate] = rounded(table.get(rate, 0.0) * share)
            sources[f"{part}.{rate}"] = (
                f"more than {self.made.base} has is reached: what is reached"
            )
        table["share"] = rounded(min(share, 1))

    def node_share(self) -> None:
        """What sends, exchanges and rings over nodes reach of a device's link."""
        inside = [table for table in self.tables if table.nodes == 1]
        sends = [table for table in inside if not is_ring(table)]
        if sends:
            _, base = self.price(self.made.table, {}, [], 0)
            share = Share("node.share", base["node.share"], 1e-4, 100)
            fit, error = self.fitted(sends, RATE_SIZE, [share])
            text = fitted_text(sends, RATE_SIZE, error)
            return self.set_share("node", fit.values[0], text)
        halves = [table for table in inside if table.op != "all-reduce"] or inside
        if not halves:
            return None
        largest = max(halves, key=lambda table: table.ranks)
        row = largest.rows[-1]
        # Switches that add up reach more than links have.
        share = min(bus_bandwidth(largest, row) / self.node["bandwidth"], 1.0)
        source = f"bus bandwidth of {largest.perf} of {size(row.bytes)}, {largest.file}:{row.line}"
        self.set_share("node", share, source)
        self.made.unknown.append(
            "no all-to-all and no send inside a node was measured: node.share is the bus bandwidth "
            f"of the largest {largest.perf}"
        )
        return None

    def network(self) -> None:
        """What rings and trees over nodes reach of the NICs."""
        unknown, base = self.made.unknown, self.made.base
        over = sum(table.nodes > 1 for table in self.tables)
        whole = self.whole()
        if over == 0:
            unknown.append(
                f"only one node was measured: the network stays that of {base}"
                if "network" in self.made.table
                else f"only one node was measured, and {base} has no network: plans of several "
                "nodes are refused until the file has one"
            )
            return
        if len(whole) < over:
            unknown.append(
                f"{plural(over - len(whole), 'table')} over nodes "
                f"{'has' if over - len(whole) == 1 else 'have'} not all {self.devices} devices of "
                "each, so each device had a larger share of the NICs: such tables are only compared"
            )
        if not whole:
            unknown.append(
                f"no log has all {self.devices} devices of several nodes: the network stays that "
                f"of {base}; where nodes have fewer devices, say so by --devices"
            )
            return
        most = max(table.nodes for table in whole)
        if most == 2:
            self.fit_two_nodes(whole)
        else:
            self.fit_network(whole, 100)
        unknown.append(
            f"at most {plural(most, 'node')} were measured together: what more of them share "
            f"(network.oversubscription, network.pod) stays that of {base}"
        )

    def fit_two_nodes(self, whole: list[Table]) -> None:
        """NCCL's tree sends each byte of an all-reduce over two nodes once, a ring nearly twice. So
        rows of all-reduces can be faster than the NICs let a ring be, and prove no faster NICs. The
        NICs are fitted to other collectives, where there are any."""
        unknown = self.made.unknown
        others = [table for table in whole if table.op != "all-reduce"]
        if others:
            self.fit_network(others, 100)
            if len(others) < len(whole):
                unknown.append(
                    "all-reduces over two nodes can be up to twice as fast as over more, because "
                    "NCCL's tree sends each byte once between two nodes: more nodes are not priced "
                    "by them"
                )
            return
        self.fit_network(whole, 1)
        # The highest bytes a second of a device that a ring would need.
        bus = max(bus_bandwidth(table, row) / self.devices for table in whole for row in table.rows)
        nic = self.made.table["network"].get("nic", 0.0)
        here = (
            f" (here up to {1e-9 * bus:.3g} GB/s a device by bus bandwidth, and its NICs stay the "
            f"{1e-9 * nic:.3g} GB/s of {self.made.base})"
        )
        unknown.append(
            "all-reduces over two nodes can be up to twice as fast as over more, as NCCL's tree "
            f"sends each byte once there{here if bus > nic else ''}: measure all_gather_perf, or "
            "four nodes, or with NCCL_ALGO=Ring, before plans of more are believed"
        )

    def fit_network(self, whole: list[Table], most: float) -> None:
        """`most` is the upper bound of network.share, unless the base has a larger one."""
        made = self.made
        _, base = self.price(made.table, {}, [], 0)
        share, hop, latency = (base[f"network.{key}"] for key in ("share", "hop", "latency"))
        # Rings and hierarchies change places as these change: more than one start finds the best.
        best, least = min(
            (
                self.fitted(
                    whole,
                    LATENCY_SIZE,
                    [
                        Share("network.share", share, 1e-4, max(most, share)),
                        Share("network.hop", start * max(hop, 1e-6), 1e-8, 1e-2),
                        Share("network.latency", start * max(latency, 1e-6), 1e-7, 1e-1),
                    ],
                )
                for start in (1.0, 0.25, 4.0)
            ),
            key=lambda fit_and_error: fit_and_error[1],
        )
        self.set_share("network", best.values[0], fitted_text(whole, LATENCY_SIZE, least))
        made.unknown.append(
            "groups of other nodes or devices than those of the logs are priced by network.share, "
            f"hop and latency, which miss the measured rows of {size(LATENCY_SIZE)} and more by "
            f"{100 * least:.1f} % on average"
        )
        for k, key in enumerate(("hop", "latency"), 1):
            if best.told[k]:
                made.table["network"][key] = rounded(best.values[k])
                made.sources[f"network.{key}"] = "fitted with network.share"
            else:
                made.unknown.append(f"no row tells of network.{key}: it stays that of {made.base}")

    def fitted(self, tables: list[Table], least: float, shares: list[Share]) -> tuple[Fit, float]:
        """The shares with which the rows come out best, and the mean error of these."""
        measured = [row.seconds for table in tables for row in table.rows if row.bytes >= least]

        def predict(values: list[float]) -> list[float]:
            tried = {share.key: value for share, value in zip(shares, values)}
            return self.price(self.made.table, tried, tables, least)[0]

        fit = fit_shares(shares, measured, predict, ROW_ERROR, FREE_CHANGE)
        errors = [abs(one / other - 1) for one, other in zip(fit.predicted, measured)]
        return fit, sum(errors) / len(errors)


def fitted_text(tables: list[Table], least: float, error: float) -> str:
    """Where a fitted share comes from."""
    return (
        f"fitted to rows of {size(least)} and more, off by {100 * error:.1f} % on average: "
        f"{listed(tables)}"
    )
