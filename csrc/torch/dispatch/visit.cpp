#include "torch/dispatch/visit.h"

#include "torch/dispatch/arguments.h"
#include "torch/dispatch/tags.h"
#include "torch/session/session.h"

namespace remint {
namespace {

// Calls visit(tensor, storage, written) for every tensor among the arguments that has bytes.
template <typename Visit>
void for_arguments(const Operator& op, const torch::jit::Stack& stack, Visit&& visit) {
  const std::size_t first = stack.size() - op.writes.size();
  for (std::size_t a = 0; a < op.writes.size(); ++a) {
    const int place = static_cast<int>(a);
    const bool statistics = op.statistics >= 0 && (place == op.statistics || place == op.statistics + 1);
    const bool written = op.writes[a] != Operator::Write::kNo || statistics;
    for_tensors(stack[first + a], [&](const at::Tensor& tensor, std::int32_t) {
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage != nullptr && storage->nbytes() > 0) visit(tensor, storage, written);
    });
  }
}

// Whether the memory may be a budget's. The deleter of a budget's storage does not change while its budget is
// open.
bool may_be_in_arena(c10::StorageImpl* storage) {
  const c10::DeleterFnPtr deleter = storage->_mutable_data_ptr_no_checks().get_deleter();
  return deleter == &owned_deleter || deleter == &raw_deleter;
}

}  // namespace

Visit::~Visit() {
  for (const Locked& locked : locked_) locked.session->unlock_for_read(locked.value);
}

void Visit::read(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  for (const std::shared_ptr<Session>& session : Regions::open_sessions()) {
    if (read_in(session, storage)) return;
  }
}

bool Visit::read_in(const std::shared_ptr<Session>& session, c10::StorageImpl* storage) {
  const ValueId value = session->lock_for_read(storage);
  if (value == kNone) return false;
  locked_.push_back({session, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), value});
  return true;
}

void Visit::write(c10::StorageImpl* storage, const Session* except) {
  // Its own session pins it; others may have recipes that read it.
  for (const std::shared_ptr<Session>& session : Regions::open_sessions()) {
    if (session.get() == except) continue;
    session->before_write(storage);
    session->pin(storage, PinReason::kAddressKnown);
  }
}

void Visit::use(const Operator& op, const torch::jit::Stack& stack) {
  const bool none_open = Regions::num_open_sessions() == 0;
  for_arguments(op, stack, [&](const at::Tensor& tensor, c10::StorageImpl* storage, bool written) {
    if (!is_tagged(tensor)) return;
    if (none_open) {
      // It outlived its budget: from now on its calls are not seen.
      untag(tensor);
    } else if (written) {
      write(storage, nullptr);
    } else if (!op.view) {
      // Whose it is, only the sessions can say, under their locks: eviction changes the DataPtr meanwhile.
      read(tensor);
    }
  });
}

void Visit::keep(const Operator& op, const torch::jit::Stack& stack, const Session* own) {
  for_arguments(op, stack, [&](const at::Tensor& tensor, c10::StorageImpl* storage, bool written) {
    if (!is_tagged(tensor)) return;
    const bool own_memory = own->contains(storage->_mutable_data_ptr_no_checks().get());
    if (written) {
      if (!own_memory || Regions::num_shared_reads() > 0) write(storage, own);
    } else if (!own_memory && may_be_in_arena(storage)) {
      for (const std::shared_ptr<Session>& session : Regions::open_sessions()) {
        if (session.get() == own) continue;
        if (session->is_partner(*own)) {
          if (read_in(session, storage)) break;
        } else if (session->pin(storage, PinReason::kAddressKnown)) {
          ++Regions::num_shared_reads();
          break;
        }
      }
    }
  });
}

void Visit::use_by_address(const Operator& op, const torch::jit::Stack& stack) {
  for_arguments(op, stack, [&](const at::Tensor& tensor, c10::StorageImpl* storage, bool written) {
    switch (op.by_address) {
      case Operator::ByAddress::kNothing:
      case Operator::ByAddress::kIntegers:
        break;
      case Operator::ByAddress::kAll:
        if (written) {
          write(storage, nullptr);
        } else {
          read(tensor);
        }
        break;
      case Operator::ByAddress::kWrites:
        write(storage, nullptr);
        break;
      case Operator::ByAddress::kKeeps:
        for (const std::shared_ptr<Session>& session : Regions::open_sessions()) {
          if (session->pin(storage, PinReason::kAddressKnown)) break;
        }
        break;
    }
  });
}

}  // namespace remint
