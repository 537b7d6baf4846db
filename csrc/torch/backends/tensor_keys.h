// The dispatch keys of a tensor, to read and to change.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace remint {

namespace detail {
// PyTorch has no public way to add a key to one tensor.
struct TensorKeys : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::* member() { return &TensorKeys::key_set_; }
};
}  // namespace detail

// The keys of a tensor. One thread may tag a tensor while another one asks for its keys, so both are atomic.
// Which of the two comes first does not matter: a call that began before the tensor was tagged is one from
// before the budget knew it.
inline std::atomic_ref<c10::DispatchKeySet> keys_of(const at::Tensor& tensor) {
  return std::atomic_ref(tensor.unsafeGetTensorImpl()->*detail::TensorKeys::member());
}

}  // namespace remint
