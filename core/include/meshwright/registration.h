// Registrations of classes by kind and name, with a line about the class, its options and its
// maker. Plugins and built-in classes register in the same way.
//
// Each kind's own header has the function that makes a registration of a class:
//
//   mw::optimizer<Lion>("lion", "Lion: the sign of a running average")     // optimizer.h
//
// where the class has a constructor that takes a script's values, checked against its options:
//
//   static mw::Options options();              // may be left out if the class has no options
//   explicit Lion(const mw::Values& values);   // throws Error for what options() cannot check; the
//                                              // Error's key is the option at fault: "betas"
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "meshwright/options.h"

namespace mw {

// The kinds of classes that can be registered. The numbers must not change, because built plugins
// contain them.
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
  packing,      // packing.h
};
inline constexpr Kind last_kind = Kind::packing;

const char* name_of(Kind kind);  // "lr_schedule": in JSON
const char* noun_of(Kind kind);  // "learning-rate schedule": for people

// The kind of a base class, and the type of the function that makes its objects. Specialised beside
// each class that can be registered.
template <class Thing>
struct KindOf;

struct Registration {
  Kind kind = {};
  const char* name = nullptr;  // null: the name of the plugin
  const char* doc = nullptr;   // one line; null: the plugin's summary
  const Options& (*options)() = nullptr;
  const void* maker = nullptr;  // a Maker of the kind's base class, for make()
};

// Base class for objects that know the name under which their class is registered.
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

// Makes an object of a registered class. `context`: the arguments that constructors of the kind
// take beside the values. Throws what the constructor throws.
template <class Thing, class... Context>
std::unique_ptr<Thing> make(const Registration& registration, const Values& values,
                            const Context&... context) {
  auto made = static_cast<const Maker<Thing>*>(registration.maker)->make(values, context...);
  if constexpr (std::is_base_of_v<Registered, Thing>) {
    if (made != nullptr) made->set_name(registration.name);
  }
  return made;
}

// All registrations, by kind and name. Plugins get it by Values::catalog, so that a plugin can use
// registrations of another one: a pipeline takes any scheduler. Not thread-safe: only the thread
// that reads scripts may use it.
class Catalog {
 public:
  virtual ~Catalog() = default;
  // Finds a registration: built in, of a plugin that is loaded, or in a file NAME.so of the plugin
  // path. If there is none, throws Error (options) with the nearest name and the key `key`. The
  // registration lives as long as the process.
  virtual const Registration& find(Kind kind, const std::string& name,
                                   const std::string& key = "") = 0;
  // Lists the built-in registrations of a kind, then those of loaded plugins.
  virtual std::vector<const Registration*> list(Kind kind) const = 0;
  // As list(), and then those of all other usable files of the plugin path.
  virtual std::vector<const Registration*> all(Kind kind) = 0;
};

// The names of Catalog::list() as text, "adamw, muon, sgd".
std::string names_of(const Catalog& catalog, Kind kind, bool quoted = false);

}  // namespace mw
