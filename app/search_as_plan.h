// A plan that a search found, as a writer for another program reads it. The plan knows what was
// read of it, so that the writer can name everything that it does not express.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "app/search_as.h"

namespace mw {

// A table that knows which of its keys were asked for. What nobody asked for is not expressed.
class ReadTable {
 public:
  explicit ReadTable(Json table = Json::object()) : table_(std::move(table)) {}
  bool has(const std::string& key) const {
    read_.insert(key);
    return table_.contains(key) && !table_.at(key).is_null();
  }
  template <class T>
  T get(const std::string& key, T otherwise) const {
    return has(key) ? table_.at(key).get<T>() : otherwise;
  }
  std::string text(const std::string& key, const char* otherwise) const {
    return get<std::string>(key, otherwise);
  }
  // "key = value" of each key that nobody asked for.
  std::vector<std::string> unread() const;

 private:
  Json table_;
  mutable std::set<std::string> read_;
};

// The entries of a plan by strategy. An sp with ways of its own, context parallelism, is "cp".
class PlanEntries {
 public:
  explicit PlanEntries(const Json& found);
  bool has(const std::string& name) const { return by_name_.contains(name); }
  int ways(const std::string& name) const { return of(name).get("ways", 1); }
  const ReadTable& of(const std::string& name) const;
  int data() const { return ways("dp") * ways("zero"); }
  // Adds the strategies and options that nobody asked for.
  void add_unread(std::vector<std::string>& cannot) const;

 private:
  std::map<std::string, ReadTable> by_name_;
  const ReadTable none_;
};

// One plan on its way into another program's words.
struct Translation {
  Translation(const Json& found, const SearchedFor& searched);
  int stages() const { return plan.ways("pp"); }
  int chunks() const;
  bool even() const;
  std::int64_t microbatch() const { return found.at("microbatch"); }
  std::int64_t microbatches() const { return searched.batch / (plan.data() * microbatch()); }
  // Ranks of TP that split an expert; 0: those that the experts borrow leave no such number.
  int expert_tp() const;
  // Adds to `cannot` what neither program expresses, and what nobody asked for.
  void add_common();

  const Json& found;
  const SearchedFor& searched;
  PlanEntries plan;
  std::vector<int> layers;  // of each virtual stage, in model order
  std::vector<std::string> cannot = {};
};

}  // namespace mw
