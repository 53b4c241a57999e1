// The key `microbatch`, as a script writes it: a size, a list, a table, a function of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "plan/step_plans.h"

namespace mw {

// A table that stands for `microbatch`: mw.microbatch.fit { … }, mw.microbatch.ramp { … }.
class MicrobatchKind {
 public:
  explicit MicrobatchKind(std::string name, std::string doc, Options options)
      : name_(std::move(name)), doc_(std::move(doc)), options_(std::move(options)) {}
  const std::string& name() const { return name_; }  // "microbatch.fit"
  const std::string& doc() const { return doc_; }
  const Options& options() const { return options_; }

 private:
  std::string name_, doc_;
  Options options_;
};
const std::vector<const MicrobatchKind*>& microbatch_kinds();

// `given`: what the script wrote; null: nothing. `limit`: the experiment's own, 0 if it has none.
// `call`: a script's function (lua/host.h).
MicrobatchPolicy read_microbatch(
    const Json& given, std::int64_t batch, std::int64_t limit,
    const std::function<Json(std::int64_t, const std::vector<Json>&)>& call, Problems& problems);

}  // namespace mw
