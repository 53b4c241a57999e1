// The page of the keys that clusters and stacks may have, from the declarations that check them.
#include "app/command.h"
#include "app/option_text.h"
#include "app/texts.h"
#include "predict/cluster.h"
#include "predict/stack.h"

namespace mw {
namespace {

const CommandOf<Arguments> description_keys_command{
    {"description-keys", 191, "print the keys of clusters and stacks, as docs/ has them"},
    [](CLI::App&, Arguments&) {},
    [](const Arguments&, Output& output) {
      Json clusters = Json::object();
      for (const auto& [table, keys] : cluster_keys()) clusters[table] = options_json(*keys);
      output.text(from_library("description_keys",
                               {{"clusters", clusters}, {"stack", options_json(stack_keys())}}));
      return 0;
    }};

}  // namespace
}  // namespace mw
