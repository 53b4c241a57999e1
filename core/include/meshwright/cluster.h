// A cluster that a plugin brings: hardware for mw.cluster, described as data.
//
//   class Racks final : public mw::ClusterSource {
//    public:
//     static mw::Options options() {
//       return mw::Options().integer("racks", "of 4 nodes each").at_least(1).fallback(1);
//     }
//     explicit Racks(const mw::Values& values) : racks_(values.integer("racks")) {}
//     mw::Json describe() const override;   // the keys of clusters/*.lua, { nodes, device, … }
//     …
//   };
//   MESHWRIGHT_PLUGIN("racks", "1.0.0", "our hall", mw::cluster<Racks>())
//
// A script writes cluster = mw.cluster("racks", { racks = 2 }): keys that are its options go to
// the plugin, others change the table that it describes. A description that is no more than numbers
// can be a file instead: NAME.cluster.lua in a folder of the plugin path.
#pragma once

#include <memory>

#include "meshwright/json.h"
#include "meshwright/registration.h"

namespace mw {

class ClusterSource : public Registered {
 public:
  // Rates a second, sizes in bytes, times in seconds, as the files of clusters/ have them; checked
  // where it is used. By the thread that reads the script.
  virtual Json describe() const = 0;
};

// Made by a constructor (const Values&), or one without arguments.
template <>
struct KindOf<ClusterSource> {
  static constexpr Kind kind = Kind::cluster;
  using Make = std::unique_ptr<ClusterSource>(const Values& values);
};
template <class Class>
constexpr Registration cluster(const char* name = nullptr, const char* doc = nullptr) {
  return registration<ClusterSource, Class>(name, doc);
}

}  // namespace mw
