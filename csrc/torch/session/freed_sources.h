// Bytes that the program frees though recipes read them, and that it will write again: FSDP frees the
// parameters of a block after its forward (`storage.resize_(0)`), and gathers them again into the same
// storage for its backward.
//
// While memory lasts they stay. When it is short they go, and recipes that read them wait for the next
// gathering. That it brought the same bytes is checked by a digest. Where it did so once, the bytes of that
// storage are from then on the first that go.
#pragma once

#include <c10/core/StorageImpl.h>

#include <unordered_map>

#include "torch/backends/digest.h"
#include "torch/session/state.h"

namespace remint {

class FreedSources {
 public:
  explicit FreedSources(SessionState& state) : state_(state) {}

  // The program is about to free the bytes of `owned`, which are resident. Whether it will have them again.
  DueBack before_free(const OwnedStorage& owned);
  bool any() const { return !freed_.empty(); }
  // Whether the tensor of that number was made before bytes were freed last.
  bool is_older(std::uint64_t number) const { return number < freed_at_; }
  // The bytes are about to be dropped.
  void note_bytes(StorageId id);
  // The value in which the program should have them again; kNone if it has none.
  ValueId came_back(StorageId id);
  bool has_bytes_of(ValueId value, StorageId id);
  // The record of a storage is gone.
  void forget(StorageId id) {
    if (!freed_.empty()) freed_.erase(id);
  }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Freed {
    WeakStorage storage;
    Digest digest{};
  };

  SessionState& state_;
  std::unordered_map<StorageId, Freed> freed_;
  // Storages that got the same bytes again. A weak reference keeps the address from being given to another
  // one.
  std::unordered_map<const c10::StorageImpl*, WeakStorage> came_back_;
  std::uint64_t freed_at_ = 0;
};

}  // namespace remint
