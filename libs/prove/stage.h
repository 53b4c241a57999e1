// Follows the program of one stage, instruction by instruction, for the one abstract rank that
// stands for all. A rule for each instruction code says what must hold before it and what holds
// after it.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "prove/mail.h"
#include "prove/state.h"

// A code, a kind of move or an update that has no rule here must not compile.
#pragma GCC diagnostic error "-Wswitch"

namespace mw::proving {

class StageProof {
 public:
  enum class Step : std::uint8_t { moved, blocked, ended };

  StageProof(const Program& program, Gradients& gradients, Mail& mail);

  // Checks parameters, buckets, slots and the timeline before the first instruction. Throws
  // Refused, as step() and check_end() do.
  void check_program();
  // Follows the next instruction, unless it waits for another stage.
  Step step();
  // After the last instruction: nothing of a microbatch may be left, and tensors that last must be
  // as a next step needs them.
  void check_end();
  // Makes the end of this step the beginning of a next one. True if that begins otherwise than the
  // first step did, so that it must be followed too.
  bool turn();
  bool ended() const { return run_ >= program_.timeline.size(); }

  const Program& program() const { return program_; }
  Where here() const { return where_; }
  std::int64_t rules() const { return rules_; }
  // What a blocked instruction waits for, in words.
  const std::string& waits_for() const { return waits_for_; }
  const std::set<Lemma>& lemmas() const { return lemmas_; }
  const std::set<std::string>& notes() const { return notes_; }
  // By the graph's value of a parameter: whether this stage's totals count its gradient.
  const std::map<int, bool>& counted() const { return counted_; }
  // By the term of a loss (Gradients::loss): the microbatches that this stage's totals report.
  const std::map<int, Microbatches>& losses() const { return reported_; }
  Refusal refusal(std::string code, std::string message) const;

 private:
  // A tensor that an instruction reads.
  struct Operand {
    const Content* content = nullptr;
    const Dims* dims = nullptr;
    Dtype dtype = Dtype::fp32;
    Memory memory = Memory::device;
    Where by;
    int tensor = -1;  // index into the pool; -1: the operand is a parameter
  };

  // stage.cpp: reads, writes and releases of the stage's tensors.
  [[noreturn]] void refuse(std::string code, std::string message, int slot = -1,
                           const Where& by = {}) const;
  [[noreturn]] void misplaced(int slot, const Operand& found, const Layout& needed,
                              const std::string& what) const;
  std::string text_of(const Content& content) const;
  const Slot& slot(int index) const { return program_.slots[index]; }
  std::string name(int index) const { return slot(index).name; }
  bool lasting(int index) const { return slot(index).persistent; }
  int one(const Slots& slots, const char* which) const;
  void check_lanes(const SegmentRun& run) const;
  void check_slots(const Instruction& i) const;
  void check_bucket(const Instruction& i) const;
  MicrobatchState& now() { return of(microbatch_); }
  MicrobatchState& of(int microbatch);
  Tensor& tensor(int index) { return pool_[index]; }
  int held(int slot);
  Operand read(int slot);
  Operand parameter(int slot);
  void make(int slot, Content content, const Dims& dims, Dtype dtype);
  void hold(int slot, int tensor);
  void let_go(int tensor);
  void claim(int slot, const Content& content, const Dims& dims, Dtype dtype) const;
  bool matches(const Content& content, int value) const;
  Tensor& overwrite(int slot);
  void release(const Instruction& i);
  void release(int slot);
  bool apply(const Instruction& i);

  // op_rules.cpp: loads, forward, backward.
  void load(const Instruction& i);
  void compute(const Instruction& i);
  void forward(const Instruction& i);
  void backward(const Instruction& i);
  void check_cut(int op);
  std::uint8_t& done(int op);
  void note_lemma(const Instruction& i, Atoms carried);
  Atoms carried(const Instruction& i);
  void need_value(int slot, int value, const Layout& place, int steps, const std::string& what);
  void need_saved(const Instruction& i, const OpTable& table);
  void need_gradients(const Instruction& i, const OpTable& table);
  void write_output(const Instruction& i, std::size_t k, const OpTable& table);
  void write_saved(const Instruction& i, std::size_t k, const OpTable& table);
  void write_gradient(const Instruction& i, std::size_t k, const OpTable& table);
  void add_share(const Instruction& i, std::size_t k, const Content& made);
  // Whether the instruction is one step of several: of a ring, or of slices in time.
  bool in_steps(const Instruction& i) const { return i.parts() > 1; }
  bool in_ring(const Instruction& i) const { return in_steps(i) && !in_slices(i); }
  bool rotates(const Instruction& i, std::size_t input) const;
  // slice_rules.cpp: ops that are computed in slices.
  bool in_slices(const Instruction& i) const { return program_.slicing_of(i) != nullptr; }
  void next_slice(const Instruction& i);
  void check_slice(int slot, const Content& content) const;
  void mark_slice(const Instruction& i, const Dims& dims, Content& content) const;
  void same_target(const Instruction& i, std::size_t k);
  void add_part(const Instruction& i, std::size_t k, Content made);
  // Refuses an operand that is another rank's shard than the ring step computes with.
  void check_ring_shard(const Instruction& i, std::size_t input);
  void ring(const Instruction& i);
  void check_rotating(const Instruction& i);
  void know_rows(const Instruction& i);

