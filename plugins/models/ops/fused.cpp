// Runs fused kernels: what of a call a text depends on, compiled kernels by text, and arguments.
#include "fused.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <tuple>

#include "meshwright/error.h"

namespace mw::kernel {
namespace {

constexpr std::int64_t threads_of_map = 256, most_threads_of_row = 512, warp = 32;
constexpr std::int64_t most_blocks = std::int64_t{1} << 20;  // these go on with the rest
// The largest index that is one of 32 bits, in which two such indices can be added.
constexpr std::int64_t most_narrow = std::int64_t{1} << 30;
constexpr std::size_t most_words = 4096 / 8;  // a kernel's parameters

// Sizes and strides by dim. Strides are 0 where a tensor has size 1.
struct Layout {
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<std::int64_t>> strides;  // of each tensor

  std::int64_t count(std::size_t dims) const {
    std::int64_t count = 1;
    for (std::size_t d = 0; d < dims; ++d) count *= sizes[d];
    return count;
  }
};

Layout layout_of(const std::vector<at::Tensor>& tensors) {
  std::size_t dims = 1;
  for (const at::Tensor& t : tensors)
    dims = std::max(dims, t.defined() ? static_cast<std::size_t>(t.dim()) : 0);
  Layout layout{std::vector<std::int64_t>(dims, 1), {}};
  for (const at::Tensor& t : tensors) {
    std::vector<std::int64_t>& strides = layout.strides.emplace_back(dims, 0);
    if (!t.defined()) continue;
    const std::size_t missing = dims - static_cast<std::size_t>(t.dim());
    for (std::size_t d = missing; d < dims; ++d) {
      const auto of = static_cast<std::int64_t>(d - missing);
      if (t.size(of) == 1) continue;
      layout.sizes[d] = t.size(of);
      strides[d] = t.stride(of);
    }
  }
  return layout;
}

// Makes the dims of a layout as few as possible: neighbouring dims that lie one after the other in
// the memory of all tensors become one. `rows`: the last dim is kept as it is.
Layout merged(const Layout& from, bool rows) {
  Layout to{{}, std::vector<std::vector<std::int64_t>>(from.strides.size())};
  for (std::size_t d = 0; d < from.sizes.size(); ++d) {
    const bool last = d + 1 == from.sizes.size(), apart = rows && last;
    if (from.sizes[d] == 1 && !apart && !(last && to.sizes.empty())) continue;
    bool joins = !to.sizes.empty() && !apart;
    for (std::size_t t = 0; joins && t < to.strides.size(); ++t)
      joins = to.strides[t].back() == from.strides[t][d] * from.sizes[d];
    if (!joins) to.sizes.push_back(1);
    to.sizes.back() *= from.sizes[d];
    for (std::size_t t = 0; t < to.strides.size(); ++t) {
      if (joins) to.strides[t].pop_back();
      to.strides[t].push_back(from.strides[t][d]);
    }
  }
  return to;
}

// Whether packs of so many elements can be moved as one word of at most 16 bytes. Tensors that
// do not vary along the last dim are read element by element.
bool packs(const Layout& layout, const std::vector<at::Tensor>& tensors, std::int64_t pack) {
  if (layout.sizes.back() % pack != 0) return false;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<std::int64_t>& strides = layout.strides[t];
    if (!tensors[t].defined() || strides.back() == 0) continue;
    const std::int64_t bytes = pack * tensors[t].element_size();
    if (strides.back() != 1 || bytes > 16 ||
        reinterpret_cast<std::uintptr_t>(tensors[t].data_ptr()) % bytes != 0)
      return false;
    for (std::size_t d = 0; d + 1 < strides.size(); ++d)
      if (strides[d] % pack != 0) return false;
  }
  return true;
}

// Fills in what depends on the layout, and measures the layout in packs.
void pack(FusedForm& form, Layout& layout, const std::vector<at::Tensor>& tensors) {
  form.pack = 8;
  while (form.pack > 1 && !packs(layout, tensors, form.pack)) form.pack /= 2;
  form.dims = static_cast<int>(layout.sizes.size());
  layout.sizes.back() /= form.pack;
  std::int64_t most = layout.count(layout.sizes.size());
  for (std::vector<std::int64_t>& strides : layout.strides) {
    form.packed.push_back(form.pack > 1 && strides.back() == 1);
    std::int64_t end = 0;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      if (form.packed.back() && d + 1 < strides.size()) strides[d] /= form.pack;
      end += (layout.sizes[d] - 1) * strides[d];
    }
    most = std::max(most, end);
  }
  form.wide = most > most_narrow;
}

// The value of a kernel's parameter (Fused::text()).
std::vector<std::int64_t> words_of(const std::vector<at::Tensor>& tensors, std::int64_t count,
                                   const Layout& layout) {
  std::vector<std::int64_t> words;
  for (const at::Tensor& t : tensors)
    words.push_back(t.defined() ? reinterpret_cast<std::int64_t>(t.data_ptr()) : 0);
  words.push_back(count);
  words.insert(words.end(), layout.sizes.begin(), layout.sizes.end());
  for (const auto& strides : layout.strides)
    words.insert(words.end(), strides.begin(), strides.end());
  return words;
}

bool is_treated(const at::Tensor& tensor, const at::Device& device) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.device() == device && tensor.numel() > 0 &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf);
}

