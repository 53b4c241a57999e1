// Where a metric of the user's lies under /series.
#pragma once

#include <map>
#include <string>

namespace mw {

// Places of metrics below /series, of one run file. A name is its own place: "loss/train" is the
// dataset `train` in the group `loss`. What HDF5 or the file needs for itself is written %XX, as in
// a URL: the name "step" (the steps' own), an empty part or one of "." and "..", and, where "a" and
// "a/b" are both metrics, all of the one that came later. No two names have one place.
class SeriesNames {
 public:
  const std::string& place_of(const std::string& name);

 private:
  std::map<std::string, std::string> places_;  // by name
  std::map<std::string, bool> taken_;          // by place: a dataset, or a group
};

}  // namespace mw
