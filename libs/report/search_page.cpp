// Makes of the results of searches what their page shows.
#include "report/search_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <sstream>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "report/page.h"

namespace mw {
namespace {

bool same(const Json& a, const Json& b) {
  constexpr const char* settings[] = {"entries", "microbatch", "recompute", "offload"};
  return std::all_of(std::begin(settings), std::end(settings),
                     [&](const char* key) { return a.at(key) == b.at(key); });
}

Json plan_json(const Json& found, const Json& result) {
  const Json& predicted = found.at("predicted");
  const auto is_in = [&](const char* list) {
    return std::any_of(result.at(list).begin(), result.at(list).end(),
                       [&](const Json& one) { return same(one, found); });
  };
  std::vector<std::string> lacks;
  for (const Json& one : predicted.value("cannot_run", Json::array())) lacks.push_back(one);
  return {{"plan", page_text(found.at("plan").get<std::string>(), 300)},
          {"microbatch", found.at("microbatch")},
          {"recompute", page_text(json_text(found.at("recompute")), 120)},
          {"seconds", page_number(predicted.at("step_seconds"))},
          {"mfu", page_number(predicted.at("mfu"))},
          {"bytes", predicted.at("peak_bytes")},
          {"room", found.at("room")},
          {"edge", is_in("edge")},
          {"first", !result.at("best").empty() && same(result.at("best").front(), found)},
          {"beyond", found.at("beyond_measured")},
          {"lacks", page_text(join(lacks, "; "), 300)}};
}

Json search_json(const Json& result) {
  Json plans = Json::array();
  for (const Json& found : result.at("checked"))
    if (found.at("fits").get<bool>()) plans.push_back(plan_json(found, result));
  const auto memory = static_cast<double>(result.at("rank_memory_limit").get<std::int64_t>());
  const auto text = [&](const char* key) {
    return page_text(
        result.at(key).is_string() ? result.at(key).get<std::string>() : result.at(key).dump(),
        300);
  };
  Json facts = Json::array();
  const auto fact = [&](const char* name, const std::string& value) {
    facts.push_back(Json::array({name, value}));
  };
  fact("priced for", text("priced_for"));
  fact("ranks", text("ranks"));
  fact("memory of a rank", format_bytes(memory));
  fact("candidates", text("candidates"));
  std::vector<std::string> left;
  for (const Json& one : result.at("left_out")) left.push_back(one);
  if (!left.empty()) fact("left out: the stack lacks", page_text(join(left, "; ")));
  Json notes = Json::array();
  std::istringstream why(result.at("why").get<std::string>());
  for (std::string line; std::getline(why, line);) notes.push_back(page_text(line, 600));
  return {{"name", text("priced_for")},
          {"facts", std::move(facts)},
          {"notes", std::move(notes)},
          {"plans", std::move(plans)}};
}

}  // namespace

std::string searches_html(const std::string& script, const std::vector<Json>& results) {
  Json data = {{"kind", "searches"},
               {"title", page_text("Search of " + script, 120)},
               {"program", version_line()},
               {"made", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
               {"searches", Json::array()}};
  for (const Json& result : results) data["searches"].push_back(search_json(result));
  return html_page(data["title"].get<std::string>(), data);
}

}  // namespace mw
