// `meshwright doctor --cluster`: each process says what it has, and the first one compares.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "app/command.h"
#include "app/doctor.h"
#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/json.h"
#include "meshwright/platform.h"
#include "predict/prediction.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

using Verdict = Finding::Verdict;

// The names of network cards with InfiniBand or RoCE that have a port in use.
std::vector<std::string> network_cards() {
  std::vector<std::string> cards;
  std::error_code error;
  for (fs::directory_iterator card(system_root() / "sys/class/infiniband", error), end;
       !error && card != end; card.increment(error)) {
    bool active = false;
    std::error_code none;
    for (fs::directory_iterator port(card->path() / "ports", none), last; !none && port != last;
         port.increment(none)) {
      std::string state;
      std::getline(std::ifstream(port->path() / "state") >> std::ws, state);
      active = active || state.find("ACTIVE") != std::string::npos;
    }
    if (active) cards.push_back(card->path().filename().string());
  }
  return cards;
}

// NCCL's version, "2.28.3"; empty if this process has not loaded it.
std::string nccl_version() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "";
  const auto get = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Whether this process may lock as much memory as it likes.
bool locks_memory() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}
// The size of /dev/shm in bytes; -1: it is not there.
std::int64_t shared_memory() {
  struct statvfs found {};
  if (::statvfs((system_root() / "dev/shm").c_str(), &found) != 0) return -1;
  return static_cast<std::int64_t>(found.f_blocks) * static_cast<std::int64_t>(found.f_frsize);
}

Json devices_of(PluginRegistry& plugins, const std::string& name, int place) {
  Json found{{"count", 0}, {"why", ""}, {"needs", ""}};
  try {
    const auto platform = make_by_default<Platform>(plugins.find(Kind::device, name));
    found["needs"] = platform->needs();
    platform->load();
    const int count = platform->count();
    if (count == 0) {
      found["why"] = platform->why_none();
      return found;
    }
    const auto own = static_cast<at::DeviceIndex>(place % count);
    found["id"] = platform->id(at::Device(platform->type(), own));
    found["bytes"] = platform->bytes(own);
    found["free"] = platform->free_bytes(own);
    found["count"] = count;  // only now that the device has answered
  } catch (const Error& error) {
    found["why"] = error.problems().front().message;
    found["needs"] = error.problems().front().hint;
  } catch (const std::exception& error) {
    found["why"] = error.what();
  }
  return found;
}

// The first kind of devices beside CPUs that can be used here; if none can, the first kind.
std::string usual_device(PluginRegistry& plugins) {
  std::string first;
  for (const Registration* one : plugins.all(Kind::device)) {
    try {
      const auto platform = make_by_default<Platform>(*one);
      if (platform->type() == at::kCPU) continue;
      if (first.empty()) first = one->name;
      platform->load();
      if (platform->count() > 0) return one->name;
    } catch (const std::exception&) {
      // What the process says of its devices has the reason.
    }
  }
  return first;
}

Json facts_of(PluginRegistry& plugins, const Processes& processes, const std::string& device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  Json facts{{"host", host.data()},
             {"program", version_line()},
             {"devices", devices_of(plugins, device, processes.before_on_this_host())},
             {"cores", core_count()},
             {"cards", network_cards()},
             {"locks memory", locks_memory()},
             {"shared memory", shared_memory()}};
  facts["nccl"] = nccl_version();  // NCCL is loaded once the devices have been looked at
  return facts;
}

class Comparison {
 public:
  Comparison(const Processes& processes, std::string device, std::vector<Json> facts)
      : processes_(processes), device_(std::move(device)), facts_(std::move(facts)) {
    for (std::size_t p = 0; p < facts_.size(); ++p)
      hosts_[facts_[p]["host"].get<std::string>()].push_back(static_cast<int>(p));
  }

  std::vector<Finding> run() {
    add("processes", Verdict::ok,
        fmt::format("{} on {} met", plural(static_cast<int>(facts_.size()), "task"),
                    plural(static_cast<int>(hosts_.size()), "machine")));
    same("program", "program", "install the same release on every machine");
    same("NCCL", "nccl",
         "start all processes from one installation, without another NCCL in "
         "LD_LIBRARY_PATH or LD_PRELOAD");
    devices();
    memory();
    cores();
    if (hosts_.size() > 1) network();
    shared();
    return std::move(findings_);
  }

 private:
  void add(const std::string& name, Verdict verdict, const std::string& found,
           const std::string& hint = "") {
    findings_.push_back({name, verdict, found, hint});
  }
  std::string name_of(int process) const { return processes_.name_of(process); }

  // Refuses processes whose facts under `key` differ. A process may have none ("").
  void same(const std::string& name, const char* key, const std::string& hint) {
    int first = -1;
    for (std::size_t p = 0; p < facts_.size(); ++p) {
      const std::string here = facts_[p][key];
      if (here.empty()) continue;
      if (first < 0) first = static_cast<int>(p);
      const std::string there = facts_[static_cast<std::size_t>(first)][key];
      if (here == there) continue;
      return add(name, Verdict::failed,
                 fmt::format("{} has {}, {} has {}", name_of(first), there,
                             name_of(static_cast<int>(p)), here),
                 hint);
    }
    if (first < 0) return;
    add(name, Verdict::ok,
        facts_[static_cast<std::size_t>(first)][key].get<std::string>() + ", everywhere");
  }

