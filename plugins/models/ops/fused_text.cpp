// Writes the texts of fused kernels, as CUDA C++ that includes no header.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "fused.h"

namespace mw::kernel {
namespace {

// bf16 and fp16 are structures of the prelude.
const char* type_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "double";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    default:
      return "float";
  }
}

// Rounds to nearest even. The instructions for fp16 are those that every GPU has; a compiler for
// CPUs brings functions of the same names.
constexpr const char* prelude = R"(
#ifdef __CUDACC__
inline __device__ float float_of_fp16(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
inline __device__ unsigned short fp16_of_float(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif
struct bf16 { unsigned short bits; };
struct fp16 { unsigned short bits; };
template <class T> struct alignas(sizeof(T) * pack) Pack { T of[pack]; };
inline __device__ real get(float x) { return (real)x; }
inline __device__ real get(double x) { return (real)x; }
inline __device__ real get(bf16 x) { return (real)__uint_as_float((unsigned)x.bits << 16); }
inline __device__ real get(fp16 x) { return (real)float_of_fp16(x.bits); }
inline __device__ void put(float& to, real x) { to = (float)x; }
inline __device__ void put(double& to, real x) { to = (double)x; }
inline __device__ void put(bf16& to, real x) {
  const unsigned bits = __float_as_uint((float)x);
  to.bits = x != x ? 0x7fc0 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline __device__ void put(fp16& to, real x) { to.bits = fp16_of_float((float)x); }
)";

// All threads of a block take part; each gets the result. First the 32 threads of each warp,
// then what the warps found.
constexpr const char* block_reduction = R"(
inline __device__ real {name}_of(real a, real b) {{ return {formula}; }}
inline __device__ real block_{name}(real x) {{
  __shared__ real of_warps[32];
  const int thread = (int)threadIdx.x, warps = (int)blockDim.x / 32;
  for (int other = 16; other > 0; other /= 2)
    x = {name}_of(x, __shfl_xor_sync(0xffffffffu, x, other));
  __syncthreads();  // nobody reads the last reduction's numbers any more
  if (thread % 32 == 0) of_warps[thread / 32] = x;
  __syncthreads();
  x = thread % 32 < warps ? of_warps[thread % 32] : {least};
  for (int other = 16; other > 0; other /= 2)
    x = {name}_of(x, __shfl_xor_sync(0xffffffffu, x, other));
  return x;
}}
)";

class Writer {
 public:
  Writer(const Expressions& f, const FusedForm& form, int operands)
      : f_(f), form_(form), operands_(static_cast<std::size_t>(operands)), last_(form.dims - 1) {
    wide_ = form.in_double();
  }

  std::string text(const std::vector<RowReduction>& reductions, const std::vector<bool>& needed) {
    const bool rows = std::find(needed.begin(), needed.end(), true) != needed.end();
    line("typedef {} real;\ntypedef {} Index;\nconstexpr int pack = {};",
         wide_ ? "double" : "float", form_.wide ? "long long" : "int", form_.pack);
    text_ += prelude;
    line("struct Argument {{ void* data[{0}]; long long count, size[{1}], stride[{0}][{1}];{2} }};",
         form_.types.size(), form_.dims, form_.column < 0 ? "" : " real* sums;");
    for (const bool max : {false, true}) {
      for (std::size_t r = 0; r < needed.size(); ++r) {
        if (!needed[r] || (reductions[r].kind == RowReduction::Kind::max) != max) continue;
        text_ += fmt::format(fmt::runtime(block_reduction), fmt::arg("name", name(max)),
                             fmt::arg("formula", Expressions::formula(code(max))),
                             fmt::arg("least", least(max)));
        break;
      }
    }
    line("extern \"C\" __global__ void kernel(const Argument in) {{");
    if (rows) {
      of_rows(reductions, needed);
    } else {
      line(
          "for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < (Index)in.count;\n"
          "     i += gridDim.x * (Index)blockDim.x) {{");
      offsets("i", last_);
      elements(form_.roots);
      line("}}");
    }
    line("}}");
    return std::move(text_);
  }

 private:
  template <class... T>
  void line(fmt::format_string<T...> format, T&&... arguments) {
    text_ += fmt::format(format, std::forward<T>(arguments)...) + "\n";
  }
  static const char* name(bool max) { return max ? "max" : "sum"; }
  static Expressions::Code code(bool max) {
    return max ? Expressions::Code::maximum : Expressions::Code::add;
  }
  // The value with which a reduction begins, and which changes no result: 0 for a sum, and for a
  // maximum the least finite number. It serves as minus infinity does: both have the exponential 0.
  const char* least(bool max) const {
    if (!max) return "real(0)";
    return wide_ ? "real(-1.7976931348623157e308)" : "real(-3.4028234e38f)";
  }

  void of_rows(const std::vector<RowReduction>& reductions, const std::vector<bool>& needed) {
    line("for (Index row = blockIdx.x; row < (Index)in.count; row += gridDim.x) {{");
    offsets("row", last_ - 1);
    for (std::size_t r = 0; r < reductions.size(); ++r) {
      if (!needed[r]) continue;
      const bool max = reductions[r].kind == RowReduction::Kind::max;
      line("real s{} = {};", r, least(max));
      columns([&] {
        loads({reductions[r].node});
        line("for (int u = 0; u < pack; ++u) {{");
        statements({reductions[r].node});
        line("s{0} = {1}_of(s{0}, n{2});\n}}", r, name(max), reductions[r].node);
      });
      line("const real r{0} = block_{1}(s{0}){2};", r, name(max),
           reductions[r].kind == RowReduction::Kind::mean
               ? fmt::format(" / (real)(in.size[{}] * pack)", last_)
               : "");
    }
    std::vector<int> whole;
    for (const int root : form_.roots) {
      if (!of_row(root)) whole.push_back(root);
    }
    if (!whole.empty() || form_.column >= 0) columns([&] { elements(whole); });
    if (whole.size() == form_.roots.size()) return line("}}");
    // The target of a row's number may lie on an operand that other threads have read.
    line("__syncthreads();");
    line("if (threadIdx.x == 0) {{");
    for (std::size_t i = 0; i < form_.roots.size(); ++i) {
      if (!of_row(form_.roots[i])) continue;
      line("{{");
      statements({form_.roots[i]});
      const std::size_t k = operands_ + i;
      line("{0}& to = (({0}*)in.data[{1}])[at{1}];\nput(to, {2}n{3});\n}}",
           type_name(form_.types[k]), k, form_.added[i] ? "get(to) + " : "", form_.roots[i]);
    }
    line("}}");
    line("}}");
  }

  template <class Body>
  void columns(const Body& body) {
    line("for (Index c = threadIdx.x; c < (Index)in.size[{}]; c += blockDim.x) {{", last_);
    body();
    line("}}");
  }

  // Where each tensor's element of this index lies, over the dims up to `last`.
  void offsets(const char* index, int last) {
    if (last >= 0) line("Index rest = {};", index);
    for (int d = last; d >= 0; --d) {
      if (d == 0) line("const Index x0 = rest;");
      if (d > 0) line("const Index x{0} = rest % (Index)in.size[{0}];", d);
      if (d > 0) line("rest /= (Index)in.size[{}];", d);
    }
    for (std::size_t k = 0; k < form_.types.size(); ++k) {
      if (form_.types[k] == at::ScalarType::Undefined) continue;
      std::string sum = last < 0 ? "0" : "";
      for (int d = 0; d <= last; ++d)
        sum += fmt::format("{}x{} * (Index)in.stride[{}][{}]", d > 0 ? " + " : "", d, k, d);
      line("const Index at{} = {};", k, sum);
    }
    columns_ = last < last_;
  }

  bool of_row(int root) const {
    return columns_ && f_.nodes()[static_cast<std::size_t>(root)].mentioned >> operands_ != 0 &&
           (f_.nodes()[static_cast<std::size_t>(root)].mentioned &
            ((std::uint32_t{1} << operands_) - 1)) == 0;
  }

  std::string element_type(std::size_t k) const {
    const char* type = type_name(form_.types[k]);
    return form_.packed[k] ? fmt::format("Pack<{}>", type) : type;
  }
  std::string place(std::size_t k) const {
    return fmt::format("(({}*)in.data[{}])[at{}{}]", element_type(k), k, k,
                       columns_ ? fmt::format(" + c * (Index)in.stride[{}][{}]", k, last_) : "");
  }
  std::string element(std::size_t k) const {
    return fmt::format("p{}{}", k, form_.packed[k] ? ".of[u]" : "");
  }

  void loads(const std::vector<int>& roots) {
    for (std::size_t k = 0; k < operands_; ++k) {
      for (const int root : roots) {
        if (!f_.mentions(root, static_cast<int>(k))) continue;
        line("const {} p{} = {};", element_type(k), k, place(k));
        break;
      }
    }
  }
  void statements(const std::vector<int>& roots) {
    text_ += f_.statements(roots, [&](int at) {
      const auto k = static_cast<std::size_t>(at);
      return k < operands_ ? fmt::format("get({})", element(k)) : fmt::format("r{}", k - operands_);
    });
  }

  // One pack of elements: all operands are read before a target is written, which may lie on
  // them.
  void elements(std::vector<int> roots) {
    if (form_.column >= 0) roots.push_back(form_.column);
    loads(roots);
    const auto each = [&](const auto& what) {
      for (std::size_t i = 0; i < form_.roots.size(); ++i) {
        if (!of_row(form_.roots[i])) what(i, operands_ + i);
      }
    };
    each([&](std::size_t i, std::size_t k) {
      line("{} p{}{};", element_type(k), k, form_.added[i] ? " = " + place(k) : "");
    });
    if (form_.column >= 0) {
      // A thread meets the same columns in each row of its block.
      line("Pack<real>& sums = ((Pack<real>*)in.sums)[(Index)blockIdx.x * (Index)in.size[{}] + c];",
           last_);
      line("Pack<real> sum = sums;");
    }
    line("for (int u = 0; u < pack; ++u) {{");
    statements(roots);
    each([&](std::size_t i, std::size_t k) {
      line("put({0}, {1}n{2});", element(k),
           form_.added[i] ? fmt::format("get({}) + ", element(k)) : "", form_.roots[i]);
    });
    if (form_.column >= 0)
      line("sum.of[u] = row == (Index)blockIdx.x ? n{0} : sum.of[u] + n{0};", form_.column);
    line("}}");
    if (form_.column >= 0) line("sums = sum;");
    each([&](std::size_t, std::size_t k) { line("{} = p{};", place(k), k); });
  }

  const Expressions& f_;
  const FusedForm& form_;
  const std::size_t operands_;
  const int last_;        // the last dim
  bool wide_ = false;     // computes in fp64
  bool columns_ = false;  // inside of a row, whose columns are indexed by `c`
  std::string text_;
};

}  // namespace

std::string Fused::text(const FusedForm& form) const {
  return Writer(f_, form, operands_).text(reductions_, needed(form.roots));
}

}  // namespace mw::kernel
