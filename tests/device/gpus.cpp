// The engine on the GPUs of this machine. These tests are hidden: tests/device/test_gpu.py runs
// them where there is a GPU. The file is not named *_test.cpp, as each of those has an entry of its
// own, which would run nothing and pass.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "meshwright/engine/host.h"
#include "meshwright/engine/plugin_call.h"
#include "on_devices.h"
#include "support/sample.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// The experiment with its ranks on the GPUs of this machine.
Experiment on_gpus(Experiment e) {
  e.platform = make_by_default<Platform>(registry().find(Kind::device, "cuda"));
  return e;
}

// The mixes of the simulated accelerator, and what calls libraries that it has not.
std::vector<NamedMix> mixes_of_gpus() {
  std::vector<NamedMix> all = all_mixes();
  NamedMix shampoo = mixes::mix("shampoo, dp 4", {dp(4)});
  shampoo.setup.optimizer = "shampoo";
  shampoo.setup.optimizer_options = Json{{"lr", 1e-3}};
  all.push_back(shampoo);
  NamedMix unfused = mixes::mix("unfused attention, tp 2", {tp(2), sp()}, 2);
  unfused.setup.options["attention"] = "unfused";
  all.push_back(unfused);
  return all;
}

// In fewer bits, with heads as wide as the fused attention kernels of GPUs take.
Setup with_wide_heads(Setup setup, Precision precision) {
  setup.options["hidden"] = 64;
  setup.precision = precision;
  setup.fp32_gradients = precision == Precision::bf16;  // what powersgd asks for
  return setup;
}

// Collects libtorch's warnings of waits for a GPU in this thread that no HostWait declares.
class Undeclared final : public c10::WarningHandler {
 public:
  explicit Undeclared(std::vector<std::string>& said) : said_(said) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing") == std::string::npos || HostWait::current() != nullptr)
      return;
    said_.push_back(warning.msg());
  }

 private:
  std::vector<std::string>& said_;
};

// While it lives, libtorch warns of each of its waits for a GPU (torch.cuda.set_sync_debug_mode in
// Python). Its switch is a variable of libc10_cuda, which this program does not link.
class WatchedWaits {
 public:
  WatchedWaits() {
    void* library = ::dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    REQUIRE(library != nullptr);
    mode_ = static_cast<int*>(::dlsym(library, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
    REQUIRE(mode_ != nullptr);
    *mode_ = 1;  // SyncDebugMode::L_WARN
  }
  ~WatchedWaits() { *mode_ = 0; }
  WatchedWaits(const WatchedWaits&) = delete;
  WatchedWaits& operator=(const WatchedWaits&) = delete;

 private:
  int* mode_ = nullptr;
};

}  // namespace

// tests/device/test_cuda.py runs it with a stand-in of the driver.
TEST_CASE("The driver names a GPU", "[.][driver]") {
  const auto cuda = make_by_default<Platform>(registry().find(Kind::device, "cuda"));
  INFO(cuda->id(at::Device(at::kCUDA, 2)));
  CHECK(cuda->id(at::Device(at::kCUDA, 1)) != cuda->id(at::Device(at::kCUDA, 2)));
}

TEST_CASE("Mixes on GPUs equal one rank on the CPU", "[.][gpu]") {
  for (const NamedMix& mix : mixes_of_gpus()) {
    DYNAMIC_SECTION(mix.name) {
      const Experiment e = experiment(mix.setup);
      if (!lossy_hooks(*e.plan).names.empty()) {
        must_be_alike(run(on_gpus(e), 3), run(e, 3));
        continue;
      }
      const Experiment one = on_one_rank(e);
      must_be_alike(run(on_gpus(one), 3), run(one, 3));
      const VerifyOutcome outcome = verify(on_gpus(e), 3);
      INFO(describe(outcome, e.plan->mix()));
      CHECK(outcome.equal);
      CHECK(std::max({outcome.loss, outcome.gradients, outcome.parameters}) <= 1e-10);
    }
  }
}

TEST_CASE("In fewer bits losses on GPUs are those on CPUs", "[.][gpu]") {
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16);
  for (const NamedMix& mix : mixes_of_gpus()) {
    DYNAMIC_SECTION(mix.name << ", " << name_of(precision)) {
      const Experiment e = experiment(with_wide_heads(mix.setup, precision));
      const Outcome on_cpu = run(e, 3);
      const Outcome on_gpu = run(on_gpus(e), 3);
      REQUIRE(on_cpu.losses.size() == 3);
      REQUIRE(on_gpu.losses.size() == 3);
      const double bound = precision == Precision::fp32 ? 1e-5 : 1e-2;
      for (std::size_t step = 0; step < on_cpu.losses.size(); ++step) {
        CHECK(relative(on_gpu.losses[step], on_cpu.losses[step], 0) <= bound);
        CHECK(relative(on_gpu.norms[step], on_cpu.norms[step], 0) <= 10 * bound);
      }
    }
  }
}

TEST_CASE("What lasts is booked on a GPU as on the CPU, in its allocator's blocks", "[.][gpu]") {
  for (const NamedMix& mix : mixes_of_gpus()) {
    DYNAMIC_SECTION(mix.name) {
      const Experiment e = experiment(mix.setup);
      const Peaks on_cpu = peaks_of(e);
      const Peaks on_gpu = peaks_of(on_gpus(e));
      for (const auto& [rank, peaks] : on_cpu) {
        for (const Category c :
             {Category::parameters, Category::gradients, Category::optimizer, Category::host}) {
          INFO("rank " << rank << ", " << name_of(c));
          const std::int64_t there = on_gpu.at(rank)[static_cast<int>(c)];
          const std::int64_t here = peaks[static_cast<int>(c)];
          CHECK(there >= here);
          CHECK(there <= here + 512 * 64);  // a block of 512 bytes for each of some tensors
        }
      }
    }
  }
}

TEST_CASE("Inside a step nothing waits for a GPU but what is declared", "[.][gpu]") {
  for (const NamedMix& mix : mixes_of_gpus()) {
    DYNAMIC_SECTION(mix.name) {
      const Experiment e = on_gpus(experiment(with_wide_heads(mix.setup, Precision::bf16)));
      run(e, 1);  // what libraries do at their first call
      const WatchedWaits watch;
      std::vector<std::string> one;
      {
        Undeclared handler(one);
        const c10::WarningUtils::WarningHandlerGuard guard(&handler);
        at::ones({1}, at::kCUDA).item();
      }
      REQUIRE(one.size() == 1);  // a wait is seen where there is one
      std::mutex mutex;
      std::vector<std::string> said;
      with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
        std::vector<std::string> own;
        Undeclared handler(own);
        const c10::WarningUtils::WarningHandlerGuard guard(&handler);
        for (std::int64_t step = 0; step < 2; ++step) executor.step(step, 1e-3);
        const std::lock_guard lock(mutex);
        said.insert(said.end(), own.begin(), own.end());
      });
      INFO((said.empty() ? "" : said.front()));
      CHECK(said.size() == 0);
    }
  }
}
