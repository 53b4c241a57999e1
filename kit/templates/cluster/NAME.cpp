// The cluster @NAME@: hardware that plans are priced for. Rates are a second, sizes in bytes, times
// in seconds; shares say what of a data sheet's rate is reached.
#include "meshwright/cluster.h"
#include "meshwright/plugin.h"

namespace {

class @CLASS@ final : public mw::ClusterSource {
 public:
  // What a script may say by its own words; all other keys of the table can be changed as they are.
  static mw::Options options() {
    return mw::Options().integer("racks", "of 4 nodes each").range(1, 1 << 12).fallback(1);
  }
  explicit @CLASS@(const mw::Values& values) : racks_(values.int32("racks")) {}

  mw::Json describe() const override {
    return {{"name", "@NAME@"},
            {"nodes", 4 * racks_},
            {"device",
             {{"name", "device of @NAME@"},
              {"peak16", 200e12},
              {"peak32", 50e12},
              {"peak64", 10e12},
              {"memory", "64GiB"},
              {"bandwidth", 2e12},
              {"bandwidth_share", 0.8},
              {"gemm", 0.7},
              {"kernel", 3e-6},
              {"flash", mw::Json::array({0.3})},
              {"launch", 5e-6}}},
            {"node", {{"devices", 8}, {"bandwidth", 300e9}, {"latency", 5e-6}}},
            {"network", {{"nic", 200e9}, {"latency", 1e-5}, {"hop", 5e-6}}},
            {"host", {{"link", 25e9}, {"bandwidth", 20e9}, {"capacity", "2TiB"}}}};
  }

 private:
  int racks_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "racks of 4 nodes with 8 devices", mw::cluster<@CLASS@>())
