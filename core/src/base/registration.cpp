// Kinds of what can be registered, as programs and people call them.
#include "meshwright/registration.h"

#include <array>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

struct Called {
  const char *name, *noun;
};

// By number; 0 is no kind.
constexpr std::array called{Called{"unknown", "unknown"},
                            Called{"strategy", "strategy"},
                            Called{"scheduler", "scheduler"},
                            Called{"communicator", "communicator"},
                            Called{"model", "model"},
                            Called{"op", "op"},
                            Called{"data", "data source"},
                            Called{"optimizer", "optimizer"},
                            Called{"recompute", "recompute policy"},
                            Called{"microbatch", "microbatch policy"},
                            Called{"hook", "reduction hook"},
                            Called{"cluster", "cluster"},
                            Called{"lr_schedule", "learning-rate schedule"}};
static_assert(called.size() == static_cast<std::size_t>(last_kind) + 1);

}  // namespace

const char* name_of(Kind kind) {
  return called.at(static_cast<std::size_t>(kind)).name;
}

const char* noun_of(Kind kind) {
  return called.at(static_cast<std::size_t>(kind)).noun;
}

std::string names_of(const Catalog& catalog, Kind kind, bool quoted) {
  std::vector<std::string> names;
  for (const Registration* registration : catalog.list(kind)) names.push_back(registration->name);
  return quoted ? join_quoted(names) : join(names);
}

}  // namespace mw
