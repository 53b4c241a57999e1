// Predicted communication of one rank and step, as its Communicators will post it.
#pragma once

#include <map>

#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"

namespace mw {

using Traffic = std::map<CommunicationKey, CommunicationUse>;
// Calls and bytes; seconds are left at 0.
Traffic forecast_traffic(const RankView& rank);

// Makes each row of `most` that of the rank that sends more of it, bytes with their calls: as a
// run's table has them.
void take_most(Traffic& most, const Traffic& other);

}  // namespace mw
