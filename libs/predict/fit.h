// Finds plans whose ranks stay within a memory limit: by recomputing activations in backward, by
// sending them to host memory, and by smaller microbatches.
#pragma once

#include <memory>
#include <string>

#include "predict/variants.h"

namespace mw {

// The request's plan with the cheapest recomputation with which no rank is predicted to hold more
// than RecomputePolicy::fit bytes. The search starts from the plan that keeps everything. It sorts
// the parts of a layer by the cost of recomputing them for each byte saved, recomputes the fewest
// parts that suffice, in all layers, and then keeps each part, the dearest first, in as many of
// every stage's last layers as the limit allows. In a pipeline, each stage then keeps what its own
// memory still has room for. The plan's policy is of kind `fixed`, with the settings { stages = for
// each stage, the parts that it recomputes and in how many of its first layers; alike = the same
// choice for all stages, where stages differ }. Null, with a problem that names the least possible
// bytes, if recomputing everything does not suffice.
std::shared_ptr<const Plan> fit_recompute(const PlanRequest& request, Problems& problems);
// fit_recompute() with the same choice for all stages.
std::shared_ptr<const Plan> fit_recompute_alike(const PlanRequest& request, Problems& problems);
// fit_recompute() and fit_recompute_alike() where RecomputePolicy::fit is the memory of a device,
// and not a limit that a user set: each rank also leaves room for what is in use beside the program
// (Machine::beside_program), except the reserve, which an allocator gives back.
std::shared_ptr<const Plan> fit_recompute_on_device(const PlanRequest& request, Problems& problems);
std::shared_ptr<const Plan> fit_recompute_alike_on_device(const PlanRequest& request,
                                                          Problems& problems);
// The plan of `fit`, which does as one of the functions above, where tensors may also go to host
// memory (RecomputePolicy::offload): each kept tensor of a layer is saved, recomputed or sent
// there. For several shares of what the host link can carry while layers compute, the tensors that
// are dearest to recompute for their bytes are sent, and `fit` recomputes what the limit asks for
// besides. Of these plans, the one that is predicted to be fastest on the machine is taken. Null,
// with a problem, where `machine` has no host link.
std::shared_ptr<const Plan> fit_with_offload(const PlanRequest& request, const PlanMaker& fit,
                                             const Machine* machine, Problems& problems);
// The part of a layer that an op's name says: "attention.q" of "layers.3.attention.q".
std::string part_of_layer(const std::string& op);
// Whether fit_recompute() chose differently for the plan's stages.
bool recompute_differs(const Plan& plan);
// The plan with the same recomputation on all stages; null where stages do not differ.
std::shared_ptr<const Plan> with_recompute_alike(const Plan& plan);

// The request's plan with the fewest microbatches, as even as they can be, with which no rank is
// predicted to hold more than `limit` bytes; Plan::request has the sizes that were taken. Null,
// with problems, if there is no such plan, or if the request is refused whatever its microbatches
// are.
std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems);

// The sizes of the largest microbatch when `own` sequences are split as evenly as possible into
// `fewest` or more microbatches: the largest size first, each size once.
std::vector<std::int64_t> even_sizes(std::int64_t own, std::int64_t fewest);

}  // namespace mw
