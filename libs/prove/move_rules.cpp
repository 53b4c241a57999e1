// The rules for moves (local moves, collectives, exchanges of rows, messages between stages,
// shifts) and for instructions that pass tensors on (seeds, aliases, additions, copies).
#include <fmt/format.h>

#include <algorithm>

#include "prove/stage.h"

namespace mw::proving {

// A move must name its atoms in the mesh's order, each once, and include ranks of other stages only
// where these take part.
void StageProof::check_group(const Move& move) const {
  if (move.atoms.empty()) refuse("prove.group", "a move names no ranks");
  for (std::size_t k = 1; k < move.atoms.size(); ++k) {
    if (move.atoms[k] <= move.atoms[k - 1])
      refuse("prove.group", "the ranks of a move are not named in the mesh's order");
  }
  const bool stages = std::count(move.atoms.begin(), move.atoms.end(), program_.stage_atom) > 0;
  if (stages && move.stages.empty() && program_.stages > 1)
    refuse("prove.stages", fmt::format("the {} over {} has ranks of other stages, and these stages "
                                       "do not take part",
                                       name_of(move.kind), list_of(program_.mesh, move.atoms)));
}

// An atom may begin or cease to cut a dim only while no atom inside it cuts that dim.
void StageProof::check_nesting(const Move& move, const Layout& place, Dim dim, int slot) const {
  for (const int outer : move.atoms) {
    if (!tables_.lives(outer)) continue;
    for (int inner = outer + 1; inner < static_cast<int>(place.size()); ++inner) {
      const bool moves = std::count(move.atoms.begin(), move.atoms.end(), inner) > 0;
      if (moves || !tables_.lives(inner) || place[inner] != Placement::shard(dim)) continue;
      refuse("prove.nesting",
             fmt::format(
                 "the {} over {} changes the split of {} in {}, while the inner {} splits it too",
                 name_of(move.kind), list_of(program_.mesh, move.atoms), dim.name(), name(slot),
                 program_.mesh.atoms()[inner].name),
             slot);
    }
  }
}

// The layout that a move between Shard, Partial and Replicate leads to.
Layout StageProof::moved(const Move& move, const Operand& from, int slot) const {
  check_group(move);
  Placement needed, made;
  switch (move.kind) {
    case Move::Kind::all_reduce:
      needed = Placement::partial(move.reduction);
      break;
    case Move::Kind::reduce_scatter:
      needed = Placement::partial(move.reduction);
      made = Placement::shard(move.to);
      break;
    case Move::Kind::all_gather:
      needed = Placement::shard(move.from);
      break;
    case Move::Kind::all_to_all:
      needed = Placement::shard(move.from);
      made = Placement::shard(move.to);
      break;
    case Move::Kind::slice:
      made = Placement::shard(move.to);
      break;
    case Move::Kind::keep:
      if (move.reduction != Reduction::sum)
        refuse("prove.place",
               "the zeros that a keep leaves on other ranks are no part of a maximum");
      made = Placement::partial(move.reduction);
      break;
    case Move::Kind::send:
    case Move::Kind::recv:
    case Move::Kind::shift:
      refuse("prove.operands", "a message changes no place");
  }
  const Layout& place = from.content->place;
  Layout wanted = place, next = place;
  for (const int atom : move.atoms) {
    if (!tables_.lives(atom)) continue;
    wanted[atom] = needed;
    next[atom] = made;
  }
  if (place != wanted)
    misplaced(slot, from, wanted,
              fmt::format("what the {} over {} takes", name_of(move.kind),
                          list_of(program_.mesh, move.atoms)));
  for (const Dim dim : {needed.dim, made.dim}) {
    if (!dim.valid()) continue;
    if (!contains(*from.dims, dim))
      refuse("prove.layout", fmt::format("{} has no dim {}", name(slot), dim.name()), slot);
    if (graph_.sparse.has(*from.dims) && contains(graph_.sparse.dims, dim))
      refuse("prove.rows",
             fmt::format("{} is kept as rows, which only an exchange moves", name(slot)), slot);
    check_nesting(move, place, dim, slot);
  }
  if (from.content->what == ContentKind::saved || from.content->what == ContentKind::nothing)
    refuse("prove.value",
           fmt::format("{} is {}, whose layout its op decides", name(slot), text_of(*from.content)),
           slot, from.by);
  return next;
}

void StageProof::local_move(const Instruction& i) {
  if (communicates(i.move.kind))
    refuse("prove.operands", fmt::format("the {} is no local move", name_of(i.move.kind)));
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  const Operand found = read(from);
  if (found.memory != Memory::device)
    refuse("prove.memory", name(from) + " lies in host memory", from, found.by);
  Content made = *found.content;
  made.place = moved(i.move, found, from);
  make(to, std::move(made), Dims(*found.dims), found.dtype);
}

// Identifies the rows of a sparse slot: the layer that makes them, and the atoms that cut them.
std::pair<int, std::vector<std::pair<int, Dim>>> StageProof::rows_of(int index) const {
  const Slot& s = slot(index);
  const int producer = graph_.value(s.value).producer;
  std::pair<int, std::vector<std::pair<int, Dim>>> rows;
  rows.first = producer < 0 ? -1 : graph_.ops()[producer].layer;
  for (std::size_t a = 0; a < s.layout.size(); ++a) {
    if (tables_.lives(static_cast<int>(a)) && s.layout[a].is_shard() &&
        contains(graph_.sparse.dims, s.layout[a].dim))
      rows.second.emplace_back(static_cast<int>(a), s.layout[a].dim);
  }
  return rows;
}

// The layout that an exchange of rows leads to: from the ranks that hold tokens to those that hold
// the rows' groups, or back.
Layout StageProof::exchanged(const Instruction& i, const Operand& from) {
  const Move& move = i.move;
  const int source = i.inputs[0], target = i.outputs[0];
  check_group(move);
  if (!graph_.sparse.has(*from.dims) || slot(source).value < 0 || slot(target).value < 0)
    refuse("prove.rows", name(source) + " is not kept as rows", source, from.by);
  // Indices of rows refer to the rank's own tokens, and another rank has other tokens.
  const Content& rows = *from.content;
  if (rows.what == ContentKind::value && graph_.value(rows.id).scalar == Scalar::index)
    refuse("prove.rows", name(source) + " holds indices, which mean nothing on another rank",
           source, from.by);
  const Dim group = graph_.sparse.dims.front();
  const bool out = move.to == group;
  Layout next = from.content->place;
  for (const int atom : move.atoms) {
    if (!tables_.lives(atom)) continue;
    const Placement &now = from.content->place[atom], &then = move.lands.at(atom);
    const Placement& tokens = out ? now : then;
    const bool right = now.is_shard() && then.is_shard() && (out ? then : now).dim == group &&
                       tokens.dim != group && contains(graph_.sparse.dims, tokens.dim);
    if (!right)
      refuse("prove.rows",
             fmt::format("rows of {} cannot go from {} to {} over {}", name(source), to_string(now),
                         to_string(then), program_.mesh.atoms()[atom].name),
             source, from.by);
    next[atom] = then;
  }
  for (std::size_t a = 0; a < next.size(); ++a) {
    if (tables_.lives(static_cast<int>(a)) && next[a] != move.lands.at(a))
      refuse("prove.rows",
             fmt::format("rows of {} are to land {}, and go {}", name(source),
                         to_string(move.lands, program_.mesh), to_string(next, program_.mesh)),
             source, from.by);
  }
  check_nesting(move, out ? next : from.content->place, group, source);
  auto& known = now().rows;
  const auto before = rows_of(source), after = rows_of(target);
  if (before.first != after.first)
    refuse("prove.rows",
           fmt::format("rows of {} go to {}, whose rows are another layer's", name(source),
                       name(target)),
           source, from.by);
  if (known.count(before) == 0)
    refuse("prove.rows", "how many rows " + name(source) + " has is not known here", source,
           from.by);
  if (out && move.brings_counts) known.insert(after);
  if (known.count(after) == 0)
    refuse("prove.rows",
           fmt::format("rows of {} are exchanged before the exchange that brings "
                       "their counts",
                       name(source)),
           source, from.by);
  return next;
}

// Whether a transfer goes from one persistent slot to another, and so belongs to the step.
bool StageProof::between_flats(const Instruction& i) const {
  return !i.inputs.empty() && !i.outputs.empty() && i.inputs[0] >= 0 && i.outputs[0] >= 0 &&
         lasting(i.inputs[0]) && lasting(i.outputs[0]);
}

bool StageProof::start(const Instruction& i) {
  if (!communicates(i.move.kind))
    refuse("prove.operands",
           fmt::format("the {} is a local move, and is not begun", name_of(i.move.kind)));
  const bool receives = i.move.kind == Move::Kind::recv;
  const int first = receives ? one(i.outputs, "output") : one(i.inputs, "input");
  const bool of_step = between_flats(i);
  const std::pair<int, int> key{i.pending, of_step ? -1 : microbatch_};
  if (i.pending < 0) refuse("prove.operands", "it has no number to be awaited by");
  if (underway_.count(key) > 0)
    refuse("prove.unawaited", "it begins again a transfer that is still under way, begun by " +
                                  proving::text_of(program_, underway_.at(key).by));
  if (of_step) {
    start_flat(i);
    return true;
  }
  if (i.move.kind == Move::Kind::send || receives) {
    post(i);
    return true;
  }
  const int to = one(i.outputs, "output");
  const Operand found = read(first);
  if (lasting(to)) refuse("prove.slot", name(to) + " lasts, and a microbatch is moved there", to);
  if (found.memory != Memory::device)
    refuse("prove.memory", name(first) + " lies in host memory", first, found.by);
  if (!i.move.stages.empty()) refuse("prove.stages", "stages share no tensor of a microbatch");
  Underway under;
  under.by = where_;
  under.kind = i.move.kind;
  under.result = *found.content;
  under.dims = *found.dims;
  under.dtype = found.dtype;
  if (i.move.kind == Move::Kind::shift) {
    check_group(i.move);
    const int ways = program_.mesh.ways(i.move.atoms);
    under.result.shift = (under.result.shift + 1) % ways;
    if (under.result.shift == 0 && under.result.steps == ways) under.result.steps = 0;
  } else if (i.move.exchanges_rows()) {
    if (i.move.kind != Move::Kind::all_to_all)
      refuse("prove.rows", "rows are exchanged by an all-to-all");
    under.result.place = exchanged(i, found);
  } else {
    under.result.place = moved(i.move, found, first);
  }
  claim(to, under.result, under.dims, under.dtype);
  under.slot = to;
  take(i, found, under);
  underway_.emplace(key, std::move(under));
  return true;
}

// Marks the source of a transfer as read, or, for an all-reduce whose result shares its storage, as
// written.
void StageProof::take(const Instruction& i, const Operand& found, Underway& under) {
  const int from = i.inputs[0];
  const bool in_place = i.move.kind == Move::Kind::all_reduce && slot(i.outputs[0]).alias_of >= 0;
  if (found.tensor < 0) {
    if (in_place) refuse("prove.in-place", name(from) + " lasts, and is overwritten", from);
    under.reads = view(from).flat;
    ++flats_[under.reads].readers;
    return;
  }
  Tensor& t = in_place ? overwrite(from) : tensor(found.tensor);
  under.from = found.tensor;
  ++t.holders;
  if (!in_place) {
    ++t.readers;
    return;
  }
  t.writing = true;
  t.by = where_;
  under.to = found.tensor;
}

// Starts a send to another stage, or a receive from one.
void StageProof::post(const Instruction& i) {
  const bool sends = i.move.kind == Move::Kind::send;
  if (i.move.atoms.size() != 1 || i.move.atoms[0] != program_.stage_atom || i.move.peer < 0 ||
      i.move.peer >= program_.stages || i.move.peer == program_.stage)
    refuse("prove.stages", fmt::format("it is for stage {} over {}", i.move.peer,
                                       list_of(program_.mesh, i.move.atoms)));
  const int from = sends ? program_.stage : i.move.peer, to = sends ? i.move.peer : program_.stage;
  const Mail::Key mail{from, to, i.move.tag, microbatch_};
  Mail::Letter& letter = mail_.letters[mail];
  Underway under;
  under.by = where_;
  under.kind = i.move.kind;
  under.slot = sends ? i.inputs[0] : i.outputs[0];
  if (sends) {
    if (letter.sent)
      refuse("prove.message", fmt::format("message {} to stage {} is sent twice for microbatch {}",
                                          i.move.tag, to, microbatch_));
    const int slot = i.inputs[0];
    const Operand found = read(slot);
    if (found.tensor < 0) refuse("prove.slot", name(slot) + " lasts, and is sent", slot);
    if (found.memory != Memory::device)
      refuse("prove.memory", name(slot) + " lies in host memory", slot, found.by);
    if (found.content->shift != 0 || found.content->steps != 0)
      refuse("prove.value", name(slot) + " is " + text_of(*found.content), slot, found.by);
    Post post;
    post.by = where_;
    post.content = *found.content;
    post.dims = *found.dims;
    post.dtype = found.dtype;
    letter.sent = std::move(post);
    under.from = found.tensor;
    ++tensor(found.tensor).holders;
    ++tensor(found.tensor).readers;
  } else {
    if (letter.expected)
      refuse("prove.message",
             fmt::format("message {} of stage {} is received twice for microbatch {}", i.move.tag,
                         from, microbatch_));
    letter.expected = where_;
  }
  (sends ? letter.sent_as : letter.expected_as) =
      (sends ? mail_.sent : mail_.expected)[{from, to}]++;
  if (!letter.in_order())
    refuse("prove.order",
           fmt::format(
               "message {} for microbatch {} is number {} of those that stage {} sends to "
               "stage {}, and number {} of those that stage {} receives from it: GPUs match "
               "messages by these numbers",
               i.move.tag, microbatch_, letter.sent_as + 1, from, to, letter.expected_as + 1, to));
  mail_.begin(program_.stage, {mail, {}, -1});
  underway_.emplace(std::pair{i.pending, microbatch_}, std::move(under));
}

// Whether a send or receive between stages is over.
bool StageProof::arrived(const Instruction& i, Underway& under) {
  const bool sends = under.kind == Move::Kind::send;
  const int from = sends ? program_.stage : i.move.peer, to = sends ? i.move.peer : program_.stage;
  const auto found = mail_.letters.find({from, to, i.move.tag, microbatch_});
  if (found == mail_.letters.end())
    refuse("prove.wait", "it waits for another message than was begun under its number");
  Mail::Letter& letter = found->second;
  if ((sends ? !letter.expected : !letter.sent) || !mail_.is_over({found->first, {}, -1})) {
    waits_for_ = sends ? fmt::format("stage {} to receive it", to)
                       : fmt::format("stage {}'s send of message {} for microbatch {}", from,
                                     i.move.tag, microbatch_);
    return false;
  }
  if (!sends) {
    under.result = letter.sent->content;
    under.dims = letter.sent->dims;
    under.dtype = letter.sent->dtype;
  }
  if (letter.taken) {
    mail_.letters.erase(found);
  } else {
    letter.taken = true;
  }
  return true;
}

bool StageProof::wait(const Instruction& i) {
  const int first = i.outputs.empty() ? one(i.inputs, "input") : one(i.outputs, "output");
  const std::pair<int, int> key{i.pending, between_flats(i) ? -1 : microbatch_};
  const auto found = underway_.find(key);
  const bool hook = i.code == Code::hook_finish;
  if (found == underway_.end() || found->second.hook != hook) {
    if (i.again && lasting(first) && view(first).flat >= 0 && flat(view(first)).there) return true;
    refuse(
        "prove.wait",
        fmt::format("it waits for transfer {} of {}, which was not begun", i.pending, name(first)),
        first);
  }
  Underway& under = found->second;
  // The slot of the start decides the size of what arrives, so the wait must name it too.
  if (under.slot != first)
    refuse("prove.wait",
           fmt::format("it waits for {} in {}, and the transfer was begun for {}", i.pending,
                       name(first), name(under.slot)),
           first, under.by);
  if (under.may_be_over && !i.again)
    refuse(
        "prove.wait",
        fmt::format("it must be marked `again`: a reader of the parameters between two steps may "
                    "already have waited for {}",
                    name(first)),
        first, under.by);
  if (under.flat) {
    if (!end_flat(under)) return false;
    Flat& made = flat(under.view);
    if (hook && i.serves == Serves::gradients && sharded(made)) {
      for (Region& region : made.regions)
        region.rest_differs = true;  // a hook owes the shard alone
    }
  } else {
    if ((under.kind == Move::Kind::send || under.kind == Move::Kind::recv) && !arrived(i, under))
      return false;
    if (under.reads >= 0) --flats_[under.reads].readers;
    if (under.from >= 0) {
      Tensor& t = tensor(under.from);
      if (under.to == under.from) {
        t.writing = false;
        t.content = under.result;
        t.by = under.by;
      } else {
        --t.readers;
      }
    }
    if (under.kind != Move::Kind::send) {
      const int to = one(i.outputs, "output");
      if (under.to >= 0) {
        claim(to, under.result, under.dims, under.dtype);
        hold(to, under.to);
      } else {
        make(to, under.result, under.dims, under.dtype);
        tensor(held(to)).by = under.by;
      }
    }
    if (under.from >= 0) let_go(under.from);
  }
  underway_.erase(found);
  return true;
}

void StageProof::seed(const Instruction& i) {
  Content made;
  made.what = ContentKind::gradient;
  made.microbatch = microbatch_;
  made.terms = gradients_.sets.single(gradients_.seed());
  made.place = Layout(program_.mesh.atoms().size());
  const int to = one(i.outputs, "output");
  if (microbatch_ < 0) refuse("prove.microbatch", "a seed is of no microbatch", to);
  make(to, std::move(made), {}, slot(to).dtype);
}

void StageProof::alias(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (i.parameter < 0) {
    const Operand found = read(from);
    if (found.tensor < 0) refuse("prove.slot", name(from) + " lasts, and gets another name", from);
    claim(to, *found.content, *found.dims, found.dtype);
    return hold(to, found.tensor);
  }
  const Flat& f = there(from, true);
  const int region = bucket_region(program_.buckets[f.bucket], i.parameter);
  if (f.regions[region].kind != Region::Kind::direction)
    refuse("prove.value", fmt::format("{} holds no directions", name(from)), from, f.by);
  const ProgramParameter& parameter = program_.parameters[i.parameter];
  Content made;
  made.what = ContentKind::direction;
  made.id = parameter.value;
  made.place = parameters_[i.parameter].place;
  make(to, std::move(made), graph_.value(parameter.value).dims, slot(from).dtype);
}

void StageProof::add(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  static const std::vector<int> all;
  const std::vector<int>& contributing = i.contributing.empty() ? all : i.contributing[0];
  if (lasting(to) && lasting(from)) return add_flat(i);
  const Operand found = read(from);
  const Content& more = *found.content;
  if (found.memory != Memory::device)
    refuse("prove.memory", name(from) + " lies in host memory", from, found.by);
  if (to == program_.loss) return count_loss(i);
  if (more.what != ContentKind::gradient)
    refuse("prove.add",
           fmt::format("{} is {}, which is no gradient to be added", name(from), text_of(more)),
           from, found.by);
  if (!more.parts.empty())
    refuse("prove.slice", fmt::format("{} is {}, and is added", name(from), text_of(more)), from,
           found.by);
  if (lasting(to)) return add_gradient(to, more, contributing);
  if (!contributing.empty())
    refuse("prove.add", "only some ranks add to " + name(to) + ", which is of a microbatch", to);
  Tensor& t = overwrite(to);
  const Content& sum = t.content;
  // Whether both are shares of one gradient, from different steps of a ring.
  const bool shares =
      sum.steps > 0 && more.steps > 0 && sum.shift == more.shift && sum.terms == more.terms;
  if (sum.slices != more.slices || sum.slice != more.slice || !sum.parts.empty())
    refuse("prove.slice",
           fmt::format("{} is {}, to which {} is added", name(to), text_of(sum), text_of(more)), to,
           t.by);
  if (sum.what != ContentKind::gradient || sum.microbatch != more.microbatch ||
      t.dims != *found.dims ||
      (!shares && (sum.steps != 0 || more.steps != 0 || sum.shift != more.shift)))
    refuse("prove.add",
           fmt::format("{} is {}, to which {} is added", name(to), text_of(sum), text_of(more)), to,
           t.by);
  if (sum.place != more.place) misplaced(from, found, sum.place, "what is added to " + name(to));
  if (shares) {
    t.content.steps += more.steps;
  } else {
    t.content.terms = gradients_.sets.join(sum.terms, more.terms);
  }
  t.by = where_;
}

void StageProof::copy(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (lasting(to)) {
    if (!lasting(from))
      refuse("prove.slot", name(to) + " lasts, and a microbatch is copied there", to);
    return copy_flat(i);
  }
  const Operand found = read(from);
  const Dtype dtype = slot(to).dtype;
  if (dtype != found.dtype &&
      (dtype == Dtype::int64 || found.dtype == Dtype::int64 || slot(to).memory != found.memory))
    refuse("prove.dtype",
           fmt::format("{} in {} cannot be copied to {} in {}", name(from), name_of(found.dtype),
                       name(to), name_of(dtype)),
           to, found.by);
  const Content content = *found.content;
  const Dims dims = *found.dims;
  const std::int64_t extra = slot(from).extra;
  if (slot(to).extra != extra)
    refuse("prove.layout", name(to) + " has another size at its end", to);
  make(to, content, dims, dtype);
}

}  // namespace mw::proving
