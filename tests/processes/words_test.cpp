// Words between processes: what is said comes to all; who leaves, differs or is silent is named in
// all of them.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>

#include "app/joined.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/pack.h"
#include "support/memory_carrier.h"
#include "transport/launched.h"

using namespace mw;
using namespace mw::test;
using Texts = std::vector<std::string>;

TEST_CASE("values come back from bytes as they were") {
  const std::map<std::string, std::vector<double>> map{{"a", {1.5, -0.0}}, {"", {}}};
  const std::optional<int> none;
  const std::string bytes =
      pack(map, none, std::pair<int, std::string>(7, std::string("\0x", 2)), std::array{1, 2, 3});
  std::map<std::string, std::vector<double>> got;
  std::optional<int> nothing = 3;
  std::pair<int, std::string> both;
  std::array<int, 3> list{};
  Unpacker unpacker(bytes);
  unpacker(got, nothing, both, list);
  CHECK(got == map);
  CHECK(std::signbit(got["a"][1]));
  CHECK_FALSE(nothing);
  CHECK(both == std::pair<int, std::string>(7, std::string("\0x", 2)));
  CHECK(list == std::array{1, 2, 3});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    CHECK(thrown([&] {
            Unpacker shorter(part);
            shorter(got, nothing, both, list);
          }) == "process.message");
  }
}

TEST_CASE("launchers number their processes") {
  using Variables = std::map<std::string, std::string>;
  const auto variables = [](const Variables& set) {
    return [&set](const char* name) {
      const auto found = set.find(name);
      return found == set.end() ? nullptr : found->second.c_str();
    };
  };
  const auto of = [&](const Variables& set) {
    const auto launch = launched(variables(set));
    return launch ? fmt::format("{} {}/{} {}", launch->by, launch->process, launch->processes,
                                launch->communicator)
                  : "alone";
  };
  CHECK(of({}) == "alone");
  CHECK(of({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "3"}}) == "mpirun 3/8 mpi");
  CHECK(of({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}) == "alone");
  CHECK(of({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}) ==
        "srun 1/2 mpi");
  CHECK(of({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}}) == "srun 2/4 mpi");
  CHECK(of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}) == "alone");  // what sbatch runs
  CHECK(of({{"WORLD_SIZE", "4"}, {"RANK", "2"}, {"MASTER_ADDR", "node0"}}) == "torchrun 2/4 nccl");
  CHECK(of({{"WORLD_SIZE", "1"}, {"RANK", "0"}}) == "alone");
  CHECK(of({{"PMIX_RANK", "0"}}) == "alone");
  CHECK(of({{"FLUX_JOB_SIZE", "2"}, {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}) == "mpirun 1/2 mpi");
  CHECK_NOTHROW(refuse_lone_member(variables({{"RANK", "0"}, {"SLURM_NTASKS", "4"}})));
  CHECK(of({{"OMPI_COMM_WORLD_SIZE", "1"},
            {"OMPI_COMM_WORLD_RANK", "0"},
            {"WORLD_SIZE", "2"},
            {"RANK", "1"},
            {"MASTER_ADDR", "node0"}}) == "torchrun 1/2 nccl");
  // srun starts mpirun once on each machine. Other launchers have to agree.
  const Variables mpi{{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "3"}};
  const auto beside = [&](Variables more) {
    more.insert(mpi.begin(), mpi.end());
    return more;
  };
  CHECK(of(beside({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}})) == "mpirun 3/8 mpi");
  CHECK(of(beside({{"WORLD_SIZE", "8"}, {"RANK", "3"}, {"MASTER_ADDR", "a"}})) == "mpirun 3/8 mpi");
  for (const Variables& other :
       std::vector<Variables>{{{"WORLD_SIZE", "8"}, {"RANK", "5"}, {"MASTER_ADDR", "a"}},
                              {{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"MASTER_ADDR", "a"}},
                              {{"PMI_SIZE", "8"}, {"PMI_RANK", "0"}}}) {
    CHECK_THROWS_WITH(
        launched(variables(beside(other))),
        Catch::Contains("OMPI_COMM_WORLD_RANK is \"3\"") && Catch::Contains("two launchers"));
  }
  // A process that is one of several, and not known which, does not train by itself.
  for (const Variables& set :
       std::vector<Variables>{{{"WORLD_SIZE", "4"}, {"RANK", "2"}},
                              {{"WORLD_SIZE", "2"}, {"RANK", "3"}, {"MASTER_ADDR", "node0"}},
                              {{"WORLD_SIZE", "2"}},
                              {{"RANK", "1"}},
                              {{"OMPI_COMM_WORLD_SIZE", "x"}, {"OMPI_COMM_WORLD_RANK", "0"}},
                              {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "2"}},
                              {{"SLURM_STEP_NUM_TASKS", "4"}},
                              {{"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_RANK", "0"}},
                              {{"JSM_NAMESPACE_SIZE", "4"}, {"JSM_NAMESPACE_RANK", "3"}},
                              {{"PALS_RANKID", "1"}},
                              {{"PALS_RANKID", "0"}, {"PMI_SIZE", "2"}},
                              {{"PMIX_RANK", "1"}}}) {
    CAPTURE(set.begin()->first, set.begin()->second);
    CHECK(of(set) == "alone");
    CHECK(thrown([&] { refuse_lone_member(variables(set)); }) == "launch.address");
  }
}

