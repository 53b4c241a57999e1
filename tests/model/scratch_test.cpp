// Scratch of libraries' kernels, as this CPU takes it: measured, kept,
// and estimated where a call is too large.
#include "meshwright/engine/scratch.h"
#include "support/temporary_folder.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <limits>

#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "plugins/models/ops/attend.h"
#include "plugins/models/ops/gemm.h"

using namespace mw;
namespace fs = std::filesystem;

namespace {

struct ScratchFolder : TemporaryFolder {
  fs::path file() const { return path() / "scratch.json"; }
};

// Calls so far of a kernel whose scratch is known.
int tried = 0;

std::function<void()> prepare_known(const std::vector<std::int64_t>& sizes, at::ScalarType type) {
  return [sizes, type, kept = at::Tensor()]() mutable {
    ++tried;
    const at::Tensor scratch = at::empty({sizes[0]}, type);
    kept = at::empty({sizes[1]}, type);  // the result, which is no scratch
  };
}

LibraryCall known_call(std::int64_t scratch, double flops = 1) {
  LibraryCall call;
  call.name = "known";
  call.sizes = {scratch, 10};
  call.prepare = prepare_known;
  call.flops = flops;
  call.estimate = [](const std::vector<std::int64_t>& sizes, int element, int threads) {
    return sizes[0] * element * threads;
  };
  return call;
}

// Visits a product of these sizes in each way in which linears and attention call it.
template <class Visit>
void for_each_product(std::int64_t m, std::int64_t n, std::int64_t k, const Visit& visit) {
  for (const mw::Into into :
       {mw::Into::fresh, mw::Into::biased, mw::Into::given, mw::Into::added}) {
    for (const Turned turned : {Turned::none, Turned::left, Turned::right}) {
      if (into == mw::Into::fresh && turned != Turned::right) continue;  // linear's alone
      INFO(m << " x " << n << " x " << k << ", into " << static_cast<int>(into) << ", turned "
             << static_cast<int>(turned));
      visit(product_call(into, turned, m, n, k));
    }
  }
}

}  // namespace

TEST_CASE("A call's scratch is what it allocates beside its result", "[kernels]") {
  CHECK(try_scratch(known_call(1000), at::kFloat, 1) == 4000);
  CHECK(try_scratch(known_call(1000), at::kBFloat16, 2) == 2000);
  LibraryCall fails = known_call(1000);
  fails.prepare = [](const std::vector<std::int64_t>&, at::ScalarType) -> std::function<void()> {
    return [] { throw std::runtime_error("no such kernel"); };
  };
  CHECK_FALSE(try_scratch(fails, at::kFloat, 1).has_value());
  const Scratch scratch = ScratchBook({}).of(fails, at::kFloat, 3);
  CHECK(scratch.bytes == 12000);
  CHECK_FALSE(scratch.measured);
}

TEST_CASE("It is tried once, and kept for the next process", "[kernels]") {
  const ScratchFolder folder;
  tried = 0;
  {
    ScratchBook book(folder.path());
    CHECK(book.of(known_call(500), at::kFloat, 1).bytes == 2000);
    CHECK(book.of(known_call(500), at::kFloat, 1).measured);
    CHECK(tried == 1);
    CHECK(book.of(known_call(500), at::kFloat, 2).bytes == 2000);  // other threads, types, sizes
    CHECK(book.of(known_call(500), at::kDouble, 1).bytes == 4000);
    CHECK(book.of(known_call(501), at::kFloat, 1).bytes == 2004);
    CHECK(tried == 4);
  }
  ScratchBook next(folder.path());
  CHECK(next.of(known_call(500), at::kFloat, 1).bytes == 2000);
  CHECK(tried == 4);
  const Cache kept = read_cache(folder.file());
  REQUIRE(kept.size() == 1);
  CHECK(kept.begin().key() == kernels_key());
  CHECK(kept.begin().value().size() == 4);
}

TEST_CASE("A damaged cache is measured anew, and what it has of other CPUs is kept", "[kernels]") {
  const ScratchFolder folder;
  const Cache good = {{"another CPU", {{"x", 1}}}};
  for (const Cache& own :
       {Cache("text"), Cache({{"known 500 10 Float on 1", "many"}}),
        Cache({{"known 500 10 Float on 1", -7}}), Cache({{"known 500 10 Float on 1", nullptr}})}) {
    Cache cache = good;
    cache[kernels_key()] = own;
    std::ofstream(folder.file()) << cache;
    CHECK(ScratchBook(folder.path()).of(known_call(500), at::kFloat, 1).bytes == 2000);
    CHECK(read_cache(folder.file())["another CPU"] == good["another CPU"]);
    CHECK(read_cache(folder.file())[kernels_key()]["known 500 10 Float on 1"] == 2000);
  }
  for (const char* text : {"", "{", "[1]"}) {
    std::ofstream(folder.file()) << text;
    CHECK(ScratchBook(folder.path()).of(known_call(500), at::kFloat, 1).bytes == 2000);
  }
  CHECK(ScratchBook("/proc/no-such-folder").of(known_call(500), at::kFloat, 1).bytes == 2000);
}

