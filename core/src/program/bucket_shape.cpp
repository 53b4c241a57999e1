// Collects what a reduction hook is told of a bucket: names, local shapes, elements and ranks.
#include "meshwright/engine/bucket_shape.h"

namespace mw {

BucketShape shape_of(const Program& program, const Bucket& bucket, const Coordinates& at) {
  BucketShape shape;
  shape.name = bucket.name;
  for (int p : bucket.parameters) {
    const ProgramParameter& parameter = program.parameters[p];
    shape.parameters.push_back(program.graph->value(parameter.value).name);
    shape.shapes.push_back(program.local_shape(program.slots[parameter.slot], at));
  }
  shape.elements = program.elements(bucket, at);
  shape.element = bytes_of(program.gradient_dtype);
  shape.ways = program.ways(program.reduction(bucket));
  return shape;
}

}  // namespace mw
