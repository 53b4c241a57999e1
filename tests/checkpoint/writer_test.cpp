// The writers of several processes: a checkpoint is made of files of its own start, whatever a
// process that an earlier start has left behind still writes.
#include "checkpoint/writer.h"

#include <catch2/catch.hpp>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "support/temporary_folder.h"

using namespace mw;

namespace {

constexpr std::int64_t written_step = 5;

// A rank's half of a tensor of two numbers.
std::vector<StoredPiece> half(int rank, double number) {
  return {
      {"parameters/a", at::full({1}, number, at::kDouble), {2}, {Box{{rank}, {1}}, 0, 1}, false}};
}

CheckpointIndex facts_of_two() {
  CheckpointIndex index;
  index.step = written_step;
  index.sample = index.tokens = 1;
  index.created = "2026-01-02T03:04:05Z";
  index.version = "1";
  index.mix = "dp(2)";
  index.ranks = 2;
  index.settings = Json::object();
  return index;
}

// What the process of rank 1 writes.
void write_second(const std::filesystem::path& path, const std::string& mark, double number) {
  CheckpointWriter::Setup setup;
  setup.path = path;
  setup.mark = mark;
  setup.here = {1};
  setup.ranks = 2;
  CheckpointWriter writer(std::move(setup));
  writer.hand_over(written_step, 1, half(1, number), std::nullopt);
  writer.finish();
}

}  // namespace

TEST_CASE("A process of an earlier start writes nothing into a checkpoint of this one") {
  const TemporaryFolder temporary;
  std::string earlier;
  {
    const CheckpointFolder of_earlier(temporary.path());
    earlier = of_earlier.mark();
  }
  CheckpointWriter::Setup setup;
  setup.path = temporary.path();
  setup.here = {0};
  setup.ranks = 2;
  setup.folder = std::make_shared<CheckpointFolder>(temporary.path());
  setup.patience = std::chrono::duration<double>(0.3);
  const std::string mark = setup.folder->mark();
  CHECK(mark != earlier);
  CheckpointWriter first(std::move(setup));
  const auto news_of_one = [&] {
    first.hand_over(written_step, 0, half(0, 1.0), facts_of_two());
    first.finish();
    const std::vector<CheckpointNews> news = first.news();
    REQUIRE(news.size() == 1);
    return news.front().failed;
  };

  write_second(temporary.path(), earlier, 7.0);
  CHECK_THAT(news_of_one(), Catch::Contains("the file of rank 1 has not come"));
  CHECK(checkpoints_in(temporary.path()).empty());

  write_second(temporary.path(), mark, 2.0);
  write_second(temporary.path(), earlier, 7.0);
  CHECK(news_of_one() == "");
  REQUIRE(checkpoints_in(temporary.path()).size() == 1);
  const Checkpoint checkpoint(checkpoints_in(temporary.path()).front().folder);
  const at::Tensor both = at::zeros({2}, at::kDouble);
  checkpoint.read("parameters/a", {2}, {Box::whole({2}), 0, 2}, both);
  CHECK(both[0].item<double>() == 1.0);
  CHECK(both[1].item<double>() == 2.0);
}
