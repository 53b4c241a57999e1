// Tokens: which sample holds which tokens, shuffling, and data that cannot be used.
#include "meshwright/data.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plugins/data/sample_order.h"
#include "support/problems.h"
#include "support/registered.h"
#include "support/temporary_folder.h"

using mw::DataContext;
using mw::Json;

namespace {

std::shared_ptr<const mw::TokenSource> opened_source(const std::string& kind, const Json& given,
                                                     const DataContext& context,
                                                     mw::Problems& problems) {
  return mw::test::made_at<mw::TokenSource>("data", kind, given, problems, context);
}

std::shared_ptr<const mw::TokenSource> opened_source(const std::string& kind, const Json& given,
                                                     const DataContext& context) {
  mw::Problems problems;
  auto source = opened_source(kind, given, context, problems);
  problems.throw_if_any();
  return source;
}

std::string problem_of(const std::string& kind, const Json& given, const DataContext& context) {
  mw::Problems problems;
  CHECK(opened_source(kind, given, context, problems) == nullptr);
  REQUIRE_FALSE(problems.empty());
  for (const mw::Problem& problem : problems.list()) CHECK(problem.stage == mw::Stage::options);
  return mw::test::codes(problems);
}

// The S + 1 tokens of a sample, having checked that labels are inputs one further on.
std::vector<std::int64_t> tokens_of(const mw::TokenSource& source, std::int64_t k, std::int64_t s) {
  std::vector<std::int64_t> inputs(s), labels(s);
  source.sample(k, s, inputs.data(), labels.data());
  CHECK(std::equal(inputs.begin() + 1, inputs.end(), labels.begin()));
  inputs.push_back(labels.back());
  return inputs;
}

std::string letters(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(1 + i % 251);
  return text;
}

DataContext context_of(std::int64_t sequence, std::int64_t seed = 0) {
  DataContext context;
  context.sequence = sequence;
  context.seed = seed;
  context.vocab = 256;
  return context;
}

}  // namespace

TEST_CASE("sequential samples take S + 1 tokens from (k S) mod (tokens - S - 1)") {
  TemporaryFolder folder;
  const std::string text = letters(1000);
  const auto file = folder.write("a.txt", text);
  const std::int64_t s = 37;
  const auto source =
      opened_source("text", {{"path", file.string()}, {"order", "sequential"}}, context_of(s));
  CHECK(source->vocab() == 256);
  CHECK(source->tokens() == 1000);
  for (std::int64_t k : {0, 1, 5, 25, 26, 27, 1000, 123456}) {
    const auto got = tokens_of(*source, k, s);
    const std::int64_t at = (k * s) % (1000 - s - 1);
    for (std::int64_t t = 0; t <= s; ++t)
      REQUIRE(got[t] == static_cast<unsigned char>(text[at + t]));
  }
}

TEST_CASE("rows of a batch are numbered step * batch + row, whoever asks for them") {
  TemporaryFolder folder;
  const auto file = folder.write("a.txt", letters(5000));
  const std::string order = GENERATE("sequential", "shuffled");
  const auto source =
      opened_source("text", {{"path", file.string()}, {"order", order}}, context_of(16, 3));
  const auto whole = at::empty({6, 16}, at::kLong), whole_labels = at::empty({6, 16}, at::kLong);
  source->sample_rows(7 * 6, whole, whole_labels);
  const auto part = at::empty({2, 16}, at::kLong), part_labels = at::empty({2, 16}, at::kLong);
  source->sample_rows(7 * 6 + 4, part, part_labels);
  CHECK(at::equal(part, whole.narrow(0, 4, 2)));
  CHECK(at::equal(part_labels, whole_labels.narrow(0, 4, 2)));
  const auto row = tokens_of(*source, 7 * 6 + 5, 16);
  CHECK(row[3] == part[1][3].item<std::int64_t>());
}

TEST_CASE("shuffled order takes each window once per epoch and depends on seed and epoch") {
  TemporaryFolder folder;
  std::string text;  // windows can be told apart by their first two bytes
  const std::int64_t s = 8, windows = 300;
  for (int i = 0; i < windows * s + 5; ++i) {
    const int window = static_cast<int>(i / s);
    text += static_cast<char>(i % s == 0 ? 1 + window / 200 : i % s == 1 ? 1 + window % 200 : 'x');
  }
  const auto file = folder.write("a.txt", text);
  const auto epoch_of = [&](std::int64_t seed, std::int64_t epoch) {
    const auto source = opened_source("text", {{"path", file.string()}}, context_of(s, seed));
    std::vector<int> order;
    for (std::int64_t k = epoch * windows; k < (epoch + 1) * windows; ++k) {
      const auto got = tokens_of(*source, k, s);
      order.push_back(static_cast<int>((got[0] - 1) * 200 + got[1] - 1));
    }
    return order;
  };
  const auto first = epoch_of(0, 0);
  std::vector<int> all(windows);
  std::iota(all.begin(), all.end(), 0);
  for (auto order : {first, epoch_of(0, 1), epoch_of(0, 7), epoch_of(1, 0)}) {
    CHECK(order != all);
    std::sort(order.begin(), order.end());
    CHECK(order == all);
  }
  CHECK(first == epoch_of(0, 0));
  CHECK(first != epoch_of(0, 1));
  CHECK(first != epoch_of(1, 0));
}