  // Each process has a device, and no other process has it.
  void devices() {
    std::map<std::string, int> owner;
    for (std::size_t p = 0; p < facts_.size(); ++p) {
      const int process = static_cast<int>(p);
      const Json& found = facts_[p]["devices"];
      if (found["count"] == 0) {
        const std::string why = found["why"];
        return add("devices", Verdict::failed,
                   fmt::format("{} can use no device of {}{}{}", name_of(process), device_,
                               why.empty() ? "" : ": ", why),
                   found["needs"]);
      }
      const auto [first, fresh] = owner.emplace(found["id"].get<std::string>(), process);
      if (fresh) continue;
      const std::string host = facts_[p]["host"];
      return add("devices", Verdict::failed,
                 fmt::format("{} and {} would share {}: {} has {} for {}", name_of(first->second),
                             name_of(process), first->first, host,
                             plural(found["count"].get<int>(), "device"),
                             plural(static_cast<int>(hosts_[host].size()), "task")),
                 "one process for each device: fewer tasks on a machine, or more devices "
                 "(--ntasks-per-node and --gpus-per-node of sbatch)");
    }
    add("devices", Verdict::ok, fmt::format("each process has a device of {} of its own", device_));
  }

  void memory() {
    for (std::size_t p = 0; p < facts_.size(); ++p) {
      const Json& found = facts_[p]["devices"];
      if (!found.contains("free")) continue;
      const std::int64_t bytes = found["bytes"], free = found["free"];
      // A context of this process takes some hundred MiB.
      if (free >= bytes - std::max(bytes / 20, std::int64_t{1} << 30)) continue;
      return add("device memory", Verdict::warning,
                 fmt::format("{}: {} of {} are free on {}", name_of(static_cast<int>(p)),
                             memory_text(free), memory_text(bytes), found["id"].get<std::string>()),
                 "another program may use it, which the driver's own tool shows");
    }
    if (facts_[0]["devices"].contains("free")) add("device memory", Verdict::ok, "free");
  }

  void cores() {
    int least = facts_[0]["cores"], process = 0;
    for (std::size_t p = 0; p < facts_.size(); ++p) {
      if (facts_[p]["cores"] >= least) continue;
      least = facts_[p]["cores"];
      process = static_cast<int>(p);
    }
    const bool few = least < 2;
    add("cores", few ? Verdict::warning : Verdict::ok,
        fmt::format("{} has {}{}", name_of(process), plural(least, "core"),
                    few ? ": its ranks, NCCL and the data would share it" : ""),
        few ? "--cpus-per-task of sbatch and srun (one does not inherit it from the other)" : "");
  }

  void network() {
    std::set<std::size_t> counts;
    std::string without;
    for (const auto& [host, members] : hosts_) {
      const std::size_t cards = facts_[static_cast<std::size_t>(members[0])]["cards"].size();
      counts.insert(cards);
      if (cards == 0 && without.empty()) without = host;
    }
    if (!without.empty() || counts.size() > 1)
      return add(
          "network", Verdict::warning,
          without.empty()
              ? fmt::format("machines have {} to {} network cards that are up", *counts.begin(),
                            *counts.rbegin())
              : fmt::format("{} has no network card with InfiniBand or RoCE that is up", without),
          "NCCL then sends through TCP sockets, or fewer cards (NCCL_DEBUG=INFO says which)");
    const bool locks = std::all_of(facts_.begin(), facts_.end(),
                                   [](const Json& one) { return one["locks memory"].get<bool>(); });
    add("network", locks ? Verdict::ok : Verdict::warning,
        fmt::format("each machine has {} up{}",
                    plural(static_cast<int>(*counts.begin()), "network card"),
                    locks ? "" : ", and processes may lock only some memory"),
        locks ? ""
              : "ulimit -l unlimited, or LimitMEMLOCK=infinity for slurmd: cards read and "
                "write locked memory alone");
  }

  void shared() {
    constexpr std::int64_t least = std::int64_t{512} << 20;
    for (const auto& [host, members] : hosts_) {
      const std::int64_t bytes = facts_[static_cast<std::size_t>(members[0])]["shared memory"];
      if (bytes < 0 || bytes >= least) continue;
      return add("/dev/shm", Verdict::warning,
                 fmt::format("{} has {}, through which NCCL connects the processes of a machine",
                             host, memory_text(bytes)),
                 "--shm-size=8g of podman and docker, or --ipc=host");
    }
  }

  const Processes& processes_;
  const std::string device_;
  const std::vector<Json> facts_;
  std::map<std::string, std::vector<int>> hosts_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_cluster(PluginRegistry& plugins, Processes& processes,
                                   const std::string& given) {
  const std::string device = given.empty() ? usual_device(plugins) : given;
  const std::string own = facts_of(plugins, processes, device).dump();
  std::vector<Json> facts;
  for (const std::string& one : processes.gather("doctor", own)) facts.push_back(Json::parse(one));
  if (!processes.first()) return {};
  return Comparison(processes, device, std::move(facts)).run();
}

}  // namespace mw
