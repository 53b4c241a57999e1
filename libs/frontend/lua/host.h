// What a script can call: the program implements Host, the script's `require "meshwright"` calls
// it. All values cross as Json; see engine/text.h for the hidden keys.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lua/settings.h"
#include "meshwright/engine/registry.h"
#include "meshwright/options.h"

namespace mw {

// A table that a script makes by name: mw.llama { … } yields { kind = "llama", … }. A name may have
// a dot: mw.microbatch.fit { … } yields { kind = "fit", … }.
struct Constructor {
  std::string name;
  const Registration* registration = nullptr;
};

struct Verb {
  std::string name, doc;
  int experiments = 1;  // how many experiment tables it takes
};

// Calls the script's function number n ({"$function": n}) with these values; returns its first
// result. Throws Error (script) with file and line. To be called from any thread while the script
// waits inside a verb; one call at a time goes through.
using CallFunction = std::function<Json(std::int64_t number, const std::vector<Json>& arguments)>;

// Where an argument of a script's function has this key, a field that it lacks is nil, no error.
inline constexpr const char* open_key = "$open";

class Host {
 public:
  virtual ~Host() = default;
  virtual std::vector<Constructor> constructors() const = 0;
  virtual std::vector<Verb> verbs() const = 0;
  virtual const Options& experiment() const = 0;  // the keys of an experiment table
  virtual PluginRegistry& plugins() = 0;
  // The fields that a result of a kind ("train") may have, or the table "predicted" in a result.
  // Empty: not known.
  virtual std::vector<std::string> result_fields(const std::string& /*kind*/) const { return {}; }
  // The result comes back to the script as a table; its key "text" is what print(result) shows.
  virtual Json call(const std::string& verb, const std::vector<Json>& experiments,
                    const CallFunction& function) = 0;
  // mw.load: a run's result, read back from its file, or a list of the results in a folder. Each
  // has "text". `folder`: the script's, where a path is looked for that is not in the working
  // directory.
  virtual Json load(const std::string& path, const std::string& folder);

  // mw.sweep { … }: throws Error with all that is wrong with the table before any of its functions
  // is called. `applied`: the settings that changed its base.
  virtual void check_sweep(const Json& table, const std::vector<AppliedSetting>& applied);
  // sweep:go { … }: under "cells" the list of its cells, under "text" what print shows of them.
  // "shows": the text is shown even if the script does not print it; "ends": the script ends here,
  // as there are no results for its later lines.
  // `train_as`: what mw.train does under this command.
  virtual Json run_sweep(const Json& table, const Json& options, const std::string& train_as,
                         const CallFunction& function);
  // sweep:report(file, { … }): writes the report; returns the file's name.
  virtual std::string report_sweep(const Json& table, const std::string& file, const Json& options);
  // Says that the script calls this verb, or mw.sweep, before the outcome is known.
  virtual void tries(const std::string& verb);
  // Says that the script has loaded this text from a file of its own. `name`: where a copy of the
  // file lies below the folder of a copy of the script, which then finds it there.
  virtual void loaded(const std::string& /*name*/, const std::string& /*text*/) {}
  // Says that a function that is no verb, such as mw.bar_chart, has done its work.
  virtual void did(const std::string& function);
  // The row of a result in a list of results; null: the result is shown whole.
  virtual Json row_of(const Json& result) const;
  // A list of such rows; the first row's result is shown whole above it.
  virtual std::string list_of(const std::vector<Json>& rows) const;
  // Shows text to the user, where the script's own output goes.
  virtual void show(const std::string& text);
};

}  // namespace mw
