// Describes the links of a cluster by the collectives that were measured on it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "predict/cluster.h"
#include "predict/nccl_log.h"

namespace mw {

// The description of a cluster or a stack while it is made, and what its file says of its numbers.
struct Description {
  Json table;        // as clusters/*.lua hold it, or clusters/stacks/*.lua
  std::string base;  // the name of what it began as
  std::map<std::string, std::string> sources;  // by key, "node.share": what it was fitted to
  std::vector<std::string> unknown;  // sentences that say which numbers no measurement tells
};

// Puts into the description what the tables tell: their rows as curves, and for what no curve
// tells the share of a node's links, the network's share and latencies. `devices`: of a node; 0:
// the most ranks that a node has in any table. Problems if the description has no place for them.
void fit_links(Description& description, const std::vector<LoggedTable>& tables, int devices,
               Problems& problems);

// Whether fit_links takes the table's rows as a curve, which says nothing then of how well the
// description prices them. Tables over nodes with fewer than all `devices` of each are only
// compared: each device had a larger share of the NICs than all of them together have.
bool is_curve(const LoggedTable& table, int devices);

// A fitted number with as many digits as it is worth.
double rounded(double value);

// The described cluster as nccl-tests see it: as many nodes as a table has, and collectives that
// run alone.
Cluster logged_cluster(const Description& description, const std::vector<LoggedTable>& tables,
                       Problems& problems);
// The seconds that a table's collective takes there.
double logged_seconds(const Cluster& cluster, const LoggedTable& table, double bytes);

}  // namespace mw
