// The index of a checkpoint: comes back as it was written, and one that is damaged, or says what
// cannot be, is refused with what is wrong.
#include "checkpoint/index.h"

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"
#include "checkpoint/folder.h"
#include "checkpoint/settings.h"
#include "meshwright/error.h"
#include "support/temporary_folder.h"

using namespace mw;

namespace {

CheckpointIndex some_index() {
  CheckpointIndex index;
  index.step = 12;
  index.sample = 96;
  index.tokens = 1536;
  index.created = "2026-01-02T03:04:05Z";
  index.version = "1";
  index.name = "name \"with\" \\ and \xc3\xa9";
  index.hash = "00ff";
  index.mix = "zero{2, stage=3}";
  index.ranks = 2;
  index.settings = Json{{"optimizer", {{"lr", 0.1}}}, {"seed", 3}};  // by key, as they come back
  index.scaled = true;
  index.loss_scaler.scale = 1024;
  index.loss_scaler.good = 7;
  index.loss_scaler.left_out = 2;
  index.files = {{0, {640, "0123456789abcdef"}}, {1, {704, "fedcba9876543210"}}};
  // One cut along a dim, one into runs of its elements.
  index.tensors["parameters/a"] = {
      "F64", {4, 3}, {{0, {{{0, 0}, {2, 3}}, 0, 6}}, {1, {{{2, 0}, {2, 3}}, 0, 6}}}};
  index.tensors["optimizer/exp_avg/a"] = {
      "F32", {4, 3}, {{0, {Box::whole({4, 3}), 0, 5}}, {1, {Box::whole({4, 3}), 5, 7}}}};
  index.own[1] = {"hooks/0/0", "hooks/0/1"};
  return index;
}

// The text of an index after an edit of its content, with a checksum that is right.
std::string edited(const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json inner = nlohmann::json::parse(some_index().text()).at("index");
  edit(inner);
  const std::string text = inner.dump();
  return "{\"xxh3\":\"" + checksum_of(text.data(), text.size()) + "\",\"index\":\n" + text + "}\n";
}

std::string refused(const std::string& text) {
  try {
    CheckpointIndex::read(text);
  } catch (const Error& error) {
    CHECK(error.problems().at(0).code == "checkpoint.broken");
    return error.problems().at(0).message;
  }
  return "read";
}

}  // namespace

TEST_CASE("an index comes back as it was") {
  const CheckpointIndex index = some_index(), back = CheckpointIndex::read(index.text());
  CHECK(back.text() == index.text());
  CHECK(back.step == 12);
  CHECK(back.tokens == 1536);
  CHECK(back.name == index.name);
  CHECK(back.settings == index.settings);
  CHECK(back.scaled);
  CHECK(back.loss_scaler.scale == 1024);
  CHECK(back.loss_scaler.good == 7);
  CHECK(back.loss_scaler.left_out == 2);
  CHECK(back.bytes() == 640 + 704);
  CHECK(back.files.at(1).checksum == "fedcba9876543210");
  CHECK(back.own == index.own);
  const StoredTensor& runs = back.tensors.at("optimizer/exp_avg/a");
  CHECK(runs.dtype == "F32");
  CHECK(runs.slices.at(1).rank == 1);
  CHECK(runs.slices.at(1).slice.begin == 5);
  CHECK_FALSE(runs.slices.at(1).slice.is_box());
}

TEST_CASE("an index that was cut off anywhere is refused") {
  const std::string text = some_index().text();
  const std::size_t whole = text.size() - 1;  // without the line's end it is whole
  for (std::size_t size = 0; size < whole; size += 7) {
    INFO(size);
    CHECK(refused(text.substr(0, size)) ==
          "index.json: is no index of a checkpoint, or was cut off");
  }
}

TEST_CASE("an index in which a byte changed is refused") {
  const std::string text = some_index().text();
  for (std::size_t at = 0; at < text.size() - 1; at += 3) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    INFO(at << ": " << changed);
    if (text[at] == '\n') continue;  // white space between the parts
    CHECK(refused(changed) != "read");
  }
}

