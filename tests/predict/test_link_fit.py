# label: unit
"""Links and steps of a made-up cluster are found again by what they make collectives and plans
take. A pricer with a few of the program's terms stands for it; cli/test_calibrate_from has the
program's own."""
import copy
import sys
import unittest

from cases import SOURCE

sys.path.insert(0, str(SOURCE / "python/src"))
from meshwright_calibrate.description import Description  # noqa: E402
from meshwright_calibrate.links import LinkFit  # noqa: E402
from meshwright_calibrate.nccl_log import Row, Table, bus_share  # noqa: E402
from meshwright_calibrate.problems import Problems  # noqa: E402
from meshwright_calibrate.shares import Share, fit_shares  # noqa: E402
from meshwright_calibrate.steps import fit_steps  # noqa: E402

BASE = {
    "name": "base",
    "device": {"name": "device", "gemm": 0.7},
    "node": {"devices": 4, "bandwidth": 2e11, "share": 0.7, "latency": 5e-6},
    "network": {"nic": 2e10, "share": 0.9, "latency": 15e-6, "hop": 6e-6},
}
KEYS = ("node.share", "network.share", "network.latency", "network.hop")
SIZES = [float(1 << k) for k in range(10, 31)]


def seconds_of(cluster, table, size):
    """A curve's, or a ring's; over nodes an all-reduce may go by a tree."""
    node, devices = cluster["node"], cluster["node"]["devices"]
    part = node if table.nodes == 1 else cluster["network"]
    for curve in part.get("curves", []):
        if (curve["op"], curve.get("nodes", 1), curve["ranks"]) == (table.op, table.nodes, table.ranks):
            return dict(curve["points"])[size]
    sent = bus_share(table.op, table.ranks) * size
    hops = (2 if table.op == "all-reduce" else 1) * (table.ranks - 1)
    inside = node["bandwidth"] * node["share"]
    if table.nodes == 1:
        return sent / inside + hops * node["latency"]
    own = part["nic"] * part["share"]
    ring = sent / min(table.most_of_node * own, inside) + hops * part["hop"]
    if table.op != "all-reduce":
        return ring
    tree = 2 * size / inside + 2 * (table.nodes - 1) / table.nodes * size / devices / own
    return min(ring, tree + 2 * table.nodes * part["latency"])


def price(cluster, shares, tables, least):
    cluster = copy.deepcopy(cluster)
    for key in KEYS:
        part, _, name = key.partition(".")
        if key in shares and part in cluster:
            cluster[part][name] = shares[key]
    values = {key: cluster.get(key.partition(".")[0], {}).get(key.partition(".")[2], 0) for key in KEYS}
    return [seconds_of(cluster, table, row.bytes) for table in tables for row in table.rows if row.bytes >= least], values


