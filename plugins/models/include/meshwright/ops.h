// Makers of the built-in ops. The comment of each names its operands with their dims, as the models
// call them, and the dims that it needs whole, which the caller puts into Op::whole (Builder does).
// All kernels run on any device and on any local part of the iteration space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/op.h"

namespace mw {

using OpTypePtr = std::shared_ptr<const OpType>;

// inputs: tokens (index; any dims), weight (vocab, hidden) -> tokens' dims + hidden.
// Rows outside this rank's part of the vocab give zeros: a cut vocab leaves the output Partial.
OpTypePtr embedding();

// inputs: x (rows..., in...), weight (out..., in...) [, bias (out...), additive] -> (rows...,
// out...). Splits into dgrad and wgrad.
OpTypePtr linear();

// inputs: x (..., hidden), weight (hidden). Needs hidden whole. y = x / rms(x) * weight,
// rms(x)^2 = mean(x^2) + eps [Zhang and Sennrich 2019].
OpTypePtr rms_norm(double eps);

// inputs: x (..., hidden), weight, bias (hidden). Needs hidden whole.
OpTypePtr layer_norm(double eps);

// inputs: x (batch, seq, hidden), positions (seq, index), weight (positions, hidden): learned
// positions. Needs positions whole.
OpTypePtr add_positions();

// The pairs of a head's elements that turn together: i and i + width / 2, as Hugging Face's Llama
// lays them out, or 2 i and 2 i + 1, as the paper [Su et al. 2021] and DeepSeek's checkpoints do.
enum class RopePairs : std::uint8_t { halves, neighbours };
// By how much pair i of a head turns from one position to the next: theta ^ (-2 i / width), or
// `angles`[i] where these are given. Cosines and sines are multiplied by `scale` (YaRN).
struct RopeAngles {
  RopeAngles(double base = 10000, RopePairs which = RopePairs::halves)  // NOLINT: a base says all
      : theta(base), pairs(which) {}
  double theta, scale = 1;
  RopePairs pairs;
  std::vector<double> angles;
};
// inputs: positions (seq, index) -> cos, sin, each (seq, head_dim), such that a head is rotated by
// x * cos + swap(x) * sin, where swap exchanges the two of a pair; sin carries the sign.
// Not differentiable.
OpTypePtr rope_table(const RopeAngles& angles);

// inputs: x (batch, seq, [heads,] head_dim), cos, sin (seq, turned): the last `turned` of head_dim
// (or the `first`) are rotated, the others are left. May run in place. Needs head_dim and turned
// whole.
OpTypePtr rope(RopePairs pairs = RopePairs::halves, bool first = false);

// inputs: q (batch, seq, heads, head_dim), k (batch, keys, kv_heads, head_dim), v (batch, keys,
// kv_heads, width) -> (batch, seq, heads, width). Causal. Needs keys, head_dim and width whole;
// kv_heads follow heads: they are cut alike, or every rank holds all of them and picks those of its
// own queries. A query sees itself and the `window` - 1 tokens before it; 0: all before it [Jiang
// et al. 2023, "Mistral 7B"].
OpTypePtr attention(std::int64_t window = 0);
// What a query of unfused attention sees. `window` as in attention(), of causal attention alone.
// `softcap`: scores s become softcap * tanh(s / softcap) [Gemma Team 2024, "Gemma 2", section
// 2]; 0: none. Without `causal` a query sees every key. `bias`: a further input of any of the
// dims batch, heads, seq and keys, keys in the order of their places, is added to scores.
// `sinks`: another, (heads), is one more score of each query, whose share of the softmax goes
// nowhere [OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2].
struct AttentionLimits {
  std::int64_t window = 0;
  double softcap = 0;
  bool causal = true, bias = false, sinks = false;
  // Whether a token sees its own document alone. The last inputs are then the places of documents
  // (inputs.h: starts) for the queries, and, unless causal, for the keys.
  bool documents = false;
  // Whether documents are parted. The last inputs are then the places of documents for the queries,
  // and the places of queries and of keys (inputs.h: places).
  bool parted = false;
  friend bool operator==(const AttentionLimits&, const AttentionLimits&) = default;
};
// Attention as attention() computes it, by two products with a softmax between them. The softmax
// (batch, heads, seq, keys) is kept for backward. Keys cannot come in ring steps.
OpTypePtr unfused_attention(const AttentionLimits& limits = {});

// inputs: positions (seq, index), or those of another dim -> (seq, keys): how far a key lies before
// a query, as a real number; keys in the order of their places. Needs keys whole. With `buckets`,
// an index below that instead: small distances have one each, larger ones share them on a
// logarithmic scale up to `furthest`; unless `causal`, the upper half is of keys after the query
// [Raffel et al. 2019, "T5", section 2.1]. Not differentiable.
struct DistanceBuckets {
  std::int64_t buckets = 0, furthest = 128;
  bool causal = true;
  friend bool operator==(const DistanceBuckets&, const DistanceBuckets&) = default;
};
OpTypePtr distance(const DistanceBuckets& options = {});

// inputs: x -> its softmax over `over`. Needs that dim whole.
OpTypePtr softmax(Dim over);
// inputs: x -> the largest over the dims that the output lacks. Needs these whole.
OpTypePtr largest();

// Latent attention [DeepSeek-AI 2024, "DeepSeek-V2", section 2.1].
// inputs: x (..., first + second, …) -> (..., first, …), (..., second, …). Needs all three whole.
OpTypePtr split();
// inputs: kv (batch, seq, heads, plain + value), turned (batch, seq, turned) -> k (batch, seq,
// heads, plain + turned), of which the second part is the same in every head; v (batch, seq, heads,
// value). Needs all widths whole.
OpTypePtr latent_keys();

// inputs: gate, up [, weights (gate's first dims)] -> silu(gate) * up [* weights].
OpTypePtr swiglu();

// GELU in the tanh form [Hendrycks and Gimpel 2016], as GPT-2 has it.
OpTypePtr gelu();

// inputs: the operands a, b, … of the expression `f`, such as "a * silu(b) + 1" -> f of each
// element, in the dims of all operands. An operand that lacks a dim is the same along it. Backward
// reads the operands that the derivatives mention, and the gradients are such expressions too.
OpTypePtr map(const std::string& f);
// Whether an expression of a alone is a multiple of a, as it is written: "-a * 2 / 3 + a".
bool is_linear_map(const std::string& f);

// inputs: x (linear) -> the sum over the dims that the output lacks. A cut dim leaves it Partial.
OpTypePtr sum();
// inputs: a (..., first, …), b (..., second, …) -> (..., into, …): a, then b. One of the two may
// lack other dims of the output, and is the same along them. Needs first, second and into whole.
OpTypePtr concat(Dim into);
// inputs: x (batch, from, …; linear), indices (batch, to…) -> (batch, to…, …): the rows of x that
// the indices name. Needs from whole.
OpTypePtr gather();
// inputs: rows (batch, from…, …; linear), indices (batch, from…) -> (batch, to, …): each row added
// at the place along `to` that its index names, zeros elsewhere. Needs from and to whole.
OpTypePtr scatter();
// inputs: x (…, of, …) -> (…, to, …): of each group of of / to neighbours the mean (linear), or the
// largest. Needs of and to whole.
OpTypePtr pool(bool max);
// inputs: x (linear) -> its elements; dim i of the output is dim order[i] of x. A dim that has
// another name there is to be whole in both.
OpTypePtr permuted(const std::vector<std::int64_t>& order);

// inputs: stream, branch -> their sum, in place of the branch if nobody reads that later.
OpTypePtr add();

// Cross-entropy over a vocab that may be cut, in three ops with a reduction after each:
//   ce_max    logits (..., vocab) -> max (...); contraction max, not differentiable
//   ce_stats  logits, max, labels (index) -> (stat, ...): sum of exp(logit - max); the label's
//             logit less the max where this rank holds the label, else 0
//   ce_loss   stats -> (): the sum over tokens of log(first) - second, over `count`, times
//             `weight`. Needs stat whole. `of_step`: the step's constant that `count` is, "tokens"
//             or "sequences"; empty: another number. `divisor`: of its masked form, which is
//             stats, divisors -> (): the labels are those of the data
OpTypePtr ce_max();
OpTypePtr ce_stats();
OpTypePtr ce_loss(std::int64_t count, double weight = 1, const char* of_step = "tokens",
                  const std::optional<LossDivisor>& divisor = std::nullopt);

// inputs: labels (batch, seq; index) -> those of the tokens `by` further on; the last ones have the
// sequence's last label. Needs seq whole.
OpTypePtr shift(std::int64_t by);
// inputs: stats (ce_stats) -> the same, but the last `count` tokens of a sequence have no loss.
// Needs stat whole.
OpTypePtr without_last(std::int64_t count);

// Experts. The tokens that chose an expert are rows of a sparse tensor (Sparse), (experts, batch,
// seq; ...), in which each token has `top` rows.

enum class RouterScore : std::uint8_t { softmax, sigmoid };
struct RouterOptions {
  RouterScore score = RouterScore::softmax;
  bool normalise = true;  // a token's weights sum to `scale`
  double scale = 1;
  // Experts stand in `groups` equal groups, and a token chooses within `group_top` of them.
  std::int64_t groups = 1, group_top = 1;
  // Above 0, experts choose (admit), and each takes so many tokens of a sequence.
  std::int64_t experts_take = 0;
  friend bool operator==(const RouterOptions&, const RouterOptions&) = default;
};
// inputs: logits (batch, seq, scores), bias (scores; it counts: Value::counts) -> weights (batch,
// seq, top), picks (index; batch, seq, top). The experts with the highest affinity + bias are
// chosen, and weighed by affinity alone [Shazeer et al. 2017; DeepSeek-AI 2024, "DeepSeek-V3",
// equations 12 to 16]. A token's groups are those with the highest sum of their two highest experts
// [DeepSeek-V3, section 2.1.2], or, by softmax, with the highest expert [DeepSeek-V2, section
// 2.2.2]. The bias's gradient is the number of tokens that chose each expert. Needs scores and top
// whole.
OpTypePtr route(const RouterOptions& options);
// inputs: picks (batch, seq, top) [, weights (batch, seq, top)] -> picks with -1 for an expert's
// choices beyond `capacity` in a sequence; with weights, all but those with the largest ones.
// Needs seq and top whole. Tokens of earlier positions come first, whatever order the tokens lie
// in.
OpTypePtr admit(std::int64_t capacity, std::int64_t experts);
// inputs: logits, picks -> (load, batch, scores): for each sequence and expert the number of
// choices and the sum of normalised affinities.
OpTypePtr balance_stats(RouterScore score);
// inputs: stats -> (): the sum over sequences and experts of choices x affinities, times `factor`
// [Fedus et al. 2022, "Switch Transformer", equation 4, of each sequence], divided by `sequences`,
// the number of sequences in a step; 0: not divided.
OpTypePtr balance_loss(double factor, std::int64_t sequences = 0);
// inputs: logits -> (): the sum over tokens of logsumexp(logits)^2, times `factor` [Zoph et al.
// 2022, "ST-MoE", equation 5], divided by `tokens`, the number of tokens in a step; 0: not divided.
OpTypePtr z_loss(double factor, std::int64_t tokens = 0);
// inputs: x (batch, seq, hidden), picks -> rows (experts, batch, seq; hidden), ordered by expert,
// then by token; and the place of each row's choice in picks (index; experts, batch, seq).
OpTypePtr dispatch();
// inputs: weights (batch, seq, top), places (from dispatch) -> the weight of each row. Its kind is
// "dispatch" too, as it is to be cut as dispatch is. Needs top whole.
OpTypePtr dispatch_weights();
// inputs: rows (linear), places -> (batch, seq, hidden): the sum of each token's rows, where picks
// have `top` places of a token. The rows are weighed before the experts' last linear: W (w x) is w
// (W x), and so the sum keeps no output of an expert for backward (as Megatron-Core's
// weighted_bias_swiglu_impl).
OpTypePtr combine(std::int64_t top);
// inputs: rows (experts, batch, seq; in), weight (experts, out, in) -> rows of `out`.
// Splits into dgrad and wgrad.
OpTypePtr expert_linear();
// inputs: rows (experts, batch, seq; out; linear), bias (experts, out; additive) [, weights
// (experts, batch, seq)] -> rows plus the bias of each row's expert, times the row's weight. May
// run in place.
OpTypePtr expert_bias();

}  // namespace mw
