// Calls each function that ATen has from a library of vector functions.
#include "base/vector_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>

namespace mw {

void settle_vector_math() {
  // A static's making is what threads wait for, those too that come while it is under way.
  static const bool settled = [] {
    using Function = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, type);
      at::Tensor y = at::empty_like(x);
      for (const Function function :
           {Function{at::acos_out},  Function{at::asin_out},   Function{at::atan_out},
            Function{at::cos_out},   Function{at::cosh_out},   Function{at::erf_out},
            Function{at::erfc_out},  Function{at::erfinv_out}, Function{at::exp_out},
            Function{at::expm1_out}, Function{at::lgamma_out}, Function{at::log_out},
            Function{at::log10_out}, Function{at::log1p_out},  Function{at::log2_out},
            Function{at::rsqrt_out}, Function{at::sin_out},    Function{at::sinh_out},
            Function{at::sqrt_out},  Function{at::tan_out},    Function{at::tanh_out}}) {
        function(y, x);
      }
    }
    return true;
  }();
  static_cast<void>(settled);
}

}  // namespace mw
