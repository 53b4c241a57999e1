// Searches in a program that was made without them.
#include "app/left_out.h"
#include "app/verbs.h"

namespace mw {

Json run_search(const Json&, const ReadContext&, const std::string&, Output&) {
  throw_left_out("search");
}

}  // namespace mw
