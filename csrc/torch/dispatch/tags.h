// Tensors of a budget carry the interposed dispatch key themselves. So every operator call on one is seen, in
// whatever thread it happens, also in threads that are in no budget. Views and detached copies take the key
// over.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/dispatch/threads.h"

namespace remint {

namespace detail {
// PyTorch has no public way to add a key to one tensor.
struct TensorKeys : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::* member() { return &TensorKeys::key_set_; }
};
}  // namespace detail

inline bool is_tagged(const at::Tensor& tensor) {
  return tensor.key_set().has(kKey);
}

inline void tag(const at::Tensor& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*detail::TensorKeys::member();
  if (!keys.has(kKey)) keys = keys.add(kKey);
}

inline void untag(const at::Tensor& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*detail::TensorKeys::member();
  keys = keys.remove(kKey);
}

}  // namespace remint
