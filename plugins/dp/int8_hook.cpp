// A hook that sends int8 with a scale for each block of elements, of gradients and of gathered
// parameters.
#include <algorithm>

#include "hooks.h"

namespace dp {
namespace {

constexpr std::int64_t block = 256;
constexpr std::int64_t scale_bytes = 4;

// A part of `elements` in a buffer of bytes: int8 elements, whole blocks, then a scale for each.
struct Packed {
  std::int64_t elements = 0;
  std::int64_t blocks() const { return (elements + block - 1) / block; }
  std::int64_t bytes() const { return blocks() * (block + scale_bytes); }
};

struct Views {
  at::Tensor numbers, scales;  // (blocks, block) of int8, (blocks, 1) of fp32
};
Views views_of(const at::Tensor& bytes, const Packed& part) {
  const std::int64_t numbers = part.blocks() * block;
  return {bytes.narrow(0, 0, numbers).view({part.blocks(), block}),
          bytes.narrow(0, numbers, part.blocks() * scale_bytes).view(at::kFloat).view({-1, 1})};
}

// Works on whole blocks, then on the elements after them, as a block of their own.
template <class Work>
void by_blocks(const at::Tensor& elements, const Views& views, const Work& work) {
  const std::int64_t whole = elements.numel() / block, rest = elements.numel() % block;
  if (whole > 0)
    work(elements.narrow(0, 0, whole * block).view({whole, block}),
         views.numbers.narrow(0, 0, whole), views.scales.narrow(0, 0, whole));
  if (rest > 0)
    work(elements.narrow(0, whole * block, rest).view({1, rest}),
         views.numbers.narrow(0, whole, 1).narrow(1, 0, rest), views.scales.narrow(0, whole, 1));
}

// A block with NaN or Inf has a scale that is NaN or Inf, and so no finite element once it is read.
void quantise(const at::Tensor& elements, const at::Tensor& bytes, const Packed& part) {
  by_blocks(elements, views_of(bytes, part),
            [](const at::Tensor& from, const at::Tensor& numbers, const at::Tensor& scales) {
              const at::Tensor wide = from.to(at::kFloat);
              const at::Tensor most = at::maximum(wide.amax(1, true), wide.amin(1, true).neg_());
              scales.copy_(most.div_(127).clamp_min_(1e-38));
              const at::Tensor ratio = wide.div(scales).round_();
              numbers.copy_(ratio.nan_to_num_(0, 127, -127));
            });
}

// Brings what is packed to the elements: overwrites them, or adds to them.
void read(const at::Tensor& bytes, const Packed& part, const at::Tensor& elements, bool adds) {
  by_blocks(elements, views_of(bytes, part),
            [&](const at::Tensor& to, const at::Tensor& numbers, const at::Tensor& scales) {
              const at::Tensor wide = numbers.to(at::kFloat).mul_(scales);
              adds ? to.add_(wide) : to.copy_(wide);
            });
}

// How a bucket's gradients are cut over the ranks that sum them.
struct Parts {
  Packed part;
  bool whole = false;  // every rank needs the whole sum
  std::int64_t size_of(std::int64_t elements, int rank) const {
    return std::clamp<std::int64_t>(elements - rank * part.elements, 0, part.elements);
  }
};
Parts parts_of(const mw::BucketShape& bucket) {
  Parts parts{.part = {(bucket.elements + bucket.ways - 1) / bucket.ways}};
  parts.whole = !bucket.in_shards();
  return parts;
}

at::Tensor room(std::int64_t bytes, const at::Tensor& like) {
  return at::empty({bytes}, like.options().dtype(at::kChar));
}

class Int8Reduction final : public mw::BucketReduction {
 public:
  explicit Int8Reduction(const mw::BucketShape& bucket) : parts_(parts_of(bucket)) {}

  void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
    gradient_ = std::move(gradient);
    ranks_ = &ranks;
    purpose_ = purpose;
    const std::int64_t bytes = parts_.part.bytes();
    sent_ = room(bytes * ranks.ways(), gradient_);
    came_ = room(bytes * ranks.ways(), gradient_);
    for (int rank = 0; rank < ranks.ways(); ++rank)
      quantise(elements_of(rank), sent_.narrow(0, rank * bytes, bytes), parts_.part);
    pending_ = ranks.all_to_all(came_, sent_, {}, {}, purpose);
  }

