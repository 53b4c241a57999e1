// The models that are built in.
#include "model/kinds.h"

namespace mw {

std::vector<Registration> built_in_models() {
  return {llama_model, gpt_model, moe_model, composed_model};
}

}  // namespace mw
