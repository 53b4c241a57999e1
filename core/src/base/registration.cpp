// Kinds of what can be registered, as programs and people call them.
#include "meshwright/registration.h"

#include "base/text.h"

namespace mw {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::strategy:
      return "strategy";
    case Kind::scheduler:
      return "scheduler";
    case Kind::communicator:
      return "communicator";
    case Kind::model:
      return "model";
    case Kind::op:
      return "op";
    case Kind::data:
      return "data";
    case Kind::optimizer:
      return "optimizer";
    case Kind::recompute:
      return "recompute";
    case Kind::microbatch:
      return "microbatch";
    case Kind::hook:
      return "hook";
    case Kind::cluster:
      return "cluster";
    case Kind::lr_schedule:
      return "lr_schedule";
  }
  return "unknown";
}

const char* noun_of(Kind kind) {
  switch (kind) {
    case Kind::data:
      return "data source";
    case Kind::recompute:
      return "recompute policy";
    case Kind::microbatch:
      return "microbatch policy";
    case Kind::hook:
      return "reduction hook";
    case Kind::lr_schedule:
      return "learning-rate schedule";
    default:
      return name_of(kind);
  }
}

std::string names_of(const Catalog& catalog, Kind kind, bool quoted) {
  std::vector<std::string> names;
  for (const Registration* registration : catalog.list(kind)) {
    names.push_back(quoted ? quote(registration->name) : registration->name);
  }
  return join(names);
}

}  // namespace mw