TEST_CASE("words come to all processes") {
  const auto ends = in_processes(3, [](JoinedProcesses& all) {
    const std::string own(static_cast<std::size_t>(all.index()), 'x');
    demand(all.all_gather("names", own) == Texts{"", "x", "xx"}, "gathered");
    demand(all.broadcast("a word", own + "!") == "!", "broadcast");
    const Texts gathered = all.gather("names", own);
    demand(gathered.size() == (all.first() ? 3u : 0u), "gathered on one");
    demand(all.clock_offset() == 0, "one clock, and an offset");
    demand(all.on_this_host() == 3, "hosts");
    demand(all.leave(nullptr, 0, [](auto) { return 1; }) == 0, "left");
  });
  CHECK(ends == Texts{"none", "none", "none"});
}

TEST_CASE("machines are told apart by their boot ids, and called by their hosts' names") {
  const auto counted = [](const std::vector<HostId>& hosts) {
    Texts found(hosts.size());
    const auto ends = in_processes(
        static_cast<int>(hosts.size()),
        [&](JoinedProcesses& all) {
          found[static_cast<std::size_t>(all.index())] =
              fmt::format("{} of {}, {}", all.before_on_this_host(), all.on_this_host(),
                          all.name_of(all.index()));
          all.barrier("the end");
        },
        std::chrono::seconds(60), nullptr, hosts);
    CHECK(ends == Texts(hosts.size(), "none"));
    return found;
  };
  // Containers of one name on two machines.
  CHECK(counted({{"box", "b00t-1"}, {"box", "b00t-2"}, {"box", "b00t-1"}, {"box", "b00t-2"}}) ==
        Texts{"0 of 2, process 0 on box", "0 of 2, process 1 on box", "1 of 2, process 2 on box",
              "1 of 2, process 3 on box"});
  // Containers of two names on one machine.
  CHECK(
      counted({{"left", "b00t-1"}, {"right", "b00t-1"}, {"far", "b00t-2"}}) ==
      Texts{"0 of 2, process 0 on left", "1 of 2, process 1 on right", "0 of 1, process 2 on far"});
  // A name is all that is known of a host.
  CHECK(counted({{"a", ""}, {"b", ""}, {"a", ""}}) ==
        Texts{"0 of 2, process 0 on a", "0 of 1, process 1 on b", "1 of 2, process 2 on a"});
  CHECK_FALSE(own_host().boot.empty());
}

TEST_CASE("who has not the token of a run is refused, and is not told it") {
  const auto ends = [](const std::vector<HostId>& hosts) {
    return in_processes(
        static_cast<int>(hosts.size()), [](JoinedProcesses& all) { all.barrier("the end"); },
        std::chrono::seconds(60), nullptr, hosts);
  };
  CHECK(ends({{"a", "b", "0123"}, {"a", "b", "0123"}, {"a", "b", "0123"}}) == Texts(3, "none"));
  for (const char* wrong : {"", "012", "0124", "01234"}) {
    for (const std::string& end : ends({{"a", "b", "0123"}, {"a", "b", "0123"}, {"a", "b", wrong}}))
      CHECK(end == "process.token");
  }
  CHECK(new_token().size() == 32);
  CHECK(new_token() != new_token());
}

TEST_CASE("a message longer than a carrier takes goes in parts") {
  const auto ends = in_processes(2, [](JoinedProcesses& all) {
    std::string bytes(Carrier::most_bytes + 12345, 'a');
    bytes.back() = 'z';
    demand(all.broadcast("much", all.first() ? bytes : "") == bytes, "cut");
  });
  CHECK(ends == Texts{"none", "none"});
}

