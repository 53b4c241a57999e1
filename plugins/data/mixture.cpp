// A mixture of sources by weights.
//
// mixture { { weight = 7, data = mw.shards "web_*.bin" }, { weight = 3, data = mw.text "code" } }
//   takes 4096 samples at a time, of each source as many as its weight says, and shuffles these by
//   the seed.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "inner_source.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "sample_order.h"

namespace mw {
namespace {

class Mixture final : public SeveralSources {
 public:
  static Options options() {
    return Options()
        .any("sources",
             "what is mixed: { weight = 0.7, data = mw.shards { … } }, one after the "
             "other; weights are shares of all")
        .positional("sources");
  }
  Mixture(const Values& values, const DataContext& context)
      : seed_(static_cast<std::uint64_t>(context.seed)) {
    Json given = values.at("sources");
    if (given.is_object()) given = Json::array({given});
    if (!given.is_array() || given.empty())
      throw Error(Stage::options, "option.value", "sources", "it lists no sources",
                  "mw.mixture { { weight = 0.7, data = mw.shards { … } }, … }");
    Problems problems;
    std::vector<double> weights;
    for (std::size_t n = 0; n < given.size(); ++n)
      weights.push_back(
          read(given[n], fmt::format("sources[{}]", n + 1), values, context, problems));
    problems.throw_if_any();
    share_out(weights);
  }

  std::int64_t tokens() const override {
    std::int64_t all = 0;
    for (const auto& source : sources_) {
      if (source->tokens() == 0) return 0;
      all += source->tokens();
    }
    return all;
  }

 private:
  static constexpr std::int64_t block = 4096;  // samples that are shared out at a time

  double read(const Json& entry, const std::string& key, const Values& values,
              const DataContext& context, Problems& problems) {
    const auto refuse = [&](const std::string& message) {
      problems.add(Stage::options, "option.value", key, message,
                   "{ weight = 0.7, data = mw.shards { … } }");
      return 1.0;
    };
    if (!entry.is_object() || !entry.contains("weight") || !entry.contains("data"))
      return refuse(fmt::format("{} has no weight and data", lua_text(entry)));
    for (const auto& [name, item] : entry.items())
      if (name != "weight" && name != "data" && !name.starts_with("$"))
        return refuse(fmt::format("{} stands beside weight and data", quote(name)));
    const Json& weight = entry.at("weight");
    if (!weight.is_number() || !(weight.get<double>() > 0))
      return refuse(fmt::format("its weight is {}, and not above 0", lua_text(weight)));
    try {
      sources_.push_back(inner_source(values, entry.at("data"), key + ".data", context));
    } catch (const Error& error) {
      problems.add(error);
    }
    return weight.get<double>();
  }

  // Shares out a block by weights: whole parts, then one more for the largest remainders.
  void share_out(const std::vector<double>& weights) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> rest;
    for (const double weight : weights) {
      const double exact = weight / all * static_cast<double>(block);
      shares_.push_back(static_cast<std::int64_t>(exact));
      rest.push_back(exact - static_cast<double>(shares_.back()));
    }
    std::int64_t left = block - std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
    for (; left > 0; --left) {
      const auto most = std::max_element(rest.begin(), rest.end());
      ++shares_[static_cast<std::size_t>(most - rest.begin())];
      *most = -1;
    }
    const auto none = std::find(shares_.begin(), shares_.end(), 0);
    if (none == shares_.end()) return;
    throw Error(Stage::options, "option.value",
                fmt::format("sources[{}]", none - shares_.begin() + 1),
                fmt::format("its weight is less than 1 of {} samples", block),
                "leave it out, or raise its weight");
  }

  std::pair<std::size_t, std::int64_t> source_of(std::int64_t k) const override {
    const std::int64_t which = k / block;
    const Permutation order(block, seed_ + static_cast<std::uint64_t>(which));
    auto place = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(k % block)));
    std::size_t source = 0;
    while (place >= shares_[source]) place -= shares_[source++];
    return {source, which * shares_[source] + place};
  }

  const std::uint64_t seed_;
  std::vector<std::int64_t> shares_;  // by source: its samples of each block
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::data<Mixture>("mixture", "Several sources of tokens, mixed by weights."));

}  // namespace mw
