// Hands a plugin's question about a run file on to the program's reader of such files.
#include "meshwright/run_file.h"

#include <fmt/format.h>

#include <atomic>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<TimesReader*> times_reader = nullptr;

}  // namespace

std::vector<WorkTimes> measured_times(const std::string& run_file,
                                      const std::vector<int>& stage_of) {
  if (TimesReader* const reader = times_reader) return reader(run_file, stage_of);
  throw Error(Stage::environment, "run-file.reader", "times",
              fmt::format("{}: this program reads no run files", run_file),
              "give the times themselves, or use the program meshwright");
}

void read_measured_times_by(TimesReader* reader) {
  times_reader = reader;
}

}  // namespace mw
