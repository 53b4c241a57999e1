// The built-in model kinds, one file each.
#pragma once

#include "meshwright/model.h"

namespace mw {

const ModelKind& llama_kind();
const ModelKind& gpt_kind();
const ModelKind& moe_kind();

}  // namespace mw