  // move_rules.cpp: moves, aliases, additions, copies.
  bool start(const Instruction& i);
  bool wait(const Instruction& i);
  bool between_flats(const Instruction& i) const;
  void take(const Instruction& i, const Operand& found, Underway& under);
  void local_move(const Instruction& i);
  Layout moved(const Move& move, const Operand& from, int slot) const;
  void check_group(const Move& move) const;
  void check_nesting(const Move& move, const Layout& place, Dim dim, int slot) const;
  Layout exchanged(const Instruction& i, const Operand& from);
  std::pair<int, std::vector<std::pair<int, Dim>>> rows_of(int slot) const;
  void post(const Instruction& i);
  bool arrived(const Instruction& i, Underway& under);
  void seed(const Instruction& i);
  void alias(const Instruction& i);
  void add(const Instruction& i);
  void copy(const Instruction& i);

  // flat_rules.cpp: flat tensors of buckets, sums of gradients.
  void make_flats();
  void check_precisions(const FlatSlots& slots) const;
  void place_view(int slot);
  FlatView view(int slot) const { return views_[slot]; }
  Flat& flat(const FlatView& v) { return flats_[v.flat]; }
  bool sharded(const Flat& f) const;
  Flat& open(int slot);
  Flat& there(int slot, bool whole);
  void contribute(Flat& to, Region& region, const Layout& place,
                  const std::vector<int>& contributing, const std::map<int, Microbatches>& sums,
                  int twice);
  void check_contributing(const std::vector<int>& atoms) const;
  void add_gradient(int slot, const Content& content, const std::vector<int>& contributing);
  void begin_sum(const Instruction& i);
  void settle(const Instruction& i);

  // flat_moves.cpp: transfers between flat tensors.
  void check_flat(const Move& move, int from, int to) const;
  void share(const Instruction& i, Underway& under, int bucket);
  void start_flat(const Instruction& i);
  bool end_flat(Underway& under);
  void finish_flat(Underway& under);
  Region reduced(const Region& region, const Move& move, int slot) const;
  void check_same_part(int from, int to) const;
  void copy_flat(const Instruction& i);
  bool same_state(int a, int b) const;
  void add_flat(const Instruction& i);
  void hook_start(const Instruction& i);
  void write(Flat& f, const FlatView& v, std::vector<Region> regions);

  // update_rules.cpp: totals, optimizer update.
  bool totals(const Instruction& i);
  void count_loss(const Instruction& i);
  void count_bucket(const Instruction& i, std::size_t k);
  void need_complete(const Region& region, int parameter, int slot) const;
  void update(const Instruction& i);
  void direction(const Instruction& i, const Bucket& bucket);
  void whole(const Instruction& i);
  void need_direction(int slot, const Operand& found, int value, int steps) const;
  std::vector<int> cut_of(int slot, const Operand& found, const Instruction& i) const;
  void gram(const Instruction& i);
  void gram_step(const Instruction& i, const Bucket& bucket);
  void apply_update(const Instruction& i, const Bucket& bucket);
  void need_sums(const Instruction& i, std::size_t first, int rounds);
  void need_gradients(const Instruction& i, const Bucket& bucket, int to, bool left);
  void sums(const Instruction& i, const Bucket& bucket);
  void advance(int slot, int parameter, Region::Kind kind);
  void check_states(const Instruction& i, const Bucket& bucket);
  void advance_states(const Instruction& i, const Bucket& bucket, int from);
  const Flat& left_gradients(int slot);
  void cast_updated(const Instruction& i);
  void check_versions();
  int bucket_region(const Bucket& bucket, int parameter) const;

  const Program& program_;
  const Graph& graph_;
  Gradients& gradients_;
  Mail& mail_;
  OpTables tables_;
  std::vector<std::uint8_t> checked_;  // by op: its cut was checked
  std::vector<bool> seen_;             // by segment: its operands were checked
  std::vector<Content> parameters_;    // by parameter: its content before the update
  std::vector<int> bucket_of_;         // by parameter: its bucket
  std::vector<FlatView> views_;        // by slot: the part of a flat tensor that it is
  std::vector<std::pair<int, Where>>
      released_;  // by slot: microbatch and place of the last release
  std::vector<Flat> flats_;
  std::deque<Tensor> pool_;
  std::vector<int> free_;
  std::vector<MicrobatchState> microbatches_;  // [0]: the step; [m + 1]: microbatch m
  std::map<std::pair<int, int>, Underway> underway_;

  std::size_t run_ = 0, next_ = 0;
  Where where_;
  int microbatch_ = -1;
  const Instruction* at_ = nullptr;
  bool totalled_ = false;
  bool first_step_ = true;
  int round_ = -1;  // round of the totals that is under way; -1: none
  std::int64_t rules_ = 0;
  std::string waits_for_;
  std::set<Lemma> lemmas_;
  std::vector<std::uint8_t> noted_;  // by op: bits of the pieces that have a lemma
  std::vector<int> numbers_;         // by op: its number among the stage's ops; -1: not met yet
  int ops_ = 0;
  std::set<std::string> notes_;
  std::map<int, bool> counted_;
  std::map<int, Microbatches> reported_;
};

// The name of the axis that is exactly these atoms, or else the atoms' own names: "dp*tp".
std::string list_of(const Mesh& mesh, const std::vector<int>& atoms);
// The atoms of more than one rank on which two layouts differ.
std::vector<AxisDifference> differences(const Mesh& mesh, const Layout& needed,
                                        const Layout& found);
// The single move from `found` to `needed`, "all-reduce over tp"; empty: none does.
std::string mend_of(const Mesh& mesh, const Layout& needed, const Layout& found);
// The instruction, as a line of a program listing.
std::string listed(const Program& program, const Instruction& i);
std::string text_of(const Program& program, const Where& where);

// Refuses each op whose declared constant (StepConstant) "tokens" or "sequences" is not the step's,
// over all microbatches. Notes losses without a constant, as nothing says what they divide by, and
// constants of other names.
void check_constants(const Program& program, Proof& proof);

}  // namespace mw::proving
