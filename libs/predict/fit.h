// Plans whose ranks keep a limit of memory: by what backward makes again, by smaller microbatches.
#pragma once

#include <memory>
#include <string>

#include "meshwright/engine/plan.h"

namespace mw {

// The plan of the request with the cheapest recomputation with which no rank is predicted to hold
// more than RecomputePolicy::fit. It is worked out from the plan that keeps everything: ops are put
// in the order of what making their results again costs for each byte that is then not kept; the
// fewest of them that suffice, in all layers, are taken; then each, the dearest first, is let off
// again in as many of every stage's last layers as the limit allows. Of a pipeline each stage then
// lets off what its own memory has room for besides: it makes nothing again that the same choice
// for all stages would keep. A plan of a fixed set is made from it, whose RecomputePolicy::settings
// are { stages = what each makes again: the part of layers, and in how many of its first ones;
// alike = the same choice for all, where stages differ }. Null, and a problem with the least that
// is possible, if not even all suffice.
std::shared_ptr<const Plan> fit_recompute(const PlanRequest& request, Problems& problems);
// With the same choice for all stages.
std::shared_ptr<const Plan> fit_recompute_alike(const PlanRequest& request, Problems& problems);
// The same two where RecomputePolicy::fit is what a device has, and not what somebody said that a
// rank may hold: each rank also leaves room there for what is in use beside the program
// (Machine::beside_program), but for the reserve, which an allocator gives back.
std::shared_ptr<const Plan> fit_recompute_on_device(const PlanRequest& request, Problems& problems);
std::shared_ptr<const Plan> fit_recompute_alike_on_device(const PlanRequest& request,
                                                          Problems& problems);
// The same where tensors may also go to host memory (RecomputePolicy::offload): each kept tensor of
// a layer is saved, made again or sent there. For shares of what the host link can carry while
// layers compute, those tensors go that are dearest to make again for their bytes, and `fit`, one
// of the functions above, makes again what the limit asks for besides; the plan that is predicted
// to be the fastest on the machine is taken. Null, and a problem, where `machine` has no such link.
using RecomputeFitter = std::shared_ptr<const Plan> (*)(const PlanRequest&, Problems&);
std::shared_ptr<const Plan> fit_with_offload(const PlanRequest& request, RecomputeFitter fit,
                                             const class Machine* machine, Problems& problems);
// The part of a layer that an op's name says: "attention.q" of "layers.3.attention.q".
std::string part_of_layer(const std::string& op);
// Whether fit_recompute() chose differently for the plan's stages.
bool recompute_differs(const Plan& plan);
// The same plan with the choice that is alike on all stages; null where stages do not differ.
std::shared_ptr<const Plan> with_recompute_alike(const Plan& plan);

// The plan of the request with the fewest microbatches, as even as they can be, of which no rank is
// predicted to hold more than `limit` bytes (Plan::request has what was taken). Null and problems
// if none is, or if the request is refused whatever its microbatches are.
std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems);

// Sizes of microbatches that `own` sequences can be split into evenly, in `fewest` or more: the
// largest first, each once.
std::vector<std::int64_t> even_sizes(std::int64_t own, std::int64_t fewest);

}  // namespace mw
