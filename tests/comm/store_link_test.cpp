// Where processes meet by a launcher's environment, and messages between them over a TCPStore: as
// threads here, as processes in test_store_link.py.
#include "meshwright/store_link.h"

#include <signal.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/problems.h"

namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

mw::Rendezvous of(const Variables& all) {
  return mw::rendezvous([&](const char* name) -> const char* {
    const auto found = all.find(name);
    return found == all.end() ? nullptr : found->second.c_str();
  });
}

std::string refused(const Variables& all) {
  return mw::test::thrown([&] { of(all); });
}

// A port that nobody has. It lies below those that the system gives to whoever asks for any one, so
// that nobody else takes it before it is used.
std::uint16_t free_port() {
  static int next = 10240 + ::getpid() * 16 % 22000;
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  while (true) {
    options.port = static_cast<std::uint16_t>(next++);
    try {
      return c10d::TCPStore("127.0.0.1", options).getPort();
    } catch (const std::exception&) {
      continue;  // somebody has it
    }
  }
}

// What a process of several does: tells each what it knows of it, much or little, and hears the
// same.
void exchange(mw::StoreLink& link) {
  const int n = link.at().processes, self = link.at().process;
  const auto message = [](int from, int to, int number) {
    const std::size_t size =
        number == 1 ? (std::size_t{9} << 20) + from : static_cast<std::size_t>(number);
    return std::to_string(from) + ">" + std::to_string(to) + std::string(size, 'x');
  };
  for (int number = 0; number < 3; ++number)
    for (int to = 0; to < n; ++to) link.post(to, message(self, to, number));
  for (int from = 0; from < n; ++from) {
    for (int number = 0; number < 3; ++number) {
      const auto got = link.take(from, 60s);
      if (got != message(from, self, number))
        throw std::runtime_error("another message than was sent");
    }
  }
}

}  // namespace

TEST_CASE("torchrun, srun and mpirun say where processes meet") {
  const mw::Rendezvous torchrun = of({{"RANK", "3"},
                                      {"WORLD_SIZE", "8"},
                                      {"LOCAL_RANK", "1"},
                                      {"MASTER_ADDR", "node1"},
                                      {"MASTER_PORT", "29500"},
                                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"TORCHELASTIC_RESTART_COUNT", "2"}});
  CHECK(torchrun.by == "torchrun");
  CHECK(torchrun.process == 3);
  CHECK(torchrun.processes == 8);
  CHECK(torchrun.local == 1);
  CHECK(torchrun.host == "node1");
  CHECK(torchrun.port == 29500);
  CHECK(torchrun.hosted);
  CHECK(torchrun.attempt == "2");

  Variables slurm{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"},
                  {"SLURM_LOCALID", "0"},        {"SLURM_JOB_ID", "17"},
                  {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "gpu[03-04,7],other"}};
  CHECK(of(slurm).by == "srun");
  CHECK(of(slurm).host == "gpu03");
  CHECK_FALSE(of(slurm).hosted);
  const std::uint16_t port = of(slurm).port;
  slurm["SLURM_PROCID"] = "0";
  CHECK(of(slurm).port == port);
  slurm["SLURM_STEP_NODELIST"] = "login,gpu[1-2]";
  CHECK(of(slurm).host == "login");
  slurm["MASTER_ADDR"] = "10.0.0.1";
  slurm["MASTER_PORT"] = "4000";
  CHECK(of(slurm).host == "10.0.0.1");
  CHECK(of(slurm).port == 4000);
  slurm["MASTER_PORT"] = "40000000";
  CHECK(refused(slurm) == "launch.address");
  slurm["MASTER_PORT"] = "4000";
  for (const char* none : {"-1", "4", "4294967297", "gpu0", "1x"}) {
    slurm["SLURM_LOCALID"] = none;
    CHECK(refused(slurm) == "launch.address");
  }

  Variables mpirun{{"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_NAMESPACE", "123"}};
  CHECK(of(mpirun).by == "mpirun");
  CHECK(of(mpirun).host == "127.0.0.1");
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";  // of several machines, and none is named
  CHECK(refused(mpirun) == "launch.address");
  CHECK(refused({}) == "launch.alone");
}

TEST_CASE("messages over a store arrive whole and in order, and a process that ends is missed") {
  mw::Rendezvous at{"torchrun", 3, 0, 0, "127.0.0.1", free_port()};
  std::vector<std::thread> others;
  std::vector<std::string> wrong(3);
  const auto body = [&](int process) {
    try {
      mw::Rendezvous own = at;
      own.process = process;
      mw::StoreLink link(own, 60s);
      exchange(link);
      if (process == 1) {
        const std::string why = mw::test::thrown([&] { link.take(2, 60s); });
        if (why != "process.lost") throw std::runtime_error("an end that nobody hears of: " + why);
      }
      link.end(true);
    } catch (const std::exception& error) {
      wrong[static_cast<std::size_t>(process)] = error.what();
    }
  };
  for (const int process : {1, 2}) others.emplace_back(body, process);
  body(0);
  for (std::thread& other : others) other.join();
  for (const std::string& what : wrong) CHECK(what.empty());

  at.port = free_port();
  at.process = 1;  // and nobody opens a store
  CHECK(mw::test::thrown([&] { mw::StoreLink link(at, 500ms); }) == "launch.join");
}

// test_store_link.py starts it: one process of several, in a launcher's environment.
TEST_CASE("a process of several", "[.store-process]") {
  mw::StoreLink link(mw::rendezvous(), 60s, 2s);
  REQUIRE(link.at().processes > 1);
  const char* killed = std::getenv("MESHWRIGHT_TEST_KILLED");
  const int victim = killed == nullptr ? -1 : std::atoi(killed);
  if (victim == 0 && link.at().process != 0) {  // the store may go before all has been exchanged
    const auto talk = [&] {
      exchange(link);
      link.take(0, 60s);
    };
    CHECK(mw::test::thrown(talk) == "process.lost");
    return;
  }
  exchange(link);
  if (link.at().process == victim) ::kill(::getpid(), SIGKILL);
  if (victim >= 0) CHECK(mw::test::thrown([&] { link.take(victim, 60s); }) == "process.lost");
  link.end(true);  // so that the store outlives what the others are still to find
}
