// What a sweep takes for a result of a cell: a file that has all that it reads, each of its type.
#include <catch2/catch.hpp>

#include "app/sweep/folder.h"
#include "support/temporary_folder.h"

using namespace mw;

namespace {

Json whole_result() {
  return Json::parse(R"({"kind": "cell", "hash": "1", "status": "done", "trained": true,
    "losses": [3.5, 3.25], "grad_norms": [1.5, 1.25], "same_loss_as": {"compared": true},
    "predicted": {"memory": [{"stage": 0, "peak": 8192}]}})");
}

}  // namespace

TEST_CASE("a result whose values are of other types is none, and its cell runs again") {
  const TemporaryFolder folder;
  folder.write("sweep/a-1/result.json", "");
  const SweepFolder sweep((folder.path() / "sweep").string());
  const auto found = [&](const std::string& text) {
    folder.write("sweep/a-1/result.json", text);
    return sweep.result(Cell{}, "1").has_value();
  };
  const auto with = [&](const char* key, const char* value) {
    Json result = whole_result();
    result[key] = Json::parse(value);
    return found(result.dump());
  };
  CHECK(found(whole_result().dump()));
  CHECK(with("losses", "[3.5, null]"));  // a loss that is not finite
  CHECK(with("grad_norms", "null"));
  CHECK_FALSE(found(whole_result().dump().substr(0, 40)));
  CHECK_FALSE(found("[]"));
  CHECK_FALSE(with("hash", "1"));
  CHECK_FALSE(with("kind", R"("train")"));
  CHECK_FALSE(with("status", "3"));
  CHECK_FALSE(with("trained", R"("yes")"));
  CHECK_FALSE(with("losses", "null"));
  CHECK_FALSE(with("losses", R"({"0": 3.5})"));
  CHECK_FALSE(with("same_loss_as", R"({"compared": "no"})"));
  CHECK_FALSE(with("predicted", "5"));
  CHECK_FALSE(with("predicted", R"({"memory": [7]})"));
}
