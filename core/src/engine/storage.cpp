#include "engine/storage.h"

namespace mw {

Storage::Storage(const Program& program, const Coordinates& at, at::TensorOptions options,
                 const Optimizer& optimizer, Ledger& ledger)
    : parameters_(program.parameters.size()),
      gradients_(program.parameters.size()),
      parameter_of_(program.slots.size(), -1),
      written_(program.parameters.size(), false) {
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    parameter_of_[program.parameters[p].slot] = static_cast<int>(p);
    parameter_of_[program.parameters[p].gradient_slot] = static_cast<int>(p);
  }
  for (const Bucket& bucket : program.buckets) {
    std::vector<std::vector<std::int64_t>> shapes;
    std::int64_t total = 0;
    for (int p : bucket.parameters) {
      shapes.push_back(program.local_shape(program.slots[program.parameters[p].slot], at));
      total += c10::multiply_integers(shapes.back());
    }
    Flat flat;
    {
      Ledger::Scope scope(ledger, Category::parameters);
      flat.parameters = at::empty({total}, options);
    }
    {
      Ledger::Scope scope(ledger, Category::gradients);
      flat.gradients = at::empty({total}, options);
    }
    {
      Ledger::Scope scope(ledger, Category::optimizer);
      flat.state = optimizer.make_state(flat.parameters);
    }
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const int p = bucket.parameters[i];
      const std::int64_t count = c10::multiply_integers(shapes[i]);
      parameters_[p] = flat.parameters.narrow(0, offset, count).view(shapes[i]);
      gradients_[p] = flat.gradients.narrow(0, offset, count).view(shapes[i]);
      offset += count;
    }
    flats_.push_back(std::move(flat));
  }
}

void Storage::settle(const Bucket& bucket) {
  for (int p : bucket.parameters) {
    if (written_[p]) continue;
    gradients_[p].zero_();
    written_[p] = true;
  }
}

}  // namespace mw
