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
// A script writes cluster = mw.cluster("racks", { racks = 2 }). Keys that are the plugin's options
// go to the plugin; other keys change the table that describe() returns. A description that is only
// numbers can be a file instead: NAME.cluster.lua in a folder of the plugin path.
#pragma once

#include <memory>

#include "meshwright/json.h"
#include "meshwright/registration.h"

namespace mw {

class ClusterSource : public Registered {
 public:
  // Returns a table with the keys of clusters/*.lua: rates per second, sizes in bytes, times in
  // seconds. The reader of the table checks it. Called in the thread that reads the script.
  virtual Json describe() const = 0;
};

// A cluster source's constructor takes (const Values&), or nothing.
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
