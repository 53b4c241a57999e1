// Checks of the options that several model kinds have, with the nearest values that fit.
#include "meshwright/builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {

namespace {

// The divisors of `whole` next to `part`, the one below and the one above.
std::string nearest_divisors(std::int64_t whole, std::int64_t part) {
  const std::int64_t most = std::min(whole, most_heads);
  std::int64_t below = std::min(part, most), above = part + 1;
  while (whole % below != 0) --below;
  while (above <= most && whole % above != 0) ++above;
  return above > most ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// Whether the option head_dim gives a width: it is neither left out nor 0.
bool says_head_dim(const Values& values) {
  return values.has("head_dim") && values.integer("head_dim") > 0;
}

// The width of a head: the option head_dim, or else hidden / heads.
std::int64_t head_width(const Values& values) {
  return says_head_dim(values) ? values.integer("head_dim")
                               : values.integer("hidden") / values.integer("heads");
}

}  // namespace

std::int64_t check_heads(const Values& values, Problems& problems) {
  if (!values.has("hidden") || !values.has("heads")) return 0;
  const std::int64_t hidden = values.integer("hidden"), heads = values.integer("heads");
  if (hidden < 1 || heads < 1) return 0;
  if (!says_head_dim(values) && hidden % heads != 0) {
    problems.add(
        Stage::options, "option.divides", "heads",
        fmt::format("{} heads do not divide hidden = {}", heads, hidden),
        fmt::format("nearest: heads = {}; or give head_dim", nearest_divisors(hidden, heads)));
    return 0;
  }
  if (values.has("kv_heads")) {
    const std::int64_t kv_heads = values.integer("kv_heads");
    if (kv_heads < 1) return 0;
    if (heads % kv_heads != 0) {
      problems.add(Stage::options, "option.divides", "kv_heads",
                   fmt::format("{} key heads cannot share {} heads evenly", kv_heads, heads),
                   "nearest: kv_heads = " + nearest_divisors(heads, kv_heads));
      return 0;
    }
  }
  return head_width(values);
}

void add_attention_option(Options& options) {
  options
      .choice(
          "attention", {"flash", "unfused"},
          "\"unfused\" makes scores and softmax as tensors, and keeps the softmax for backward; "
          "\"flash\", the default, keeps no scores")
      .optional()
      .usual([](const Json& v) { return v["attention"] == "flash"; });
}

bool is_unfused(const Values& values) {
  return values.has("attention") && values.text("attention") == "unfused";
}

}  // namespace mw
