// An allocator that asks budgets first, and the device's own allocator after that. `Base` is the class that
// PyTorch wants the allocator of the device to be; `device` says which device is asked for memory now.
#pragma once

#include <c10/core/Allocator.h>

#include <utility>

#include "torch/backends/backend.h"

namespace remint {

template <typename Base, c10::Device (*device)()>
class BudgetAllocator : public Base {
 public:
  // Set before the allocator is put in place, once.
  static inline Base* ordinary = nullptr;
  static inline AllocatorHook hook;

  c10::DataPtr allocate(std::size_t nbytes) override {
    if (std::optional<c10::DataPtr> memory = hook.allocate(device(), nbytes)) return *std::move(memory);
    return ordinary->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    ordinary->copy_data(to, from, nbytes);
  }

 private:
  static void free(void* address) {
    if (address != nullptr && !hook.free(address)) ordinary->raw_deleter()(address);
  }
};

}  // namespace remint