void say_once(const std::string& why) {
  static const bool said = [&] {
    std::fprintf(stderr,
                 "warning: kernels of this device cannot be compiled, so that ops run as several "
                 "kernels of libtorch: %s\n",
                 why.c_str());
    return true;
  }();
  static_cast<void>(said);
}

// The kernel of a text, compiled once in a process and kept to its end, as work that is queued
// may need it. nullptr where it cannot be compiled.
const DeviceKernel* compiled(const std::string& text, at::Device device) {
  using Key = std::tuple<at::DeviceType, at::DeviceIndex, std::string>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<const DeviceKernel>> known;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known.try_emplace(Key{device.type(), device.index(), text});
  if (fresh) {
    try {
      found->second = rank_platform()->compile(device, text, "kernel");
    } catch (const std::exception& error) {
      say_once(error.what());
    }
  }
  return found->second.get();
}

std::int64_t threads_of_row(std::int64_t packs) {
  return std::clamp((packs + warp - 1) / warp * warp, warp, most_threads_of_row);
}

bool is_off() {
  const char* const value = std::getenv("MESHWRIGHT_FUSED");
  return value != nullptr && std::string_view(value) == "off";
}

}  // namespace

bool Fused::serves(const at::Tensor& tensor) {
  static const bool off = is_off();
  const Platform* const platform = rank_platform();
  return platform != nullptr && !off && platform->type() == tensor.device().type();
}

std::int64_t Fused::summing_blocks(std::int64_t packs, std::int64_t rows) {
  const std::int64_t blocks = (std::int64_t{1} << 17) / threads_of_row(packs);
  return std::max<std::int64_t>(1, std::min(blocks, rows / 8));
}

Fused::Fused(Expressions f, int operands, std::vector<RowReduction> reductions)
    : f_(std::move(f)), operands_(operands), reductions_(std::move(reductions)) {}

std::vector<bool> Fused::needed(const std::vector<int>& roots) const {
  std::vector<int> read = roots;
  std::vector<bool> needed(reductions_.size(), false);
  for (std::size_t r = reductions_.size(); r-- > 0;) {
    needed[r] = std::any_of(read.begin(), read.end(), [&](int node) {
      return f_.mentions(node, operands_ + static_cast<int>(r));
    });
    if (needed[r]) read.push_back(reductions_[r].node);
  }
  return needed;
}

const DeviceKernel* Fused::kernel(const FusedForm& form, at::Device device) const {
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = known_.try_emplace({form, device.index()}, nullptr);
  if (fresh) found->second = compiled(text(form), device);
  return found->second;
}

bool Fused::read(std::vector<at::Tensor>& tensors, FusedForm& form,
                 const std::vector<bool>& needed) const {
  std::vector<int> nodes = form.roots;
  for (std::size_t r = 0; r < needed.size(); ++r)
    if (needed[r]) nodes.push_back(reductions_[r].node);
  if (form.column >= 0) nodes.push_back(form.column);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool is_read = std::any_of(nodes.begin(), nodes.end(), [&](int node) {
      return f_.mentions(node, static_cast<int>(t));
    });
    if (t < static_cast<std::size_t>(operands_) && !is_read) tensors[t] = at::Tensor();
    const at::Tensor& one = tensors[t];
    if (one.defined() && !is_treated(one, tensors.back().device())) return false;
    form.types.push_back(one.defined() ? one.scalar_type() : at::ScalarType::Undefined);
  }
  return true;
}

bool Fused::run(const std::vector<int>& roots, const std::vector<Target>& to,
                std::vector<at::Tensor> tensors, ColumnSums* summed) const {
  if (rank_platform() == nullptr) return false;
  FusedForm form;
  tensors.resize(static_cast<std::size_t>(operands_));
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (!to[i].tensor.defined()) continue;
    form.roots.push_back(roots[i]);
    form.added.push_back(to[i].add);
    tensors.push_back(to[i].tensor);
  }
  if (form.roots.empty() || !serves(tensors.back())) return false;
  std::vector<int> read_by = form.roots;
  if (summed != nullptr) read_by.push_back(form.column = summed->root);
  const std::vector<bool> reduced = needed(read_by);
  const bool rows = std::find(reduced.begin(), reduced.end(), true) != reduced.end();
  if (summed != nullptr && !rows) return false;
  if (!read(tensors, form, reduced)) return false;
  Layout layout = merged(layout_of(tensors), rows);
  pack(form, layout, tensors);

  const std::int64_t columns = layout.sizes.back();
  const std::int64_t count = layout.count(layout.sizes.size() - (rows ? 1 : 0));
  std::vector<std::int64_t> words = words_of(tensors, count, layout);
  if (words.size() + (summed != nullptr ? 1 : 0) > most_words) return false;
  const DeviceKernel* const found = kernel(form, tensors.back().device());
  if (found == nullptr) return false;
  const std::int64_t threads = rows ? threads_of_row(columns) : threads_of_map;
  std::int64_t blocks = std::min(rows ? count : (count + threads - 1) / threads, most_blocks);
  if (summed != nullptr) {
    blocks = std::min(blocks, summing_blocks(columns, count));
    summed->sums =
        at::empty({blocks, columns * form.pack},
                  tensors.back().options().dtype(form.in_double() ? at::kDouble : at::kFloat));
    words.push_back(reinterpret_cast<std::int64_t>(summed->sums.data_ptr()));
  }
  RECORD_FUNCTION("meshwright::fused", {});
  found->launch(blocks, static_cast<int>(threads), words.data());
  return true;
}

}  // namespace mw::kernel