TEST_CASE("an index that says what cannot be is refused, with the tensor's name") {
  using J = nlohmann::json;
  const auto slice = [](J& index, int at) -> J& {
    return index["tensors"]["parameters/a"]["slices"][static_cast<std::size_t>(at)];
  };
  const std::string a = "index.json: a slice of tensor \"parameters/a\" lies outside of it";
  CHECK(refused(edited([&](J&) {})) == "read");
  CHECK(refused(edited([&](J& i) { slice(i, 0)[1][0] = 3; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[1][0] = -1; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[2][1] = std::int64_t{1} << 62; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[3] = 1; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[4] = -6; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[1] = {0}; })) == a);
  CHECK(refused(edited([&](J& i) { slice(i, 0)[4] = 4; })) ==
        "index.json: the slices of tensor \"parameters/a\" have 10 elements, and it has 12");
  CHECK(refused(edited([&](J& i) {
          i["tensors"]["parameters/a"]["slices"].push_back(slice(i, 0));
        })) == "index.json: tensor \"parameters/a\" has two slices of rank 0");
  const std::string shape = "index.json: tensor \"parameters/a\" has no proper shape";
  CHECK(refused(edited([&](J& i) { i["tensors"]["parameters/a"]["shape"] = {-4, 3}; })) == shape);
  CHECK(refused(edited([&](J& i) {
          i["tensors"]["parameters/a"]["shape"] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
        })) == shape);
  CHECK(refused(edited([&](J& i) { slice(i, 1)[0] = 5; })) ==
        "index.json: tensor \"parameters/a\" is in a file that it does not list");
  CHECK(refused(edited([&](J& i) { i["step"] = -1; })) ==
        "index.json: has no proper step or number of ranks");
  CHECK(refused(edited([&](J& i) { i["format"] = "other/2"; })) ==
        "index.json: is of the format \"other/2\"; this version reads \"meshwright.checkpoint/1\"");
  const std::string cut_off = "index.json: is no index of a checkpoint, or was cut off";
  CHECK(refused(edited([&](J& i) { i.erase("sample"); })) == cut_off);
  CHECK(refused(edited([&](J& i) { i["ranks"] = "two"; })) ==
        "index.json: has something else where a whole number belongs");
}

TEST_CASE("Other content of the data is a difference, but for checkpoints that do not say theirs") {
  const Json old{{"data", {{"tokens", 10}}}}, one{{"data", {{"tokens", 10}, {"content", "a"}}}},
      other{{"data", {{"tokens", 10}, {"content", "b"}}}},
      longer{{"data", {{"tokens", 11}, {"content", "a"}}}};
  CHECK(differences(old, one).empty());
  CHECK(differences(one, one).empty());
  CHECK(differences(one, other) ==
        std::vector<std::string>{"data.content: \"a\" there, \"b\" here"});
  CHECK(differences(old, longer) == std::vector<std::string>{"data.tokens: 10 there, 11 here"});
  CHECK(differences(one, Json::object()).size() == 1);
}

TEST_CASE("Another function is a difference, but for checkpoints that do not say theirs") {
  const auto settings = [](const Json& schedule, const char* ops) {
    Json all{{"model", {{"kind", "model"}, {"block", "a function"}}}, {"schedule", schedule}};
    if (*ops != '\0') all[model_ops] = ops;
    return all;
  };
  const Json one{{"hash", "a"}}, other{{"hash", "b"}};
  const std::string ops = "model: its functions record other ops";
  CHECK(differences(settings("a function", ""), settings(one, "x")).empty());
  CHECK(hard_differences(settings("a function", ""), settings(one, "x")).empty());
  CHECK(differences(settings(one, "x"), settings(one, "x")).empty());
  CHECK(differences(settings(one, "x"), settings(other, "x")) ==
        std::vector<std::string>{"schedule: another function"});
  CHECK(differences(settings(one, "x"), settings(one, "y")) == std::vector<std::string>{ops});
  CHECK(hard_differences(settings(one, "x"), settings(other, "y")) ==
        std::vector<std::string>{ops});
  CHECK(differences(settings("constant", "x"), settings(one, "x")).size() == 1);
}

TEST_CASE("The same data at another path are no difference where their content is known") {
  const auto data = [](const char* path, const char* content) {
    Json settings{{"data", {{"path", path}, {"content", content}}}};
    if (*content == '\0') settings["data"].erase("content");
    return settings;
  };
  CHECK(differences(data("t.txt", "a"), data("./t.txt", "a")).empty());
  CHECK(differences(data("t.txt", "a"), data("u.txt", "b")) ==
        std::vector<std::string>{"data.content: \"a\" there, \"b\" here"});
  CHECK(differences(data("t.txt", ""), data("u.txt", "")) ==
        std::vector<std::string>{"data.path: \"t.txt\" there, \"u.txt\" here"});
}

TEST_CASE("What is left of checkpoints that were given up goes with a later one that is complete") {
  TemporaryFolder temporary;
  const CheckpointFolder folder(temporary.path());
  const auto staged = [&](std::int64_t step, const std::string& mark) {
    return staging_folder(temporary.path(), step, mark);
  };
  for (const std::int64_t step : {5, 10, 15})
    std::filesystem::create_directories(staged(step, folder.mark()) / "within");
  std::filesystem::create_directory(staged(10, "of another start"));
  std::filesystem::create_directory(temporary.path() / checkpoint_name(5));
  std::filesystem::create_directory(temporary.path() / ".other.writing");
  folder.remove_staged_before(15);
  CHECK_FALSE(std::filesystem::exists(staged(5, folder.mark())));
  CHECK_FALSE(std::filesystem::exists(staged(10, folder.mark())));
  CHECK_FALSE(std::filesystem::exists(staged(10, "of another start")));
  CHECK(std::filesystem::exists(staged(15, folder.mark())));
  CHECK(std::filesystem::exists(temporary.path() / checkpoint_name(5)));
  CHECK(std::filesystem::exists(temporary.path() / ".other.writing"));
}
