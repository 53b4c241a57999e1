// The key `loss_scale` of mw.train.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "meshwright/engine/loss_scale.h"
#include "meshwright/json.h"
#include "meshwright/options.h"

namespace mw {

// The key `loss_scale`: "dynamic" or { init = 65536, growth = 2, backoff = 0.5, interval = 2000 }
// (times `growth` after `interval` good steps, times `backoff` after an overflow; as
// torch.amp.GradScaler); a number that stays; a function(step, scale, overflowed) that returns the
// factor, called once for a step, from 65536 on. Null, and problems, for anything else. `call`
// calls the script's function.
std::shared_ptr<const LossScale> read_loss_scale(Json& given,
                                                 std::function<Json(const std::vector<Json>&)> call,
                                                 Problems& problems);

}  // namespace mw
