// The command calibrate of a program that was made without it.
#include "app/left_out.h"

namespace mw {

const LeftOutCommand calibrate_command{"calibrate", 170, "calibrate"};

}  // namespace mw
