// What a plugin brings, one entry for each thing: its kind, its name, a line about it, its options,
// and how it is made. Models, optimizers and schedules that are built in are registered likewise.
//
// Each kind's own header has the function that makes an entry of a class:
//
//   mw::optimizer<Lion>("lion", "Lion: the sign of a running average")     // optimizer.h
//
// where the class has a constructor that takes what scripts wrote, checked against its options:
//
//   static mw::Options options();              // may be left out: it takes none
//   explicit Lion(const mw::Values& values);   // throws Error for what options alone cannot check;
//                                              // its key is the option at fault: "betas"
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "meshwright/options.h"

namespace mw {

// What can be registered. The numbers stay: they are in the files of plugins.
enum class Kind : std::uint32_t {
  strategy = 1,  // strategy.h
  scheduler,     // schedule.h
  communicator,
  model,  // model.h
  op,
  data,        // data.h
  optimizer,   // optimizer.h
  recompute,   // recompute.h
  microbatch,  // microbatch.h
  hook,        // reduction_hook.h
  cluster,
  lr_schedule,  // lr_schedule.h
  weave,        // weave.h
  observer,     // observer.h
  device,       // platform.h
};
inline constexpr Kind last_kind = Kind::device;

const char* name_of(Kind kind);  // "lr_schedule": in JSON
const char* noun_of(Kind kind);  // "learning-rate schedule": for people

// The kind of what is made, and the function that makes it: specialised beside each such class.
template <class Thing>
struct KindOf;

struct Registration {
  Kind kind = {};
  const char* name = nullptr;  // null: the plugin's
  const char* doc = nullptr;   // one line; null: the plugin's summary
  const Options& (*options)() = nullptr;
  const void* maker = nullptr;  // of the kind's own type: see make()
};

// What knows the name under which it is registered.
class Registered {
 public:
  Registered() = default;
  virtual ~Registered() = default;
  virtual std::string name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

 private:
  std::string name_;
};

template <class Class>
const Options& options_of() {
  static const Options options = [] {
    if constexpr (requires { Class::options(); }) {
      return Options(Class::options());
    } else {
      return Options();
    }
  }();
  return options;
}

template <class Thing>
struct Maker {
  typename KindOf<Thing>::Make* make;
};

template <class Thing, class Class, class... Context>
std::unique_ptr<Thing> make_one(const Values& values, Context... context) {
  if constexpr (std::is_constructible_v<Class, const Values&, Context...>) {
    return std::make_unique<Class>(values, context...);
  } else if constexpr (std::is_constructible_v<Class, const Values&>) {
    return std::make_unique<Class>(values);
  } else {
    static_assert(std::is_default_constructible_v<Class>,
                  "a registered class has a constructor that takes const mw::Values&");
    return std::make_unique<Class>();
  }
}
template <class Thing, class Class>
inline constexpr Maker<Thing> maker_of = {&make_one<Thing, Class>};

template <class Thing, class Class>
constexpr Registration registration(const char* name, const char* doc) {
  return {KindOf<Thing>::kind, name, doc, &options_of<Class>, &maker_of<Thing, Class>};
}

// Makes what is registered; `context` is what its kind's makers take beside the values. Throws what
// its constructor throws.
template <class Thing, class... Context>
std::unique_ptr<Thing> make(const Registration& registration, const Values& values,
                            const Context&... context) {
  auto made = static_cast<const Maker<Thing>*>(registration.maker)->make(values, context...);
  if constexpr (std::is_base_of_v<Registered, Thing>) {
    if (made != nullptr) made->set_name(registration.name);
  }
  return made;
}

// All registrations, by kind and name. Options reach it (Values::catalog), so that a plugin can use
// what another plugin registers: a pipeline takes any scheduler. It is not thread-safe: only the
// thread that reads scripts may use it.
class Catalog {
 public:
  virtual ~Catalog() = default;
  // Built in, of a plugin that was named already, or in a file NAME.so of the plugin path. Throws
  // Error (options) if there is none, with the nearest name; its key is `key`. The registration
  // lives as long as the process.
  virtual const Registration& find(Kind kind, const std::string& name,
                                   const std::string& key = "") = 0;
  // What is built in, then what plugins brought that were named already.
  virtual std::vector<const Registration*> list(Kind kind) const = 0;
  // And what other usable files of the plugin path bring, though nobody named them.
  virtual std::vector<const Registration*> all(Kind kind) = 0;
};

// "adamw, muon, sgd": what the catalog lists, for messages and docs.
std::string names_of(const Catalog& catalog, Kind kind, bool quoted = false);

}  // namespace mw
