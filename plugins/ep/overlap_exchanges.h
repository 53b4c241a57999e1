// Work beside the exchanges of experts' rows.
#pragma once

#include "meshwright/passes.h"

namespace ep {

// Lets what depends on neither go on while rows of sparse tensors are on their way: exchanges begin
// as soon as what they send is there, and are awaited where what they bring is read.
mw::Pass overlap_exchanges();

}  // namespace ep
