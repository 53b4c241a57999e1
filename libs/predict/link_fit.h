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

// Puts into the description what the tables tell: the all-reduces of a node as curves, the share of
// its links for all else, the network's share and latencies. `devices`: of a node; 0: the most
// ranks that a node has in any table. Problems if the description has no place for them.
void fit_links(Description& description, const std::vector<LoggedTable>& tables, int devices,
               Problems& problems);

// Whether fit_links takes the table's rows as the curve itself, which says nothing then of how well
// the description prices them: an all-reduce inside a node, or half of one where `all` have none
// among as many ranks.
bool is_curve(const LoggedTable& table, const std::vector<LoggedTable>& all);

// A fitted number with as many digits as it is worth.
double rounded(double value);

// The described cluster as nccl-tests see it: as many nodes as a table has, and collectives that
// run alone.
Cluster logged_cluster(const Description& description, const std::vector<LoggedTable>& tables,
                       Problems& problems);
// The seconds that a table's collective takes there.
double logged_seconds(const Cluster& cluster, const LoggedTable& table, double bytes);

}  // namespace mw
