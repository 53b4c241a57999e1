// What-ifs of a plan: the same experiment with one value after another changed, a value of the
// cluster, the stack, the model, the batch or anything else, each planned and priced beside it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/options.h"
#include "predict/prediction.h"
#include "script/experiment.h"
#include "script/read_experiment.h"

namespace mw {

// The hidden key of an experiment's table under which mw.what_if hands over what is asked:
// [[knob, [value, …]], …].
inline constexpr const char* what_if_key = "$what_if";

// A value that is to be changed: "node.bandwidth x", "batch =", "stack.host", "recompute".
struct Knob {
  std::string name;                  // "node.bandwidth"
  std::string path;                  // path in the experiment's table: "cluster.node.bandwidth"
  bool factor = false;               // values are factors of the present value
  const Option* declared = nullptr;  // null: a key that only the script's table has
  Json now;                          // its value, the default where none is given; null: unknown
  struct Value {
    std::string text;  // "x 0.5", "= 40GiB"
    Json value;        // value to set
  };
  std::vector<Value> values;
  bool in_bytes() const { return declared != nullptr && declared->type == OptionType::bytes; }
};

// The texts of --what-if, 'node.bandwidth x=0.5,2', in the form of the hidden key. Throws Error
// (options) with all that are of another form.
Json read_what_ifs(const std::vector<std::string>& texts);

// The knobs that are asked for. Throws Error (options) with every name that is no knob, and every
// value that a knob cannot have.
std::vector<Knob> knobs_of(const Json& asked, const Json& experiment, Catalog& catalog);
// The knob's number and a tenth more; nothing where only whole numbers will do.
std::optional<Json> tenth_more(const Knob& knob);

// An experiment and what it is predicted to take.
struct Priced {
  Experiment experiment;
  Prediction prediction;
};
// Says why the prediction is the same as before, though the knob has another value.
std::string why_nothing(const Knob& knob, const Priced& base, const Priced& other);

// The result of mw.what_if and of `plan --what-if`, for people under "text". `base`: the table's
// experiment.
Json run_what_if(const Json& table, const Json& asked, const ReadContext& context, Experiment base);
// What a page shows of the result (report/page/plans.js).
Json what_if_page(const Json& result);

}  // namespace mw
