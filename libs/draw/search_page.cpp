// Makes the page of searches from their results.
#include "draw/search_page.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "draw/page.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

bool is_same_plan(const Json& a, const Json& b) {
  constexpr const char* settings[] = {"entries", "microbatch", "recompute", "offload"};
  return std::all_of(std::begin(settings), std::end(settings),
                     [&](const char* key) { return a.at(key) == b.at(key); });
}

Json plan_json(const Json& found, const Json& result) {
  const Json& predicted = found.at("predicted");
  const Json& edge = result.at("edge");
  const bool on_edge = std::any_of(edge.begin(), edge.end(),
                                   [&](const Json& one) { return is_same_plan(one, found); });
  const auto lacks = predicted.value("cannot_run", std::vector<std::string>());
  return {{"plan", page_text(found.at("plan").get<std::string>(), 300)},
          {"microbatch", found.at("microbatch")},
          {"recompute", page_text(json_text(found.at("recompute")), 120)},
          {"seconds", page_number(predicted.at("step_seconds"))},
          {"mfu", page_number(predicted.at("mfu"))},
          {"bytes", predicted.at("peak_bytes")},
          {"room", found.at("room")},
          {"edge", on_edge},
          {"first", !result.at("best").empty() && is_same_plan(result.at("best").front(), found)},
          {"beyond", found.at("beyond_measured")},
          {"lacks", page_text(join(lacks, "; "), 300)}};
}

Json search_json(const Json& result) {
  Json plans = Json::array();
  for (const Json& found : result.at("checked"))
    if (found.at("fits").get<bool>()) plans.push_back(plan_json(found, result));
  const auto memory = static_cast<double>(result.at("rank_memory_limit").get<std::int64_t>());
  Json facts = Json::array();
  const auto fact = [&](const char* name, const std::string& value) {
    facts.push_back(Json::array({name, value}));
  };
  fact("priced for", page_value(result.at("priced_for")));
  fact("ranks", page_value(result.at("ranks")));
  fact("memory of a rank", format_bytes(memory));
  fact("candidates", page_value(result.at("candidates")));
  const auto left = result.at("left_out").get<std::vector<std::string>>();
  if (!left.empty()) fact("left out: the stack lacks", page_text(join(left, "; ")));
  Json notes = Json::array();
  std::istringstream why(result.at("why").get<std::string>());
  for (std::string line; std::getline(why, line);) notes.push_back(page_text(line, 600));
  return {{"name", page_value(result.at("priced_for"))},
          {"facts", std::move(facts)},
          {"notes", std::move(notes)},
          {"plans", std::move(plans)}};
}

}  // namespace

std::string searches_html(const std::string& script, const std::vector<Json>& results) {
  Json data = page_data("searches", page_text("Search of " + script, 120));
  data["searches"] = Json::array();
  for (const Json& result : results) data["searches"].push_back(search_json(result));
  return html_page(data["title"].get<std::string>(), data);
}

}  // namespace mw
