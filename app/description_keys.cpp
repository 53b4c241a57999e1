// The page of the keys that clusters and stacks may have, from the declarations that check them.
#include <fmt/format.h>

#include "app/command.h"
#include "app/option_text.h"
#include "predict/cluster.h"
#include "predict/stack.h"

namespace mw {
namespace {

// "integer, 1 .. 65536".
std::string kind_text(const Option& option) {
  const std::string range = range_text(option);
  return type_text(option) + (range.empty() ? "" : ", " + range);
}

std::string keys_text(const Options& keys, const std::string& prefix) {
  std::string text = "| key | holds | left out | what it says |\n|---|---|---|---|\n";
  for (const Option& option : keys.list()) {
    if (option.name == "kind" || option.name == "changed") continue;  // mw.cluster writes them
    const std::string otherwise = !option.fallback && !option.optional ? "must be there"
                                  : option.fallback                    ? default_text(option)
                                                                       : "not said";
    text += fmt::format("| `{}{}` | {} | {} | {} |\n", prefix, option.name, kind_text(option),
                        otherwise, option.doc);
  }
  return text;
}

std::string description_keys() {
  std::string text =
      "# Keys of clusters and stacks\n\n"
      "`meshwright description-keys` makes this page from the declarations by which descriptions "
      "are\nchecked; a test compares. Rates are per second, times in seconds, sizes in bytes or as "
      "`\"80GiB\"`.\n[Prediction](prediction.md) says what the numbers do.\n\n"
      "Any number here is a knob of `mw.what_if` and `plan --what-if` by the name that it has on "
      "this\npage, `network.nic` or `stack.host`, and a key of `mw.cluster(name, { … })`, "
      "`mw.stack(name, { … })`\nand `--set cluster.network.nic=…`.\n\n"
      "## Clusters\n\n"
      "A cluster is a table with tables in it: `{ name = …, nodes = …, device = { … }, node = { … "
      "}, … }`.\n\n";
  for (const auto& [table, keys] : cluster_keys()) {
    if (!table.empty()) text += fmt::format("\n### {}\n\n", table);
    text += keys_text(*keys, table.empty() ? "" : table + ".");
  }
  text += "\n## Stacks\n\nA stack is one table.\n\n" + keys_text(stack_keys(), "stack.");
  return text;
}

const CommandOf<Arguments> description_keys_command{
    {"description-keys", 191, "print the keys of clusters and stacks, as docs/ has them"},
    [](CLI::App&, Arguments&) {},
    [](const Arguments&, Output& output) {
      output.text(description_keys());
      return 0;
    }};

}  // namespace
}  // namespace mw
