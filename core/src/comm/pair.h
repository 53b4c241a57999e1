// Makes the communicator of a pair of ranks from what a source has for pairs.
#pragma once

#include <memory>
#include <string>

#include "meshwright/communicator.h"
#include "meshwright/world.h"

namespace mw::comm {

// A communicator of rank `rank`, which is one of both, for what `from` sends to `to`: see
// CommunicatorSource::backend_of_pair().
std::unique_ptr<Communicator> make_pair_communicator(CommunicatorSource& source,
                                                     const std::string& axis, int from, int to,
                                                     int rank, Ledger* ledger);

}  // namespace mw::comm
