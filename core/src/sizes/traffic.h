// Predicted communication of one rank and step, as its Communicators will post it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/ledger.h"
#include "sizes/rank_view.h"

namespace mw {

// One collective of a rank: what it is booked under, and its sizes.
struct Call {
  CommunicationKey key;
  Collective op = Collective::all_reduce;
  RankSet set;  // the ranks that take part; of send and recv the stage axis
  int ways = 1;
  std::int64_t wire = 0;     // bytes sent, as booked
  std::int64_t payload = 0;  // bytes of the larger of the rank's two buffers
};

// The collectives that an instruction makes, in order; none but one, except where a hook reduces.
std::vector<Call> calls_of(const RankView& rank, const Instruction& instruction);

using Traffic = std::map<CommunicationKey, CommunicationUse>;
// Calls and bytes; seconds are left at 0.
Traffic forecast_traffic(const RankView& rank);

}  // namespace mw
