// Reads /account and /bandwidth, and sums up their rows over the ranks and by part.
#include "record/account.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "common/run_timing.h"
#include "common/statistics.h"
#include "record/columns.h"

namespace mw {
namespace {

struct PartName {
  const char *part, *text;
};
constexpr std::array part_names{PartName{"products", "products"},
                                PartName{"memory", "memory-bound ops"},
                                PartName{"copies", "collectives' copies"},
                                PartName{"waits", "waits for other ranks"},
                                PartName{"no core", "without a core"},
                                PartName{"engine", "the engine"},
                                PartName{"check", "check"},
                                PartName{"observers", "log and other observers"},
                                PartName{"report", "books of the step"}};

// The sums over one rank's rows.
struct RankTotals {
  std::int64_t calls = 0, kernels = 0;
  double seconds = 0, limit = 0, flops = 0, bytes = 0;
  void add(const RankTotals& more) {
    calls += more.calls;
    kernels += more.kernels;
    seconds += more.seconds;
    limit += more.limit;
    flops += more.flops;
    bytes += more.bytes;
  }
};
using OfRanks = std::map<int, RankTotals>;

// The means and extremes over the ranks. A rank without rows counts as 0.
AccountLine line_of(const OfRanks& of, int ranks) {
  AccountLine line;
  bool first = true;
  for (const auto& [rank, one] : of) {
    line.calls = std::max(line.calls, one.calls);
    line.kernels = std::max(line.kernels, one.kernels);
    line.seconds += one.seconds / ranks;
    line.limit += one.limit / ranks;
    line.flops += one.flops / ranks;
    line.bytes += one.bytes / ranks;
    if (first || one.seconds > line.most) {
      line.most = one.seconds;
      line.slowest = rank;
    }
    if (first || one.seconds < line.least) line.least = one.seconds;
    first = false;
  }
  if (static_cast<int>(of.size()) < ranks) line.least = std::min(line.least, 0.0);
  return line;
}

std::int64_t accounted_step(RunReader& reader, const Table& steps) {
  const auto accounted = reader.table("account").integers("step");
  const std::set<std::int64_t> taken(accounted.begin(), accounted.end());
  const auto numbers = steps.integers("step");
  const auto seconds = steps.numbers("seconds");
  const double middle = median_after_warm_up(seconds);
  std::int64_t nearest = -1;
  double away = not_known;
  for (std::size_t r = 0; r < numbers.size(); ++r) {
    if (!taken.contains(numbers[r]) || std::abs(seconds[r] - middle) >= away) continue;
    away = std::abs(seconds[r] - middle);
    nearest = numbers[r];
  }
  return nearest;
}

void read_rates(RunReader& reader, Account& account, int& at_once) {
  const Table table = reader.table("bandwidth");
  const auto ranks = table.integers("ranks"), bytes = table.integers("bytes");
  const auto rates = table.numbers("bytes_per_second");
  std::int64_t largest = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    largest = std::max(largest, bytes[r]);
    at_once = std::max(at_once, static_cast<int>(ranks[r]));
  }
  const auto raise = [](double& rate, double to) {
    if (!(rate >= to)) rate = to;
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (bytes[r] == largest && ranks[r] == 1) raise(account.memory_rate, rates[r]);
    if (bytes[r] == largest && ranks[r] == at_once) raise(account.shared_rate, rates[r]);
    if (ranks[r] == at_once) raise(account.cache_rate, rates[r]);
  }
}

}  // namespace

std::string account_part_text(const std::string& part) {
  for (const PartName& known : part_names)
    if (part == known.part) return known.text;
  return part;
}

const AccountLine* Account::part(const std::string& name) const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const AccountLine& line) { return line.part == name; });
  return found == parts.end() ? nullptr : &*found;
}

