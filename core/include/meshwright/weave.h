// Weaves: how works that a schedule joins ("0F3+1B1") share a stage. Their segments become the
// lanes of one braid, and a weave says from which lane each next instruction is.
//
// A weave can only merge. Each lane keeps its own order, so that no lane's dataflow breaks; and
// where a lane must wait for another one, as both add to gradients that one of them begins to
// reduce, the planner runs that other lane first, as far as it must. So a weave decides when
// something runs, never what comes of it.
//
//   class Turns : public mw::Weave {                        // one instruction of each lane in turn
//     std::vector<int> order(const mw::WeaveRequest& request) const override;
//   };
//   MESHWRIGHT_PLUGIN("turns", "1.0.0", "takes turns", mw::weave<Turns>())
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/program.h"
#include "meshwright/registration.h"

namespace mw {

struct WeaveRequest {
  const Program& program;
  // The segments that are to be interleaved, in the order in which the schedule names their works.
  // No two of them need each other's results.
  std::vector<const Segment*> lanes;
  // What an instruction takes on the plan's device (PlanRequest::seconds); empty: nobody knows.
  std::function<double(const Instruction&)> seconds;
};

// What scripts are told of a program's instructions, and what their conditions ask: code, piece,
// op, kind, layer, label, phase, move, axis, bucket, bytes (of a transfer, as sent by the stage's
// first rank), segment (kind_in_scripts), stream (of a transfer, by name), reads and writes (names
// of slots); what does not apply is left out. With an axis come, under "axes", all names and roles
// that fit its ranks; with a bucket, under "parameters", the names of its parameters. Keeps a
// reference to the program.
class InstructionFacts {
 public:
  explicit InstructionFacts(const Program& program);
  ~InstructionFacts();
  Json of(const Segment& segment, const Instruction& instruction) const;

 private:
  struct View;
  const std::unique_ptr<View> view_;
};

// The facts of what begins the reduction of a bucket, before there is such an instruction.
Json facts_of(const Program& program, const Bucket& bucket);

// What scripts call a segment: "forward", "backward", "dgrad", "wgrad", "gather", "reduce", …; ""
// for segments that passes of scripts leave alone, which only send, receive or begin a step.
std::string kind_in_scripts(const Segment& segment);

class Weave : public Registered {
 public:
  // The lane of each next instruction, by its place in `lanes`: each lane as often as it has
  // instructions. Asked once for each braid of each stage, again for each plan that is made of the
  // same strategies; what it returns must follow from the request and the weave's options alone.
  // Throws Error for what it cannot do.
  virtual std::vector<int> order(const WeaveRequest& request) const = 0;
};

template <>
struct KindOf<Weave> {
  static constexpr Kind kind = Kind::weave;
  using Make = std::unique_ptr<Weave>(const Values& values);
};
template <class Class>
constexpr Registration weave(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Weave, Class>(name, doc);
}

}  // namespace mw
