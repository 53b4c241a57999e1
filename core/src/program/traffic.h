// Predicted communication of one rank and step, as its Communicators will post it.
#pragma once

#include <map>

#include "meshwright/ledger.h"
#include "program/rank_view.h"

namespace mw {

using Traffic = std::map<CommunicationKey, CommunicationUse>;
// Calls and bytes; seconds are left at 0.
Traffic forecast_traffic(const RankView& rank);

}  // namespace mw
