// The command chaos of a program that was made without it.
#include "app/left_out.h"

namespace mw {

const LeftOutCommand chaos_command{"chaos", 85, "chaos"};

}  // namespace mw