  void finish() override {
    pending_.wait();
    const std::int64_t bytes = parts_.part.bytes();
    const at::Tensor own = elements_of(ranks_->index());
    at::Tensor sum = at::zeros(own.sizes(), own.options().dtype(at::kFloat));
    for (int rank = 0; rank < ranks_->ways(); ++rank)
      read(came_.narrow(0, rank * bytes, bytes), parts_.part, sum, true);
    if (parts_.whole) {
      quantise(sum, sent_.narrow(0, 0, bytes), parts_.part);
      ranks_->all_gather(came_, sent_.narrow(0, 0, bytes), purpose_).wait();
      for (int rank = 0; rank < ranks_->ways(); ++rank)
        read(came_.narrow(0, rank * bytes, bytes), parts_.part, elements_of(rank), false);
    } else {
      own.copy_(sum);
    }
    sent_ = came_ = gradient_ = at::Tensor();
  }

 private:
  // The elements of the flat gradient that a rank sums.
  at::Tensor elements_of(int rank) const {
    const std::int64_t size = parts_.size_of(gradient_.numel(), rank);
    return gradient_.narrow(0, size > 0 ? rank * parts_.part.elements : 0, size);
  }

  const Parts parts_;
  at::Tensor gradient_, sent_, came_;
  mw::Communicator* ranks_ = nullptr;
  mw::Purpose purpose_;
  mw::Pending pending_;
};

class Int8Gather final : public mw::BucketGather {
 public:
  void start(at::Tensor shard, at::Tensor whole, mw::Communicator& ranks,
             mw::Purpose purpose) override {
    whole_ = std::move(whole);
    part_ = {shard.numel()};
    ways_ = ranks.ways();
    sent_ = room(part_.bytes(), shard);
    came_ = room(part_.bytes() * ways_, shard);
    quantise(shard, sent_, part_);
    pending_ = ranks.all_gather(came_, sent_, purpose);
  }
  void finish() override {
    pending_.wait();
    for (int rank = 0; rank < ways_; ++rank)
      read(came_.narrow(0, rank * part_.bytes(), part_.bytes()), part_,
           whole_.narrow(0, rank * part_.elements, part_.elements), false);
    whole_ = sent_ = came_ = at::Tensor();
  }

 private:
  Packed part_;
  int ways_ = 1;
  at::Tensor whole_, sent_, came_;
  mw::Pending pending_;
};

// What it takes to quantise or read a part: fp32 of its elements, `copies` times, and of scales.
std::int64_t wide(const Packed& part, int copies) {
  const std::int64_t rest = part.elements % block;
  return 4 * (copies * std::max(part.elements - rest, rest) + part.blocks());
}

}  // namespace

mw::ReductionCost Int8Hook::cost(const mw::BucketShape& bucket) const {
  const Parts parts = parts_of(bucket);
  const std::int64_t bytes = parts.part.bytes() * bucket.ways;
  const int casts = bucket.element == 4 ? 0 : 1;
  mw::ReductionCost cost;
  cost.held = 2 * bytes;
  cost.start.calls = {{mw::Collective::all_to_all, bytes}};
  cost.start.workspace = wide(parts.part, 1 + casts);
  cost.start.touched = bucket.element * bucket.elements + bytes;
  cost.finish.workspace = 4 * parts.part.elements + wide(parts.part, 1);
  cost.finish.touched = bytes + bucket.element * bucket.own_elements;
  if (parts.whole) {
    cost.finish.calls = {{mw::Collective::all_gather, bytes}};
    cost.finish.touched += bytes + bucket.element * bucket.elements;
  }
  return cost;
}

std::unique_ptr<mw::BucketReduction> Int8Hook::make(const mw::BucketShape& bucket,
                                                    at::TensorOptions) const {
  return std::make_unique<Int8Reduction>(bucket);
}

mw::ReductionCost Int8Hook::gather_cost(const mw::BucketShape& bucket) const {
  const Packed part{bucket.own_elements};
  const std::int64_t bytes = part.bytes() * bucket.ways;
  mw::ReductionCost cost;
  cost.held = part.bytes() + bytes;
  cost.start.calls = {{mw::Collective::all_gather, bytes}};
  cost.start.workspace = wide(part, bucket.element == 4 ? 1 : 2);
  cost.start.touched = bucket.element * bucket.own_elements + part.bytes();
  cost.finish.workspace = wide(part, 1);
  cost.finish.touched = bytes + bucket.element * bucket.elements;
  return cost;
}

std::unique_ptr<mw::BucketGather> Int8Hook::make_gather(const mw::BucketShape&,
                                                        at::TensorOptions) const {
  return std::make_unique<Int8Gather>();
}

}  // namespace dp
