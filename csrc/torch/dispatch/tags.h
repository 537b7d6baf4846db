// Tensors of a budget carry the interposed dispatch key themselves. So every operator call on one is seen, in
// whatever thread it happens, also in threads that are in no budget. Views and detached copies take the key
// over.
#pragma once

#include "torch/backends/tensor_keys.h"
#include "torch/dispatch/threads.h"

namespace remint {

inline bool is_tagged(const at::Tensor& tensor) {
  return keys_of(tensor).load(std::memory_order_relaxed).has(kKey);
}

inline void tag(const at::Tensor& tensor) {
  auto keys = keys_of(tensor);
  const c10::DispatchKeySet before = keys.load(std::memory_order_relaxed);
  if (!before.has(kKey)) keys.store(before.add(kKey), std::memory_order_relaxed);
}

inline void untag(const at::Tensor& tensor) {
  auto keys = keys_of(tensor);
  keys.store(keys.load(std::memory_order_relaxed).remove(kKey), std::memory_order_relaxed);
}

}  // namespace remint
