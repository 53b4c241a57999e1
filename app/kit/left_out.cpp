// The commands that write and try plugins, of a program that was made without them.
#include "app/left_out.h"

namespace mw {

const LeftOutCommand plugins_new_command{"plugins new", 93, "kit"};
const LeftOutCommand plugins_test_command{"plugins test", 94, "kit"};

}  // namespace mw