std::optional<Account> read_account(RunReader& reader) {
  const Table steps = reader.table("steps");
  Account account;
  account.step = accounted_step(reader, steps);
  if (account.step < 0) return {};
  const auto numbers = steps.integers("step");
  const auto row = std::find(numbers.begin(), numbers.end(), account.step) - numbers.begin();
  account.seconds = steps.numbers("seconds")[static_cast<std::size_t>(row)];

  const Table table = reader.table_of_step("account", account.step);
  const auto rank = table.integers("rank"), calls = table.integers("calls"),
             kernels = table.integers("kernels");
  const auto part = table.texts("part"), name = table.texts("name"), shape = table.texts("shape");
  const auto seconds = table.numbers("seconds"), limit = table.numbers("limit_seconds"),
             flops = table.numbers("flops"), bytes = table.numbers("bytes");
  std::map<std::tuple<std::string, std::string, std::string>, OfRanks> rows;
  std::map<std::string, OfRanks> parts;
  OfRanks whole;
  std::set<std::int64_t> ranks;
  for (std::size_t r = 0; r < table.rows; ++r) {
    if (rank[r] >= 0) ranks.insert(rank[r]);
    const int of = static_cast<int>(rank[r]);
    const RankTotals one{calls[r], kernels[r], seconds[r], limit[r], flops[r], bytes[r]};
    rows[{part[r], name[r], shape[r]}][of].add(one);
    if (part[r] == "beside") continue;
    RankTotals known = one;  // work that was not measured alone has no limit
    if (!std::isfinite(known.limit)) known.limit = 0;
    parts[part[r]][of].add(known);
    whole[of].add(known);
  }
  account.ranks = static_cast<int>(ranks.size());
  for (const auto& [key, of] : rows) {
    const auto& [in, called, sizes] = key;
    AccountLine line = line_of(of, in == "beside" && of.contains(-1) ? 1 : account.ranks);
    std::tie(line.part, line.name, line.shape) = key;
    (in == "beside" ? account.beside : account.rows).push_back(std::move(line));
  }
  std::stable_sort(account.rows.begin(), account.rows.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  for (const PartName& known : part_names) {
    const auto of = parts.find(known.part);
    if (of == parts.end()) continue;
    account.parts.push_back(line_of(of->second, account.ranks));
    account.parts.back().part = account.parts.back().name = known.part;
  }
  account.whole = line_of(whole, account.ranks);
  int at_once = 1;
  read_rates(reader, account, at_once);
  double sum = 0;
  for (const auto& [of, one] : whole) {
    sum += one.limit;
    account.limit = std::max(account.limit, one.limit);
    account.products = std::max(account.products, parts["products"][of].limit);
  }
  const double share = sum / std::min(at_once, account.ranks);
  if (share > account.limit) {
    const AccountLine* products = account.part("products");
    account.limit = share;
    account.products = products == nullptr ? 0 : products->limit * share * account.ranks / sum;
  }
  return account;
}

Json AccountLine::to_json() const {
  Json json = {{"part", part}, {"name", name}};
  if (!shape.empty()) json["shape"] = shape;
  json["calls"] = calls;
  json["kernels"] = kernels;
  json["seconds"] = seconds;
  json["slowest_seconds"] = most;
  json["slowest_rank"] = slowest;
  json["fastest_seconds"] = least;
  json["limit_seconds"] = number_or_null(limit);
  json["flops"] = flops;
  json["bytes"] = bytes;
  return json;
}

Json Account::to_json() const {
  Json json = {{"step", step}, {"seconds", seconds}, {"ranks", ranks}};
  json["together_seconds"] = whole.seconds;
  json["kernels"] = whole.kernels;
  json["bytes"] = whole.bytes;
  json["limit_seconds"] = limit;
  json["products_alone_seconds"] = products;
  json["memory_bytes_per_second"] = number_or_null(memory_rate);
  json["shared_memory_bytes_per_second"] = number_or_null(shared_rate);
  json["cache_bytes_per_second"] = number_or_null(cache_rate);
  for (const auto& [key, lines] :
       {std::pair{"parts", &parts}, std::pair{"rows", &rows}, std::pair{"beside", &beside}}) {
    json[key] = Json::array();
    for (const AccountLine& line : *lines) json[key].push_back(line.to_json());
  }
  return json;
}

}  // namespace mw