TEST_CASE("a permutation is one at every size and leaves hardly anything in place") {
  for (std::uint64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    const mw::Permutation permutation(size, 42);
    std::set<std::uint64_t> images;
    std::uint64_t fixed = 0, rising = 0, last = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t image = permutation(i);
      CHECK(image < size);
      images.insert(image);
      fixed += image == i;
      rising += image > last;
      last = image;
    }
    CHECK(images.size() == size);
    if (size >= 1000) {  // of a random one: 1 fixed point on average, half of all neighbours rise
      CHECK(fixed < 8);
      CHECK(std::abs(static_cast<double>(rising) / static_cast<double>(size) - 0.5) < 0.06);
    }
  }
}

TEST_CASE("a folder is read in order of name, several paths one after another") {
  TemporaryFolder folder;
  folder.write("text/b.txt", "second ");
  folder.write("text/a.txt", "first ");
  folder.write("text/.hidden", "never");
  folder.write("text/empty.txt", "");
  const auto more = folder.write("more.txt", "third");
  DataContext context = context_of(16);
  context.roots = {"/nonexistent", folder.path()};
  const auto source =
      opened_source("text", {{"path", {"text", more.string()}}, {"order", "sequential"}}, context);
  CHECK(source->tokens() == 18);
  std::vector<std::int64_t> inputs(16), labels(16);
  source->sample(0, 16, inputs.data(), labels.data());
  CHECK(std::string(inputs.begin(), inputs.end()) == "first second thi");
  CHECK(std::string(labels.begin(), labels.end()) == "irst second thir");
}

TEST_CASE("data that cannot be used is refused with the numbers") {
  TemporaryFolder folder;
  const auto empty = folder.write("empty.txt", "").string();
  const auto brief = folder.write("brief.txt", letters(64)).string();
  const auto binary = folder.write("x.bin", std::string("ab\0cd", 5) + letters(200)).string();
  std::filesystem::create_directories(folder.path() / "nothing");
  const auto context = context_of(64);

  const auto refused = [&](const Json& given) { return problem_of("text", given, context); };
  CHECK(refused({{"path", "no/such.txt"}}) == "file.missing data.path");
  CHECK(refused({{"path", empty}}) == "data.too-short data.path");
  CHECK(refused({{"path", brief}}) == "data.too-short data.path");
  CHECK(refused({{"path", brief}, {"order", "sequential"}}) == "data.too-short data.path");
  CHECK(refused({{"path", binary}}) == "file.format data.path");
  CHECK(refused({{"path", (folder.path() / "nothing").string()}}) == "file.missing data.path");
  CHECK(refused({{"path", 5}}) == "option.value data.path");
  CHECK(refused({{"path", {"a-missing", "b-missing"}}}) ==
        "file.missing data.path[1]; file.missing data.path[2]");
}

TEST_CASE("the shortest text that will do, does") {
  TemporaryFolder folder;
  const auto file = folder.write("a.txt", letters(66)).string();
  CHECK(tokens_of(*opened_source("text", {{"path", file}, {"order", "sequential"}}, context_of(64)),
                  9, 64)
            .size() == 65);
  CHECK(tokens_of(*opened_source("text", {{"path", file}}, context_of(65)), 9, 65).size() == 66);
}

TEST_CASE("synthetic tokens are a function of (seed, k) with four successors per id") {
  DataContext context = context_of(256, 11);
  context.vocab = 97;
  const auto source = opened_source("synthetic", Json::object(), context);
  CHECK(source->tokens() == 0);
  CHECK(tokens_of(*source, 5, 64) ==
        tokens_of(*opened_source("synthetic", {{"seed", 11}}, context), 5, 64));
  CHECK(tokens_of(*source, 5, 64) != tokens_of(*source, 6, 64));
  CHECK(tokens_of(*source, 5, 64) !=
        tokens_of(*opened_source("synthetic", {{"seed", 12}}, context), 5, 64));
  // A prefix does not depend on how much is asked for.
  const auto longer = tokens_of(*source, 5, 128), shorter = tokens_of(*source, 5, 32);
  CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));

  std::map<std::int64_t, std::map<std::int64_t, int>> next;
  double pairs = 0, likeliest = 0;
  for (std::int64_t k = 0; k < 200; ++k) {
    const auto got = tokens_of(*source, k, 256);
    for (std::size_t t = 0; t + 1 < got.size(); ++t) {
      REQUIRE((got[t] >= 0 && got[t] < 97));
      ++next[got[t]][got[t + 1]];
      ++pairs;
    }
  }
  for (const auto& [id, successors] : next) {
    CHECK(successors.size() <= 4);
    int most = 0;
    for (const auto& [successor, count] : successors) most = std::max(most, count);
    likeliest += most;
  }
  CHECK(likeliest / pairs == Approx(0.5).margin(0.03));
}
