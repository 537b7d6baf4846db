#include "torch/backends/backend.h"

namespace remint {

Backend::Backend(c10::Device device, c10::DispatchKey dispatch_key, c10::DispatchKey opaque)
    : device_(device),
      dispatch_key_(dispatch_key),
      plain_(dispatch_key),
      never_plain_({c10::DispatchKey::Python, c10::DispatchKey::Quantized, c10::DispatchKey::Sparse,
                    c10::DispatchKey::SparseCsr, c10::DispatchKey::NestedTensor, c10::DispatchKey::ZeroTensor,
                    c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
                    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched, opaque}) {}

// Bytes of the CPU go to a file.
c10::DataPtr Backend::host_memory(std::size_t) const {
  TORCH_CHECK_VALUE(false, "remint: memory of the host is no tier for ", device_, ": offload to a file");
}
void Backend::copy_to_host(const c10::DataPtr&, const void*, std::size_t) {
  TORCH_INTERNAL_ASSERT(false);
}
void Backend::copy_from_host(void*, const c10::DataPtr&, std::size_t) {
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace remint