TEST_CASE("who is elsewhere, has left or has failed is named in every process") {
  SECTION("another word") {
    CHECK(in_processes(3, [](JoinedProcesses& all) {
            all.barrier(all.index() == 1 ? "one thing" : "another");
          }) == Texts(3, "process.apart"));
  }
  SECTION("the end") {
    CHECK(in_processes(3, [](JoinedProcesses& all) {
            if (all.index() == 2) {
              demand(all.leave(nullptr, 0, [](auto) { return 1; }) == 1, "left");
            } else {
              try {
                all.barrier("a word");
              } catch (const Error&) {
                all.leave(std::current_exception(), 0, [](auto) { return 1; });
                throw;
              }
            }
          }) == Texts{"process.apart", "process.apart", "none"});
  }
  SECTION("an error of its own") {
    std::atomic<int> printed = 0;
    const auto ends = in_processes(3, [&](JoinedProcesses& all) {
      try {
        if (all.index() == 1) throw Error(Stage::options, "data.missing", "data", "no such file");
        all.barrier("a word");
      } catch (const Error&) {
        const int code = all.leave(std::current_exception(), 0, [&](std::exception_ptr error) {
          ++printed;
          try {
            std::rethrow_exception(std::move(error));
          } catch (const Error& told) {
            demand(codes(told.problems()) == "data.missing data", "another error");
            return told.exit_code();
          }
        });
        demand(code == 2, "another exit code");
        throw;
      }
    });
    CHECK(ends == Texts(3, "data.missing data"));
    CHECK(printed == 1);
  }
  SECTION("silence") {
    std::atomic<bool> over = false;
    CHECK(in_processes(
              2,
              [&](JoinedProcesses& all) {
                while (all.index() == 1 && !over)
                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                try {
                  all.barrier("a word");
                } catch (const Error&) {
                  over = true;
                  throw;
                }
              },
              std::chrono::milliseconds(200))[0] == "process.silent");
  }
  SECTION("death") {
    const auto post = std::make_shared<Post>(3);
    const auto ends = in_processes(
        3,
        [&](JoinedProcesses& all) {
          if (all.index() == 2) return post->lose(2);
          all.barrier("a word");
        },
        std::chrono::seconds(60), post);
    CHECK(ends == Texts{"process.lost", "process.lost", "none"});
  }
  SECTION("a wish to stop that only one has heard") {
    std::atomic<int> stopped = 0;
    in_processes(2, [&](JoinedProcesses& all) {
      try {
        try {
          if (all.index() == 1) throw Stopped("interrupted");
          all.barrier("a word");
        } catch (...) {
          all.leave(std::current_exception(), 130, [](auto) { return 130; });
          throw;
        }
      } catch (const ProcessFailed& failed) {
        stopped += failed.stopped() ? 1 : 0;
      }
    });
    CHECK(stopped == 1);
  }
}

TEST_CASE("the result of the first process, and its end, may take longer than a timeout") {
  const auto a_while = [](JoinedProcesses& all) {
    if (all.first()) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  };
  const auto ends = in_processes(
      3,
      [&](JoinedProcesses& all) {
        a_while(all);
        const Json result = all.first() ? Json{{"losses", {1.5}}} : Json();
        demand(result_of_first(all, "train", result) == Json{{"losses", {1.5}}}, "another result");
        demand(all.timeout() == std::chrono::seconds(1), "another timeout from then on");
        a_while(all);
        demand(all.leave(nullptr, 0, [](auto) { return 1; }) == 0, "another exit code");
      },
      std::chrono::seconds(1));
  CHECK(ends == Texts(3, "none"));
}

TEST_CASE("a first process that dies before it has a result is missed at once") {
  const auto post = std::make_shared<Post>(2);
  const auto ends = in_processes(
      2,
      [&](JoinedProcesses& all) {
        if (all.first()) return post->lose(0);
        result_of_first(all, "train", Json());
      },
      std::chrono::seconds(60), post);
  CHECK(ends == Texts{"none", "process.lost"});
}

TEST_CASE("the first process' error ends the others, and is printed once") {
  std::atomic<int> printed = 0;
  const auto ends = in_processes(4, [&](JoinedProcesses& all) {
    std::exception_ptr own;
    try {
      if (all.first()) throw Error(Stage::plan, "plan.bad", "plan", "refused");
      all.barrier("a word");
    } catch (...) {
      own = std::current_exception();
    }
    const int code = all.leave(own, 0, [&](auto) {
      ++printed;
      return 3;
    });
    demand(code == 3, "another exit code");
  });
  CHECK(ends == Texts(4, "none"));
  CHECK(printed == 1);
}
