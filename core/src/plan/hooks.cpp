// Passes that replace the sum of a bucket's gradients by a hook's, or reduce in every
// microbatch.
#include <algorithm>

#include "meshwright/engine/bucket_shape.h"
#include "meshwright/passes.h"
#include "meshwright/reduction_hook.h"
#include "plan/build.h"

namespace mw {
namespace {

bool reduced_over(const Program& program, const Bucket& bucket, const std::string& axis) {
  const std::vector<int>& atoms = program.mesh.axis(axis).atoms;
  if (bucket.expert_load) return false;
  return std::any_of(bucket.reduce_atoms.begin(), bucket.reduce_atoms.end(), [&](int atom) {
    return program.mesh.atoms()[atom].ways > 1 &&
           std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
  });
}

}  // namespace

Pass hook_reductions(
    const std::string& axis,
    std::function<std::shared_ptr<const ReductionHook>(const BucketShape&)> choose) {
  return {"hook reductions",
          [axis, choose = std::move(choose)](Program& program) {
            for (Bucket& bucket : program.buckets) {
              if (!reduced_over(program, bucket, axis)) continue;
              bucket.hook = choose(shape_of(program, bucket, program.first()));
            }
          },
          Pass::reductions, axis};
}

Pass reduce_each_microbatch(const std::string& axis) {
  return {"reduce each microbatch",
          [axis](Program& program) {
            split_buckets(program, /*by_layer=*/false);
            for (Bucket& bucket : program.buckets) {
              bucket.reduce_per_microbatch =
                  bucket.stages.empty() && reduced_over(program, bucket, axis);
            }
          },
          Pass::reductions, axis};
}

}  // namespace mw
