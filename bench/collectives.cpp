// How fast thread ranks exchange tensors, beside what memory copies cost and beside gloo.
//
//   build/bin/bench_collectives [--gloo FILE] [--python PYTHON --peer collectives.py] [--json FILE]
//
// The bound. A collective of n ranks through shared memory cannot do with less than each byte of
// each rank's input read once and each byte of each rank's output written once, by all ranks
// together. With S the full buffer (all-reduce: the tensor; all-gather: the gathered output;
// reduce-scatter and all-to-all: the input; send: the tensor):
//     all-reduce      n S read    n S written
//     all-gather      n S read    n S written   (each rank reads the n parts it gathers)
//     reduce-scatter  n S read      S written
//     all-to-all      n S read    n S written
//     send/recv         S read      S written
// "Allowed" is (read + written) / R, where R is the rate, in bytes read and written a second, at
// which as many threads as there are cores (and ranks) to run them std::memcpy from one private
// buffer to another, all at once. "share" is allowed / taken. Two rates are measured, because a
// copy between buffers that stay in a core's own cache is several times faster than one through
// memory:
//     memory   64 MiB to 64 MiB in each thread: what the machine copies at, one rate for all sizes
//     cached   buffers that together are as large as the collective's, copied over and over by the
//              same core. No collective can reach it while its buffers fit the caches: what a rank
//              wrote must cross to the core of the rank that reads it. It shows what is left to
//              gain.
// Both run in this process right before the collective ("memory" before its first size); buffers
// are written before they are timed. "add" is an at::add_out of two buffers at the cached
// footprint.
//
// "Taken" is measured as the peer's script does: all ranks pass a barrier, each times its own call
// up to its return, and the slowest rank counts; the median over repetitions. send/recv is half a
// ping-pong of ranks 0 and 1, the rest being idle.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <tuple>

#include "meshwright/engine/host.h"
#include "meshwright/world.h"

