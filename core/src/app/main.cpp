#include <cstdio>

#include "base/version.h"

int main() {
  std::puts(mw::version_line().c_str());
  return 0;
}
