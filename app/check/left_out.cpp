// The comparisons of runs in a program that was made without them.
#include "app/left_out.h"
#include "app/verbs.h"

namespace mw {

Json run_verify(const RunRequest&, const RunSetup&, Output&) {
  throw_left_out("check");
}

Json run_compare(const ComparedRun&, const ComparedRun&, Output&) {
  throw_left_out("check");
}

Json run_logits(const RunRequest&, const RunSetup&, const std::string&) {
  throw_left_out("check");
}

}  // namespace mw