def logged(cluster, op, nodes, of_node):
    table = Table("log", op=op, node=[r // of_node for r in range(nodes * of_node)])
    table.rows = [Row(size, seconds_of(cluster, table, size), 1) for size in SIZES]
    return table


def changed(**parts):
    cluster = copy.deepcopy(BASE)
    for part, values in parts.items():
        cluster[part].update(values)
    return cluster


class Links(unittest.TestCase):
    def fit(self, tables, devices=0, base=BASE, expected=()):
        made, problems = Description("base", copy.deepcopy(base)), Problems()
        LinkFit(made, tables, devices, price).run(problems)
        self.assertEqual([one["code"] for one in problems], list(expected))
        return made

    def near(self, one, other, share=0.01):
        self.assertLess(abs(one / other - 1), share, f"{one} and {other}")

    def test_links_that_were_measured_are_found_again_and_rows_come_out_as_they_were(self):
        real = changed(node={"share": 0.55}, network={"share": 0.62, "latency": 40e-6, "hop": 2e-6})
        places = [("all-reduce", 1, 2), ("all-reduce", 1, 4), ("all-to-all", 1, 4), ("all-reduce", 2, 4),
                  ("all-reduce", 4, 4), ("all-reduce", 8, 4), ("all-gather", 4, 4)]
        tables = [logged(real, *place) for place in places]
        table = self.fit(tables).table
        self.assertEqual(table["node"]["devices"], 4)
        self.assertEqual([len(table[part]["curves"]) for part in ("node", "network")], [3, 4])
        self.near(table["node"]["share"], 0.55)
        self.near(table["network"]["share"], 0.62)
        self.assertEqual(table["device"], BASE["device"])
        self.assertEqual((table["node"]["curve_bandwidth"], table["network"]["curve_nic"]), (2e11, 2e10))
        measured = [row.seconds for of in tables for row in of.rows]
        for one, other in zip(price(table, {}, tables, 0)[0], measured):
            self.near(one, other, 1e-4)
        # By the shares too that other groups are priced by.
        del table["network"]["curves"]
        table["node"]["curves"] = [curve for curve in table["node"]["curves"] if curve["op"] == "all-reduce"]
        large = [row.seconds for of in tables for row in of.rows if row.bytes >= 64 << 10]
        for one, other in zip(price(table, {}, tables, 64 << 10)[0], large):
            self.near(one, other)

    def test_halves_of_an_all_reduce_stand_for_it_and_links_faster_than_the_bases_raise_its_rate(self):
        real = changed(node={"bandwidth": 6e11}, network={"nic": 5e10})
        half = logged(real, "reduce-scatter", 1, 4)
        table = self.fit([half, logged(real, "all-gather", 4, 4)]).table
        curve = table["node"]["curves"][0]
        self.assertEqual(curve["op"], "reduce-scatter")
        self.near(curve["points"][-1][1], half.rows[-1].seconds, 1e-3)
        self.assertEqual(table["network"]["share"], 1)
        self.near(table["network"]["nic"], 0.9 * 5e10, 0.02)

    def test_curves_of_the_base_that_stay_are_written_as_they_are_priced_on_its_links(self):
        curve = {"op": "all-to-all", "ranks": 4, "points": [[1024.0, 1e-5], [2048.0, 2e-5]]}
        base = changed(node={"curves": [curve, {"ranks": 4, "points": [[1.0, 1.0]]}], "curve_bandwidth": 1e11})
        kept, made = self.fit([logged(BASE, "all-reduce", 1, 4)], base=base).table["node"]["curves"]
        self.assertEqual(kept["points"], [[2048.0, 1e-5], [4096.0, 2e-5]])
        self.assertEqual(made["op"], "all-reduce")

    def test_all_reduces_over_two_nodes_however_fast_raise_no_nic_and_other_collectives_there_do(self):
        real = changed(network={"nic": 3.5e10})
        sums, gathers = logged(real, "all-reduce", 2, 4), logged(real, "all-gather", 2, 4)
        alone = self.fit([sums])
        network = alone.table["network"]
        self.assertEqual(network["nic"], 2e10)
        self.assertLessEqual(network["share"], 1)
        self.assertTrue(any("its NICs stay the 20 GB/s of base" in said for said in alone.unknown), alone.unknown)
        network = self.fit([sums, gathers]).table["network"]
        self.near(network["nic"] * network["share"], 0.9 * 3.5e10, 0.02)

    def test_what_was_not_measured_stays_and_is_said(self):
        made = self.fit([logged(BASE, "all-reduce", 1, 2)], 4)
        self.assertEqual(made.table["network"], BASE["network"])
        self.assertEqual(len(made.unknown), 3)  # larger groups, sends, the network
        # Two devices of each node had the NICs of four.
        part = self.fit([logged(BASE, "all-reduce", 2, 2)], 4)
        self.assertEqual(part.table["network"], BASE["network"])
        self.assertFalse(logged(BASE, "all-reduce", 2, 2).is_curve(4))
        self.fit([logged(BASE, "all-reduce", 1, 4)], 2, expected=["calibration.devices"])
        bare = {key: value for key, value in BASE.items() if key != "network"}
        self.fit([logged(BASE, "all-reduce", 2, 4)], base=bare, expected=["calibration.base"])
        torus = {"name": "torus", "torus": {"shape": [4, 4]}}
        self.fit([logged(BASE, "all-reduce", 1, 4)], base=torus, expected=["calibration.base"])

    def test_a_few_rows_change_the_shares_that_they_depend_on_and_no_others(self):
        # Two rows of a sum of two terms, and a third share of which neither tells.
        shares = [Share(key, 1, 0.1, 10) for key in "abc"]
        predict = lambda v: [10 * v[0] + v[1], v[0] + 10 * v[1]]
        measured = predict([1.2, 0.9])
        fit = fit_shares(shares, measured, predict, 0.02, 0.2)
        self.near(fit.values[0], 1.2)
        self.near(fit.values[1], 0.9)
        self.assertEqual((fit.values[2], fit.told), (1, [True, True, False]))
        # A row that counts for nothing is predicted by the other alone.
        self.assertEqual(len(fit.left_out), 2)
        self.assertGreater(abs(fit.left_out[0] / measured[0] - 1), 0.05)
        bound = fit_shares([Share("a", 1, 0.9, 1)], [20], lambda v: [10 * v[0]], 0.02, 0.2)
        self.assertAlmostEqual(bound.values[0], 1)

    def test_steps_change_shares_as_ratios_of_what_the_tables_have(self):
        """A device that is held to less power reads as less than its table says."""
        cluster = Description("base", {"device": {"gemm": 0.8}, "node": {}})
        stack = Description("stack", {"host": 1.0})
        read = {"device.gemm": 0.4, "device.bandwidth_share": 0.0, "node.curve_share": 1.0, "network.share": 0.9,
                "stack.host": 1.0, "stack.data_share": 1.0}

        def steps(shares):
            now = {**read, **shares}
            return [1 / now["device.gemm"], 0.5 / now["device.gemm"] + 0.01 * now["stack.host"]], read

        truth = steps({"device.gemm": 0.5})[0]
        measured = [{"nodes": 1, "seconds": seconds} for seconds in truth]
        shares, fit, before = fit_steps(cluster, stack, measured, steps)
        # No share of streams to fit, and no step over nodes tells of the network.
        self.assertEqual([share.key for share in shares], ["device.gemm", "node.curve_share", "stack.host", "stack.data_share"])
        self.near(cluster.table["device"]["gemm"], 1, 0.02)
        self.assertEqual(before, steps({})[0])
        self.assertTrue(cluster.table["device"]["fitted"] and stack.table["fitted"])
        self.assertEqual([said.split()[5] for said in cluster.unknown + stack.unknown], ["node.curve_share", "stack.data_share"])


if __name__ == "__main__":
    unittest.main()