namespace {

using Clock = std::chrono::steady_clock;
using Key = std::tuple<std::string, int, std::int64_t>;  // peer's op name, ranks, bytes

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Full buffers read and written by all ranks together.
double traffic(const std::string& op, int n) {
  if (op == "send_recv") return 2;
  if (op == "reduce_scatter_tensor") return n + 1;
  return 2.0 * n;
}

// Bytes that all buffers of the collective hold together.
std::int64_t footprint(const std::string& op, int n, std::int64_t bytes) {
  if (op == "all_reduce") return n * bytes;
  if (op == "all_to_all_single") return 2 * n * bytes;
  if (op == "send_recv") return 2 * bytes;
  return (n + 1) * bytes;
}

// Bytes read and written a second by `threads` threads at once; `pass(thread, a, b)` goes over both
// halves of a buffer. The median pass of the slowest thread.
template <class Pass>
double rate(int threads, std::int64_t bytes, double traffic_of_half, Pass pass) {
  const auto half = std::max<std::int64_t>(bytes / threads / 2 / 64 * 64, 64);
  std::vector<double> slowest;
  std::vector<double> took(static_cast<std::size_t>(threads));
  std::barrier gate(threads);
  std::atomic<bool> more{true};
  const auto body = [&](int t) {
    std::vector<char> memory(static_cast<std::size_t>(2 * half), 1);
    // Passes below some 100 us are timed in bundles: a barrier costs too much beside them.
    const int bundle = static_cast<int>(std::max<std::int64_t>(1, (1 << 20) / half));
    const auto start = Clock::now();
    for (int i = 0; more; ++i) {
      gate.arrive_and_wait();
      const auto begin = Clock::now();
      for (int k = 0; k < bundle; ++k) pass(memory.data(), memory.data() + half, half);
      took[static_cast<std::size_t>(t)] = seconds_since(begin) / bundle;
      gate.arrive_and_wait();
      if (t == 0) {
        slowest.push_back(*std::max_element(took.begin(), took.end()));
        if (i >= 4 && seconds_since(start) > 0.25) more = false;
      }
      gate.arrive_and_wait();
    }
  };
  std::vector<std::thread> running;
  for (int t = 1; t < threads; ++t) running.emplace_back(body, t);
  body(0);
  for (auto& thread : running) thread.join();
  return traffic_of_half * static_cast<double>(half) * threads / median(slowest);
}

double copy_rate(int threads, std::int64_t bytes) {
  return rate(threads, bytes, 2, [](char* a, char* b, std::int64_t half) {
    std::memcpy(a, b, static_cast<std::size_t>(half));
    asm volatile("" : : "r"(a) : "memory");
  });
}

double add_rate(int threads, std::int64_t bytes) {
  return rate(threads, bytes, 3, [](char* a, char* b, std::int64_t half) {
    at::set_num_threads(1);
    auto left = at::from_blob(a, {half / 4}, at::kFloat);
    const auto right = at::from_blob(b, {half / 4}, at::kFloat);
    at::add_out(left, left, right);
  });
}

struct Result {
  double seconds = 0, fastest = 0;
  std::size_t repetitions = 0;
};

Result measure(const std::string& op, int ranks, std::int64_t bytes, double budget) {
  Result result;
  std::vector<double> slowest;
  mw::run_ranks(ranks, [&](mw::RankContext& context) {
    std::vector<int> group(static_cast<std::size_t>(ranks));
    std::iota(group.begin(), group.end(), 0);
    const auto comm =
        mw::make_communicator(*context.source, {"world", group}, context.rank, nullptr);
    const auto count = bytes / 4 / ranks * ranks;
    auto whole = at::ones({count}), part = at::ones({count / ranks}), other = at::ones({count});
    const auto run = [&] {
      if (op == "all_reduce") {
        comm->all_reduce(whole, mw::Reduction::sum, {}).wait();
      } else if (op == "all_gather_into_tensor") {
        comm->all_gather(whole, part, {}).wait();
      } else if (op == "reduce_scatter_tensor") {
        comm->reduce_scatter(part, whole, mw::Reduction::sum, {}).wait();
      } else if (op == "all_to_all_single") {
        comm->all_to_all(other, whole, {}, {}, {}).wait();
      } else if (context.rank == 0) {
        comm->send(whole, 1, 0, {}).wait();
        comm->recv(whole, 1, 0, {}).wait();
      } else if (context.rank == 1) {
        comm->recv(whole, 0, 0, {}).wait();
        comm->send(whole, 0, 0, {}).wait();
      }
    };
    run();
    auto took = at::zeros({1}, at::kDouble), more = at::ones({1}, at::kDouble);
    const auto start = Clock::now();
    for (int i = 0; i < 3 || (i < 400 && more.item<double>() > 0); ++i) {
      if (op == "all_reduce") whole.fill_(1.0F);  // or it grows beyond all bounds
      comm->barrier({}).wait();
      const auto begin = Clock::now();
      run();
      took.fill_(seconds_since(begin));
      comm->all_reduce(took, mw::Reduction::max, {}).wait();
      if (context.rank == 0) {
        slowest.push_back(took.item<double>());
        more.fill_(seconds_since(start) < budget ? 1.0 : 0.0);
      }
      comm->broadcast(more, 0, {}).wait();
    }
  });
  const double trips = op == "send_recv" ? 2 : 1;
  result.seconds = median(slowest) / trips;
  result.fastest = *std::min_element(slowest.begin(), slowest.end()) / trips;
  result.repetitions = slowest.size();
  return result;
}

// JSON lines of the peer's script.
void read_peer(std::istream& lines, std::map<Key, double>& into) {
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] != '{') continue;
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains("us")) {
      into[{entry["op"], entry["ranks"], entry["bytes"]}] = entry["us"].get<double>() * 1e-6;
    }
  }
}

