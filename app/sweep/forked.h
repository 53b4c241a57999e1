// Work on many things in several processes: threads cannot, for scripts and plugins are of one.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace mw {

// work(0) … work(count - 1), in any order, in copies of this process; here if `processes` is 1. The
// text of each; one line. Ends with the wish to stop by throwing Stopped. Throws Error (run) if a
// copy dies. What `work` throws ends all.
std::vector<std::string> forked_map(std::size_t count, int processes,
                                    const std::function<std::string(std::size_t)>& work);

}  // namespace mw
