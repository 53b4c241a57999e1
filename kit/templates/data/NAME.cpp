// The data source @NAME@: samples of tokens by their number alone, so that every mix trains on the
// same ones, and a run can go on at any step.
#include "meshwright/data.h"
#include "meshwright/plugin.h"

namespace {

// Each sample counts on by a stride of its own: k, k + d, k + 2 d, … modulo the ids.
class @CLASS@ final : public mw::TokenSource {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ids", "how many ids there are; left out: the model's vocab")
        .at_least(2)
        .optional()
        .integer("strides", "how many strides there are")
        .range(1, 1 << 20)
        .fallback(7);
  }
  // A file would be opened here once, looked for in context.roots; all ranks share it.
  @CLASS@(const mw::Values& values, const mw::DataContext& context)
      : ids_(values.has("ids") ? values.integer("ids") : context.vocab),
        strides_(values.integer("strides")) {}

  std::int64_t vocab() const override { return ids_; }
  std::int64_t tokens() const override { return 0; }  // it never ends

  // Called by every rank's thread: keeps nothing. A label is the token after the input.
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    const std::int64_t stride = 1 + k % strides_;
    for (std::int64_t t = 0; t < sequence; ++t) {
      inputs[t] = (k + t * stride) % ids_;
      // A source whose masks_labels() is true writes -1 - id for a label that counts nothing.
      labels[t] = (k + (t + 1) * stride) % ids_;
    }
  }

 private:
  std::int64_t ids_, strides_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "sequences that count on by strides", mw::data<@CLASS@>())
