// Takes the text of nccl-tests apart. Versions differ in their columns, which are found by the
// table's own header; what launchers put before a line is taken off.
#include "predict/nccl_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/collective_curve.h"

namespace mw {
namespace {

constexpr std::size_t fewest_sizes = 4;
constexpr double least_largest = 32 << 20;  // bytes from which on a link's rate shows
constexpr const char* rerun = "run it with -b 1K -e 1G -f 2";

struct Perf {
  const char *name, *plain;
  Collective op;
};
constexpr Perf perfs[] = {{"all_reduce_perf", "allreduce", Collective::all_reduce},
                          {"all_gather_perf", "allgather", Collective::all_gather},
                          {"reduce_scatter_perf", "reducescatter", Collective::reduce_scatter},
                          {"alltoall_perf", "alltoall", Collective::all_to_all},
                          {"sendrecv_perf", "sendrecv", Collective::send}};

const Perf& perf_of(Collective op) {
  return *std::find_if(std::begin(perfs), std::end(perfs),
                       [&](const Perf& one) { return one.op == op; });
}

// Lower case, without what people put between words.
std::string plain(std::string_view text) {
  std::string all;
  for (const char c : text) {
    if (c != '_' && c != '-') all += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return all;
}

using Words = std::vector<std::string>;

Words words_of(std::string_view line) {
  std::string text(line);
  std::ranges::replace(text, '#', ' ');  // begins a line, and the name of a column
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::optional<double> number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

// A whole number of 15 digits at most, all of which a double has.
bool is_count(std::string_view word) {
  return !word.empty() && word.size() <= 15 &&
         std::all_of(word.begin(), word.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Without "[1,0]<stdout>:" of mpirun, and without "3: " of srun's --label.
std::string_view unlabelled(std::string_view line) {
  const std::size_t tag = line.find("]<std");
  if (line.starts_with("[") && tag != std::string_view::npos) {
    const std::size_t colon = line.find(">:", tag);
    if (colon != std::string_view::npos) return line.substr(colon + 2);
  }
  const std::size_t digits = line.find_first_not_of("0123456789");
  if (digits != 0 && digits != std::string_view::npos && line.substr(digits).starts_with(": "))
    return line.substr(digits + 2);
  return line;
}

// Adds a problem of a line of the file; line 0 stands for the whole file.
void refused(const char* code, const std::string& file, int line, const std::string& message,
             const std::string& hint, Problems& problems) {
  Problem problem{Stage::options, code, "--from", message, hint};
  problem.place = line > 0 ? fmt::format("{}:{}", file, line) : file;
  problems.add(std::move(problem));
}

class LogReader {
 public:
  LogReader(std::string file, Problems& problems) : file_(std::move(file)), problems_(problems) {}

  std::vector<LoggedTable> run(const std::string& text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++line_;
      read(unlabelled(std::string_view(text).substr(begin, end - begin)));
      begin = end + 1;
    }
    finish();
    if (!header_seen_) {
      refuse("calibration.log", 0, "there is no table of nccl-tests in it",
             "give what all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf or "
             "sendrecv_perf prints, with its lines that begin with #");
    }
    return std::move(tables_);
  }

 private:
  struct Rank {
    int number = 0;
    std::string host, device;
  };
  // One program's output so far.
  struct Section {
    std::string perf;  // "allreduce"; empty: no line names it
    std::vector<Rank> ranks;
    std::vector<std::string> columns;
    int line = 0;
    bool started = false, ended = false, groups = false, failed = false, bad = false;
    int failure = 0;  // the first line that says that the program failed
    std::vector<LoggedRow> rows;
    std::vector<int> wrong;
    double largest = 0, bus = 0;  // of the largest row: bus bandwidth over the algorithm's
  };

  void refuse(const char* code, int line, const std::string& message, const std::string& hint) {
    refused(code, file_, line, message, hint, problems_);
  }

  void read(std::string_view line) {
    const Words words = words_of(line);
    if (words.empty()) return;
    name_program(line);
    const std::size_t before = problems_.list().size();
    if (words[0] == "nThread") {
      finish();
      now_.started = true;
      if (!next_.empty()) now_.perf = std::exchange(next_, "");
    } else if (words[0] == "Rank") {
      rank(words);
      now_.bad = now_.bad || problems_.list().size() > before;
    } else if (words[0] == "size" && words.size() > 4 && words[1] == "count") {
      if (!now_.columns.empty()) return;  // a second process prints the same
      now_.columns = words;
      now_.line = line_;
      header_seen_ = true;
    } else if (words[0] == "Out" && line.find("Out of bounds values") != std::string_view::npos) {
      now_.ended = true;
      now_.failed = line.find("FAILED") != std::string_view::npos;
    } else if (!now_.columns.empty() && ends_run(line)) {
      if (now_.failure == 0) now_.failure = line_;
    } else if (words[0] == "Avg" && line.find("Avg bus bandwidth") != std::string_view::npos) {
      now_.ended = true;
    } else if (!now_.columns.empty() && words.size() > 1 && is_count(words[0]) &&
               line.find("NCCL") == std::string_view::npos) {
      row(words);
      now_.bad = now_.bad || problems_.list().size() > before;
    }
  }

  // What nccl-tests, NCCL, launchers and the system print where a program does not come to its end.
  static bool ends_run(std::string_view line) {
    static constexpr std::string_view all[] = {"Test failure",
                                               "Test NCCL failure",
                                               "Test CUDA failure",
                                               "Test MPI failure",
                                               "NCCL failure",
                                               "CUDA failure",
                                               "unhandled system error",
                                               "unhandled cuda error",
                                               "NCCL WARN",
                                               "NCCL error",
                                               "Segmentation fault",
                                               "Bus error",
                                               "Killed",
                                               "Aborted",
                                               "Caught signal",
                                               "mpirun noticed",
                                               "mpiexec noticed",
                                               "MPI_ABORT",
                                               "srun: error",
                                               "CANCELLED",
                                               "core dumped",
                                               "terminate called",
                                               "Out Of Memory",
                                               "Traceback"};
    return std::ranges::any_of(
        all, [&](std::string_view one) { return line.find(one) != std::string_view::npos; });
  }

  // A command line, or "Collective test starting: all_reduce_perf".
  void name_program(std::string_view line) {
    const std::size_t end = line.find("_perf");
    if (end == std::string_view::npos) return;
    std::size_t begin = end;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(line[begin - 1])) != 0 ||
                         line[begin - 1] == '_'))
      --begin;
    const std::string name = plain(line.substr(begin, end - begin));
    const bool concluded = line.find("concluded") != std::string_view::npos;
    const bool before = !now_.started || now_.ended;
    if (!before || concluded) {
      if (now_.perf.empty()) now_.perf = name;
    } else {
      next_ = name;
    }
  }

  // "Rank 0 Group 0 Pid 313 on host device 0 [0x18] NVIDIA H100 80GB HBM3"; Group is newer.
  void rank(const Words& words) {
    const auto on = std::find(words.begin(), words.end(), "on");
    const auto device = std::find(on, words.end(), "device");
    if (words.size() < 2 || !is_count(words[1]) || words[1].size() > 7 || on == words.end() ||
        device - on != 2 || words.end() - device < 4) {
      refuse("calibration.log", line_, "the line of a rank is cut off", "copy the log as it is");
      return;
    }
    Rank rank{static_cast<int>(*number(words[1])), on[1], {}};
    for (auto word = device + 3; word != words.end(); ++word)
      rank.device += (rank.device.empty() ? "" : " ") + *word;
    if (words[2] == "Group" && words[3] != "0") now_.groups = true;
    now_.ranks.push_back(std::move(rank));
  }

  // The place of the numbers behind the columns on the left, of which an empty one leaves no word;
  // none if the row is cut off.
  std::optional<std::size_t> numbers_of(const Words& words) const {
    const auto& columns = now_.columns;
    const std::size_t left = std::find(columns.begin(), columns.end(), "time") - columns.begin(),
                      right = columns.size() - left;
    if (right < 4) return std::nullopt;
    if (words.size() == columns.size()) return left;
    const bool no_op = words.size() > 3 && number(words[3]).has_value();
    if (words.size() + 1 == columns.size() && no_op && left > 3 && columns[3] == "redop")
      return words.size() - right;
    return std::nullopt;
  }

  void row(const Words& words) {
    const auto first = numbers_of(words);
    if (!first || !is_count(words[1])) {
      refuse("calibration.log", line_,
             fmt::format("a row of {} columns is cut off: it has {}", now_.columns.size(),
                         words.size()),
             "run it again, or take the row out");
      return;
    }
    const double bytes = *number(words[0]);
    const std::size_t half = *first + 6 < words.size() ? 4 : 0;  // in place, where it is there
    const bool out_of_place = number(words[*first]).value_or(0) > 0;
    const std::size_t at = *first + (out_of_place ? 0 : half);
    for (const std::size_t column : {*first, *first + half}) {
      const auto wrong = column + 3 < words.size() ? number(words[column + 3]) : std::nullopt;
      // Older versions print the largest error there, a fraction.
      if (now_.columns.back() == "wrong" && wrong.value_or(0) > 0 &&
          (now_.wrong.empty() || now_.wrong.back() != line_))
        now_.wrong.push_back(line_);
    }
    const auto micros = number(words[at]), rate = number(words[at + 1]),
               bus = number(words[at + 2]);
    if (bytes <= 0) return;
    if (!micros || !rate || !bus || *micros <= 0) {
      refuse("calibration.log", line_, "a row has no time", "run it again, or take the row out");
      return;
    }
    const double own = 1e-3 * bytes / *micros;  // GB/s; printed with two digits behind the point
    if (std::abs(own - *rate) > 0.02 * own + 0.0051) {
      refuse("calibration.log", line_,
             fmt::format("{} bytes in {} us are {:.2f} GB/s, and the row says {}", words[0],
                         words[at], own, words[at + 1]),
             "the columns are not those of nccl-tests: copy the log as it is");
      return;
    }
    now_.rows.push_back({bytes, 1e-6 * *micros, line_});
    if (bytes >= now_.largest && *rate >= 1) {
      now_.largest = bytes;
      now_.bus = *bus / *rate;
    }
  }

  void finish() {
    Section done = std::exchange(now_, {});
    if (done.columns.empty()) {
      // Where nccl-tests are built without MPI every process prints for itself.
      now_ = std::move(done);
      return;
    }
    const std::size_t before = problems_.list().size();
    check_results(done);
    LoggedTable table;
    table.file = file_;
    table.line = done.line;
    place_ranks(done, table);
    if (done.bad || problems_.list().size() > before) return;
    const auto op = collective_of(done, table.ranks());
    if (!op) return;
    table.op = *op;
    table.rows = means(done.rows);
    table.ended = done.ended;
    check_sizes(table);
    if (problems_.list().size() == before) tables_.push_back(std::move(table));
  }

  void check_results(const Section& done) {
    if (done.failure > 0 && !done.ended) {
      refuse("calibration.log", done.failure,
             fmt::format("the program failed after {}", plural(std::ssize(done.rows), "row")),
             "links that fail tell nothing of how fast they are: measure again; or take out this "
             "line and those below it, if the rows above are right");
    }
    if (done.wrong.empty() && !done.failed) return;
    refuse("calibration.wrong-results", done.wrong.empty() ? done.line : done.wrong.front(),
           done.wrong.empty() ? "the collective gave wrong results (out of bounds: FAILED)"
                              : fmt::format("the collective gave wrong results in {}",
                                            plural(std::ssize(done.wrong), "row")),
           "what computes wrongly has no speed: mend the links first, and measure again");
  }

  void place_ranks(const Section& done, LoggedTable& table) {
    std::map<int, int> seen;
    int most = -1;
    std::map<std::string, int> hosts;
    std::set<std::string> devices;
    for (const Rank& rank : done.ranks) {
      ++seen[rank.number];
      most = std::max(most, rank.number);
      devices.insert(rank.device);
      const int node = hosts.try_emplace(rank.host, static_cast<int>(hosts.size())).first->second;
      table.node.push_back(node);
    }
    const auto count = std::ssize(done.ranks);
    if (count == 0) {
      refuse("calibration.log", done.line, "no line says which devices took part",
             "keep the lines \"#  Rank  0 Group  0 Pid … on HOST device …\"");
    } else if (seen[0] > 1) {
      refuse("calibration.log", done.line,
             fmt::format("{} processes are all rank 0: each ran alone", seen[0]),
             "build nccl-tests with MPI=1");
    } else if (count != most + 1) {
      refuse("calibration.log", done.line,
             fmt::format("{} of {} ranks have a line of their own", count, most + 1),
             "keep all lines \"#  Rank …\"");
    } else if (count == 1) {
      refuse("calibration.log", done.line, "a single rank sends nothing",
             "run it with -g 8, or by mpirun on several devices");
    }
    if (done.groups) {
      refuse("calibration.log", done.line, "several groups of ranks ran at once",
             "measure without NCCL_TESTS_SPLIT");
    }
    if (devices.size() > 1) {
      refuse("calibration.devices", done.line,
             fmt::format("ranks have devices of several kinds: {}",
                         join({devices.begin(), devices.end()})),
             "a description has one kind: measure each by itself");
    }
    table.device = devices.empty() ? "" : *devices.begin();
  }

  std::optional<Collective> collective_of(const Section& done, int ranks) {
    std::string name = done.perf;
    if (name.empty()) {
      const std::string file = plain(file_.substr(file_.find_last_of('/') + 1));
      for (const Perf& one : perfs) {
        if (file.find(one.plain) != std::string::npos) name = one.plain;
      }
    }
    if (name.empty() && done.bus > 0 && ranks > 2 &&
        std::abs(done.bus / bus_share(Collective::all_reduce, ranks) - 1) < 0.03)
      name = "allreduce";
    const auto found = std::find_if(std::begin(perfs), std::end(perfs),
                                    [&](const Perf& one) { return name == one.plain; });
    std::vector<std::string> names;
    for (const Perf& one : perfs) names.emplace_back(one.name);
    if (found == std::end(perfs)) {
      refuse("calibration.log", done.line,
             name.empty() ? std::string("no line says which collective it is")
                          : fmt::format("{}_perf tells nothing that a description has", name),
             name.empty() ? fmt::format("name the file after it, for example all_gather.txt; what "
                                        "is read are {}",
                                        join(names))
                          : "take the table out; what is read are " + join(names));
      return std::nullopt;
    }
    const double share = bus_share(found->op, ranks);
    if (done.bus > 0 && std::abs(done.bus / share - 1) > 0.03) {
      refuse(
          "calibration.log", done.line,
          fmt::format("by its name it is {}, whose bus bandwidth is {:.2f} times the other among "
                      "{} ranks, and its rows say {:.2f}",
                      found->name, share, ranks, done.bus),
          "name the file after its collective, and keep all lines \"#  Rank …\"");
      return std::nullopt;
    }
    return found->op;
  }

  void check_sizes(const LoggedTable& table) {
    const auto& rows = table.rows;
    if (rows.size() < fewest_sizes) {
      refuse("calibration.sizes", table.line,
             fmt::format("{} in the table, and a curve takes {}", plural(std::ssize(rows), "size"),
                         fewest_sizes),
             rerun);
    } else if (rows.back().bytes < least_largest) {
      refuse("calibration.sizes", table.line,
             fmt::format("the largest size is {}, and a link shows its rate from {} on",
                         format_bytes(rows.back().bytes), format_bytes(least_largest)),
             rerun);
    }
  }

  const std::string file_;
  Problems& problems_;
  std::vector<LoggedTable> tables_;
  Section now_;
  std::string next_;  // a program named before its output
  int line_ = 0;
  bool header_seen_ = false;
};

// Refuses a table that is an earlier one again, as no two programs take the very same times, and
// one by the first size for which an earlier table has another time.
void refuse_twice(const LoggedTable& own, const LoggedTable& earlier, Problems& problems) {
  constexpr double least = 64 << 10, apart = 1.25;  // times of smaller sizes scatter by more
  if (earlier.op != own.op || earlier.node != own.node) return;
  const auto same_row = [](const LoggedRow& a, const LoggedRow& b) {
    return a.bytes == b.bytes && a.seconds == b.seconds;
  };
  if (std::ranges::equal(own.rows, earlier.rows, same_row)) {
    refused("calibration.twice", own.file, own.line,
            fmt::format("its {} are those of {}:{}, and would count twice",
                        plural(std::ssize(own.rows), "row"), earlier.file, earlier.line),
            "give each log once", problems);
    return;
  }
  for (const LoggedRow& row : own.rows) {
    const auto same = std::find_if(earlier.rows.begin(), earlier.rows.end(),
                                   [&](const LoggedRow& r) { return r.bytes == row.bytes; });
    if (row.bytes < least || same == earlier.rows.end()) continue;
    const double ratio = row.seconds / same->seconds;
    if (ratio < apart && ratio > 1 / apart) continue;
    refused("calibration.contradiction", own.file, row.line,
            fmt::format("{} of {} among {} took {:.4g} ms, and {:.4g} ms in {}:{}", own.perf(),
                        format_bytes(row.bytes), own.place(), 1e3 * row.seconds,
                        1e3 * same->seconds, earlier.file, same->line),
            "give the one of the two that holds", problems);
    return;
  }
}

}  // namespace

std::vector<LoggedRow> means(const std::vector<LoggedRow>& rows) {
  std::map<double, std::vector<LoggedRow>> by_size;
  for (const LoggedRow& row : rows) by_size[row.bytes].push_back(row);
  std::vector<LoggedRow> all;
  for (const auto& [bytes, same] : by_size) {
    LoggedRow mean{bytes, 0, same.front().line};
    for (const LoggedRow& row : same) mean.seconds += row.seconds / std::ssize(same);
    all.push_back(mean);
  }
  return all;
}

int LoggedTable::nodes() const {
  return node.empty() ? 0 : *std::max_element(node.begin(), node.end()) + 1;
}

int LoggedTable::most_of_node() const {
  int most = 0;
  for (int n = 0; n < nodes(); ++n)
    most = std::max(most, static_cast<int>(std::count(node.begin(), node.end(), n)));
  return most;
}

bool LoggedTable::whole_nodes(int devices) const {
  return most_of_node() == devices && ranks() == devices * nodes();
}

std::string LoggedTable::place() const {
  return fmt::format("{} on {}", plural(ranks(), "rank"), plural(nodes(), "node"));
}

std::string LoggedTable::perf() const {
  return perf_of(op).name;
}

std::vector<LoggedTable> read_nccl_log(const std::string& file, const std::string& text,
                                       Problems& problems) {
  return LogReader(file, problems).run(text);
}

void check_together(const std::vector<LoggedTable>& tables, Problems& problems) {
  for (std::size_t b = 1; b < tables.size(); ++b) {
    const LoggedTable& own = tables[b];
    if (own.device != tables.front().device) {
      refused("calibration.devices", own.file, own.line,
              fmt::format("it is of {}, and {} is of {}", own.device, tables.front().file,
                          tables.front().device),
              "a description has one kind of device: give the logs of one", problems);
      continue;
    }
    for (std::size_t a = 0; a < b; ++a) refuse_twice(own, tables[a], problems);
  }
}

}  // namespace mw
