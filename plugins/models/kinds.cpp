// The models that are built in.
#include "kinds.h"

namespace mw {

std::vector<Registration> built_in_models() {
  return {llama_model, gpt_model, moe_model, composed_model};
}

}  // namespace mw
