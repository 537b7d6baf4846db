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

// Whose memory a storage has, as far as that can be seen without waiting for the lock of another budget,
// which is held while its kernels run.
enum class Whose { kOwn, kOfSomeBudget, kOrdinary };

// Another thread may evict the storage meanwhile, which writes its DataPtr: this is a race on purpose, and
// tests/tsan_suppressions.txt names it. Whatever is read, the answer is good: the deleter is the same before
// and after, and an address in the arena of `own` is only ever that of its own storage. If its own storage is
// taken for one of some budget, the other budgets say that they do not know it.
__attribute__((noinline)) Whose memory_seen_without_lock(c10::StorageImpl* storage, const Session* own) {
  const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  if (own->contains(pointer.get())) return Whose::kOwn;
  const c10::DeleterFnPtr deleter = pointer.get_deleter();
  return deleter == &owned_deleter || deleter == &raw_deleter ? Whose::kOfSomeBudget : Whose::kOrdinary;
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
    const Whose memory = memory_seen_without_lock(storage, own);
    if (written) {
      if (memory != Whose::kOwn || Regions::num_shared_reads() > 0) write(storage, own);
    } else if (memory == Whose::kOfSomeBudget) {
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
