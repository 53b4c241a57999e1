// The list of models that scripts can name.
#include "model/kinds.h"

namespace mw {

const std::vector<const ModelKind*>& model_kinds() {
  static const std::vector<const ModelKind*> kinds{&llama_kind(), &gpt_kind(), &moe_kind()};
  return kinds;
}

const ModelKind* find_model_kind(const std::string& name) {
  for (const ModelKind* kind : model_kinds()) {
    if (kind->name() == name) return kind;
  }
  return nullptr;
}

}  // namespace mw