// Runs the peer's script for `ranks` ranks and sizes right here, beside our own figures.
void run_peer(const std::string& python, const std::string& script, int ranks,
              const std::string& sizes, double budget, std::map<Key, double>& into) {
  const auto output = fmt::format("/tmp/meshwright-peer-{}.jsonl", ranks);
  const auto command = fmt::format(
      "OMP_NUM_THREADS=1 '{}' -m torch.distributed.run --standalone --nproc-per-node {} '{}' "
      "--sizes "
      "{} --seconds {} --ops all_reduce,all_gather_into_tensor,reduce_scatter_tensor,"
      "all_to_all_single,send_recv > {} 2>/dev/null",
      python, ranks, script, sizes, budget, output);
  if (std::system(command.c_str()) != 0) {
    fmt::print(stderr, "The peer's run failed: {}\n", command);
  }
  std::ifstream file(output);
  read_peer(file, into);
  std::remove(output.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Collectives of thread ranks beside memory copies and gloo");
  std::vector<int> rank_counts{2, 4, 8};
  std::vector<std::int64_t> sizes{4096, 65536, 1 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> ops{"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor",
                               "all_to_all_single", "send_recv"};
  std::string gloo, python, peer, json_path;
  double budget = 0.3;
  app.add_option("--ranks", rank_counts, "Numbers of ranks")->delimiter(',');
  app.add_option("--sizes", sizes, "Bytes of the full buffer")->delimiter(',');
  app.add_option("--ops", ops, "Operations, by the peer's names")->delimiter(',');
  app.add_option("--seconds", budget, "Time for each figure");
  app.add_option("--gloo", gloo, "JSON lines of the peer's script");
  app.add_option("--python", python, "A Python with torch: runs the peer's script");
  app.add_option("--peer", peer, "The peer's script");
  app.add_option("--json", json_path, "Writes the figures as JSON lines");
  CLI11_PARSE(app, argc, argv);

  std::map<Key, double> peers;
  if (!gloo.empty()) {
    std::ifstream file(gloo);
    read_peer(file, peers);
  }
  std::ofstream json(json_path);
  fmt::print("{:<22} {:>5} {:>9} {:>10} {:>10} {:>6} {:>10} {:>6} {:>8} {:>10} {:>6}\n",
             "operation", "ranks", "bytes", "us", "memory us", "share", "cached us", "share",
             "add GB/s", "gloo us", "x gloo");
  int held = 0, below_memory = 0, below_cached = 0;
  for (const int ranks : rank_counts) {
    if (!python.empty()) {
      run_peer(python, peer, ranks, fmt::format("{}", fmt::join(sizes, ",")), budget, peers);
    }
    for (const auto& op : ops) {
      const int busy = std::min(mw::core_count(), op == "send_recv" ? 2 : ranks);
      const double through = copy_rate(busy, busy * (std::int64_t{128} << 20));
      for (const auto size : sizes) {
        const auto bytes = footprint(op, ranks, size);
        const double copy = copy_rate(busy, bytes), add = add_rate(busy, bytes);
        const auto result = measure(op, ranks, size, budget);
        const double moved = traffic(op, ranks) * static_cast<double>(size);
        const double allowed = moved / through, allowed_cached = moved / copy;
        const double share = allowed / result.seconds,
                     share_cached = allowed_cached / result.seconds;
        const auto other = peers.find({op, ranks, size});
        const double their = other == peers.end() ? 0 : other->second;
        if (size >= 1 << 20) {
          ++held;
          below_memory += share < 0.7 ? 1 : 0;
          below_cached += share_cached < 0.7 ? 1 : 0;
        }
        fmt::print(
            "{:<22} {:>5} {:>9} {:>10.1f} {:>10.1f} {:>5.0f}% {:>10.1f} {:>5.0f}% {:>8.1f} {:>10} "
            "{:>6}\n",
            op, ranks, size, result.seconds * 1e6, allowed * 1e6, share * 100, allowed_cached * 1e6,
            share_cached * 100, add / 1e9, their > 0 ? fmt::format("{:.1f}", their * 1e6) : "-",
            their > 0 ? fmt::format("{:.1f}", their / result.seconds) : "-");
        std::fflush(stdout);
        if (json.is_open()) {
          json << nlohmann::json{{"op", op},
                                 {"ranks", ranks},
                                 {"bytes", size},
                                 {"us", result.seconds * 1e6},
                                 {"fastest_us", result.fastest * 1e6},
                                 {"allowed_us", allowed * 1e6},
                                 {"share", share},
                                 {"allowed_cached_us", allowed_cached * 1e6},
                                 {"share_cached", share_cached},
                                 {"memory_gbps", through / 1e9},
                                 {"cached_gbps", copy / 1e9},
                                 {"add_gbps", add / 1e9},
                                 {"gloo_us", their * 1e6},
                                 {"repetitions", result.repetitions}}
                      .dump()
               << '\n';
        }
      }
    }
  }
  fmt::print(
      "From 1 MiB up, of {} figures {} reach 70 % of what copies through memory allow, {} of "
      "what cached copies allow.\n",
      held, held - below_memory, held - below_cached);
}
