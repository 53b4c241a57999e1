// `meshwright runs show --where`: where the seconds of a step went, beside what the machine takes
// for the same work.
#include <fmt/format.h>

#include <cmath>

#include "app/runs_rows.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/account.h"

namespace mw {
namespace {

constexpr std::size_t most_rows = 12;  // of a part

std::string ms(double seconds) {
  return std::isfinite(seconds) ? fmt::format("{:.3f}", 1e3 * seconds) : "-";
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string rate(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", 1e-9 * amount / seconds) : "-";
}

std::string parts_text(const Account& account) {
  TextTable table({"ms of a rank's step", "mean", "share", "slowest", "fastest", "limit", "above"},
                  {1, 2, 3, 4, 5, 6});
  const auto add = [&](const std::string& name, const AccountLine& line, bool works) {
    table.add({name, ms(line.seconds), percent(line.seconds, account.whole.seconds), ms(line.most),
               ms(line.least), works ? ms(line.limit) : "", works ? ms(line.above()) : ""});
  };
  for (const AccountLine& line : account.parts)
    add(account_part_text(line.part), line,
        line.part == "products" || line.part == "memory" || line.part == "copies");
  add("together", account.whole, true);
  return table.text("  ");
}

std::string limit_text(const Account& account) {
  const double step = account.whole.most;
  std::string text = fmt::format(
      "  limit  {} ms, {} of the slowest rank's step: products alone {} ms ({}), bytes "
      "{} ms\n",
      ms(account.limit), percent(account.limit, step), ms(account.products),
      percent(account.products, step), ms(account.limit - account.products));
  if (const AccountLine* away = account.part("no core"); away != nullptr) {
    const double had = account.whole.seconds - away->seconds;
    if (away->seconds > 0.02 * account.whole.seconds)
      text += fmt::format(
          "  a mean rank lacked a core for {} ms; of the other {} ms products alone "
          "are {}\n",
          ms(away->seconds), ms(had), percent(account.products, had));
  }
  const auto gigabytes = [](double rate) { return fmt::format("{:.1f} GB/s", 1e-9 * rate); };
  text += fmt::format(
      "  copies {} through memory on one rank alone, {} on each of all at once, {} "
      "in a cache\n",
      gigabytes(account.memory_rate), gigabytes(account.shared_rate),
      gigabytes(account.cache_rate));
  bool unknown = false;
  for (const AccountLine& row : account.rows) unknown = unknown || std::isnan(row.limit);
  if (unknown)
    text += "  a limit \"-\" was not measured, and counts as 0 in the limit of the step\n";
  return text;
}

std::string rows_text(const Account& account, const std::string& part) {
  const bool products = part == "products", waits = part == "waits";
  std::vector<std::string> header = {account_part_text(part), "calls", "ms"};
  std::vector<std::size_t> right = {1, 2};
  if (products) {
    header = {"products", "operands", "calls", "ms", "ms alone", "GFLOP/s", "GFLOP/s alone"};
    right = {2, 3, 4, 5, 6};
  } else if (!waits) {
    header.insert(header.end(), {"limit ms", "GB/s", "limit GB/s"});
    right = {1, 2, 3, 4, 5};
  }
  TextTable table(std::move(header), std::move(right));
  std::size_t shown = 0, left = 0;
  double others = 0;
  for (const AccountLine& row : account.rows) {
    if (row.part != part) continue;
    if (shown >= most_rows) {
      ++left;
      others += row.seconds;
      continue;
    }
    ++shown;
    std::vector<std::string> cells = {row.name};
    if (products) cells.push_back(row.shape);
    cells.push_back(std::to_string(row.calls));
    cells.push_back(ms(row.seconds));
    const double amount = products ? row.flops : row.bytes;
    if (!waits) {
      cells.push_back(ms(row.limit));
      cells.push_back(rate(amount, row.seconds));
      cells.push_back(rate(amount, row.limit));
    }
    table.add(std::move(cells));
  }
  if (table.empty()) return "";
  std::string text = "\n" + table.text("  ");
  if (left > 0)
    text += fmt::format("  and {} that take {} ms together (--json has them)\n",
                        plural(static_cast<std::int64_t>(left), "row"), ms(others));
  return text;
}

std::string beside_text(const Account& account) {
  if (account.beside.empty()) return "";
  TextTable table({"ms of a mean step, beside it", "", "each"}, {2});
  for (const AccountLine& line : account.beside)
    table.add({line.name, line.slowest < 0 ? "of a core" : "of the slowest rank", ms(line.most)});
  return "\n" + table.text("  ");
}

}  // namespace

void show_where(const RunEntry& entry, Output& output) {
  RunReader reader(entry.path);
  const std::optional<Account> account = read_account(reader);
  if (!account)
    throw Error(
        Stage::options, "account.missing", "",
        fmt::format("run file {}: no account was taken of any of its steps", entry.path.string()),
        "set account = true in the experiment, or --set account=true, and run it again");
  if (!output.json()) {
    std::string text =
        readable_line(fmt::format("{}: step {} of {}, {} ms on {}", entry.name, account->step,
                                  reader.head().mix(), ms(account->seconds),
                                  plural(account->ranks, "rank"))) +
        "\n\n" + parts_text(*account) + "\n" + limit_text(*account);
    for (const char* part : {"products", "memory", "copies", "waits"})
      text += rows_text(*account, part);
    output.text(text + beside_text(*account));
  }
  Json json = {{"kind", "account"}, {"name", entry.name}, {"mix", reader.head().mix()}};
  json.update(account->to_json());
  output.result(json);
}

}  // namespace mw