TEST_CASE("A call that is too large is not made", "[kernels]") {
  tried = 0;
  const Scratch large = ScratchBook({}).of(known_call(500, 1e12), at::kFloat, 4);
  CHECK(tried == 0);
  CHECK(large.bytes == 8000);
  CHECK_FALSE(large.measured);
  // A product is tried as a smaller one, and what that takes for its result grows with the result.
  ScratchBook book{{}};
  LibraryCall product = product_call(mw::Into::given, Turned::right, 1 << 20, 1 << 16, 1 << 16);
  product.prepare = [](const std::vector<std::int64_t>& sizes, at::ScalarType type) {
    return std::function<void()>([=] { at::empty({sizes[0], sizes[1]}, type); });
  };
  const Scratch huge = book.of(product, at::kBFloat16, 1);
  CHECK_FALSE(huge.measured);
  CHECK(huge.bytes == std::int64_t{2} << 36);
  const kernel::AttendSizes sizes{1, 32, 1 << 16, 1 << 16, 128, 128, kernel::Sight::Kind::same};
  const Scratch attended = book.of(kernel::attend_call(sizes, true, 0), at::kBFloat16, 2);
  CHECK_FALSE(attended.measured);
  CHECK(attended.bytes > 0);
}

// As kernels of oneDNN on AVX-512 do: what is left of n beyond whole blocks has it copied, into a
// buffer for each thread.
LibraryCall copies_what_is_left(std::int64_t m, std::int64_t n, std::int64_t k) {
  LibraryCall product = product_call(mw::Into::fresh, Turned::right, m, n, k);
  product.prepare = [](const std::vector<std::int64_t>& sizes, at::ScalarType) {
    return std::function<void()>(
        [=] { at::empty({sizes[1] % 64 == 0 ? 0 : std::int64_t{66560}}, at::kByte); });
  };
  return product;
}

TEST_CASE("A product's scratch is not that of a rounder one", "[kernels]") {
  ScratchBook book{{}};
  const Scratch tried = book.of(copies_what_is_left(300, 288, 96), at::kFloat, 1);
  CHECK(tried.bytes == 66560);
  CHECK(tried.measured);
  // Too large to be tried: cut down by whole blocks, and what does not grow is taken once.
  for (const std::int64_t n : {4096, 4096 + 32}) {
    const Scratch large = book.of(copies_what_is_left(8192, n, 4096), at::kFloat, 1);
    CHECK(large.bytes == (n % 64 == 0 ? 0 : 66560));
    CHECK_FALSE(large.measured);
  }
}

TEST_CASE("Products of a plan's sizes take what is said of them, on this CPU", "[kernels]") {
  ScratchBook book{{}};
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble);
  const auto [m, n, k] = GENERATE(table<std::int64_t, std::int64_t, std::int64_t>(
      {{300, 288, 96}, {512, 768, 256}, {257, 1000, 100}, {768, 344, 128}, {1024, 100, 65}}));
  const int threads = GENERATE(1, 2);
  for_each_product(m, n, k, [&, type = type, threads = threads](const LibraryCall& call) {
    INFO(at::toString(type) << " on " << threads << " threads");
    const Scratch said = book.of(call, type, threads);
    CHECK(said.measured);
    CHECK(said.bytes == try_scratch(call, type, threads));
  });
}

// It holds for whole blocks: what a kernel takes for what is left over may be said several times
// too large.
TEST_CASE("A product just too large to be tried takes about what is said of it", "[kernels]") {
  ScratchBook book{{}};
  const at::ScalarType type = GENERATE(at::kFloat, at::kDouble);
  const auto [m, n, k] = GENERATE(table<std::int64_t, std::int64_t, std::int64_t>(
      {{1024, 768, 256}, {2048, 320, 256}, {512, 1024, 320}}));
  const int threads = GENERATE(1, 2);
  constexpr std::int64_t slack = 256 << 10;  // where there is hardly any; every result takes more
  for_each_product(m, n, k, [&, type = type, threads = threads](const LibraryCall& call) {
    INFO(at::toString(type) << " on " << threads << " threads");
    const Scratch said = book.of(call, type, threads);
    CHECK_FALSE(said.measured);
    const auto takes = try_scratch(call, type, threads);
    REQUIRE(takes.has_value());
    CHECK(said.bytes <= 2 * *takes + slack);
    CHECK(*takes <= 2 * said.bytes + slack);
  });
}

TEST_CASE("What keeps libraries to an instruction set has measurements of its own", "[kernels]") {
  const std::string own = kernels_key();
  const char* before = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string kept = before != nullptr ? before : "";
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI", 1);
  CHECK(kernels_key() != own);
  before != nullptr ? setenv("ONEDNN_MAX_CPU_ISA", kept.c_str(), 1)
                    : unsetenv("ONEDNN_MAX_CPU_ISA");
  CHECK(kernels_key() == own);
}
