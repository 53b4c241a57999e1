// A description's keys, each declared once: as an option, and as the member that it is read into.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "meshwright/options.h"

namespace mw {

template <class T>
class Fields {
 public:
  // Declares a key. The member's type decides its option: a number, an integer, bytes
  // (std::int64_t), a flag or text. Where the key is optional and left out, the member keeps its
  // value.
  template <class Member>
  Options& add(const char* name, const char* doc, Member T::*member) {
    readers_.push_back([=](const Values& values, T& into) {
      if (values.has(name)) into.*member = values.at(name).template get<Member>();
    });
    if constexpr (std::is_same_v<Member, bool>) return options_.boolean(name, doc);
    if constexpr (std::is_same_v<Member, double>) return options_.number(name, doc);
    if constexpr (std::is_same_v<Member, std::int64_t>) return options_.bytes(name, doc);
    if constexpr (std::is_same_v<Member, std::string>) return options_.text(name, doc);
    return options_.integer(name, doc);
  }
  // The options, to declare keys that are read by hand.
  Options& options() { return options_; }
  const Options& options() const { return options_; }

  // A key that older files have: the hint of its problem gives the present name.
  void formerly(std::string old, std::string now) { renamed_[std::move(old)] = std::move(now); }

  // A sensible value for a key, for the hint where a number is out of its range. The nearest
  // allowed number, a byte a second, would help nobody.
  void example(std::string key, std::string text) { examples_[std::move(key)] = std::move(text); }

  // Reads the table into `into`, and returns its values. Adds problems and returns nothing if the
  // table is wrong.
  std::optional<Values> read(const Json& table, const std::string& path, Problems& problems,
                             T& into) const {
    Problems found;
    Values values = options_.read(table, path, found);
    for (Problem problem : found.list()) {
      const std::string key = problem.key.substr(problem.key.rfind('.') + 1);
      const auto old = renamed_.find(key);
      const auto other = examples_.find(key);
      if (problem.code == "option.unknown" && old != renamed_.end())
        problem.hint = fmt::format("{} is called {} now", old->first, old->second);
      if (problem.code == "option.range" && other != examples_.end())
        problem.hint = fmt::format("for example {} = {}", key, other->second);
      problems.add(std::move(problem));
    }
    if (!found.empty()) return std::nullopt;
    for (const auto& reader : readers_) reader(values, into);
    return values;
  }

 private:
  Options options_;
  std::map<std::string, std::string> renamed_;   // present names, by the old name
  std::map<std::string, std::string> examples_;  // sensible values, by key
  std::vector<std::function<void(const Values&, T&)>> readers_;
};

}  // namespace mw
