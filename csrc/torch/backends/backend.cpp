#include "torch/backends/backend.h"

namespace remint {

bool Backend::is_plain(const at::Tensor& tensor) const {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl->key_set();
  static const c10::DispatchKeySet never({c10::DispatchKey::Python, c10::DispatchKey::Quantized,
                                          c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                                          c10::DispatchKey::NestedTensor, c10::DispatchKey::ZeroTensor,
                                          c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
                                          c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched});
  return keys.has_backend(component()) && keys.has(c10::DispatchKey::Dense) && !keys.has_any(never) &&
         !keys.has(opaque_layout()) && impl->has_storage() && !impl->has_symbolic_sizes_strides();
}

}  // namespace remint
