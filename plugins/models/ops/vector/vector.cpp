// Takes the loops that are compiled for the instruction set which ATen uses: that of the CPU, or
// less, where ATEN_CPU_CAPABILITY says so.
#include "vector.h"

#include <ATen/Version.h>

#include <string>

namespace mw::vector {

namespace plain {
extern const Loops<float> floats;
extern const Loops<double> doubles;
}  // namespace plain
#if defined(__x86_64__)
namespace avx2 {
extern const Loops<float> floats;
extern const Loops<double> doubles;
}  // namespace avx2
namespace avx512 {
extern const Loops<float> floats;
extern const Loops<double> doubles;
}  // namespace avx512
#endif

namespace {

struct Set {
  const Loops<float>* floats;
  const Loops<double>* doubles;
};

Set chosen() {
#if defined(__x86_64__)
  const std::string name = at::get_cpu_capability();
  if (name == "AVX512") return {&avx512::floats, &avx512::doubles};
  if (name == "AVX2") return {&avx2::floats, &avx2::doubles};
#endif
  return {&plain::floats, &plain::doubles};
}

const Set& set() {
  static const Set is = chosen();
  return is;
}

}  // namespace

template <>
const Loops<float>& loops<float>() {
  return *set().floats;
}
template <>
const Loops<double>& loops<double>() {
  return *set().doubles;
}

}  // namespace mw::vector
