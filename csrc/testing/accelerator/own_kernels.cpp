// The operators that are not just a CPU kernel on a stream: memory, copies, and those that exist for
// accelerators only.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

#include "testing/accelerator/cpu_kernels.h"
#include "testing/accelerator/device.h"
#include "testing/accelerator/memory.h"
#include "testing/accelerator/stream_tensors.h"
#include "testing/accelerator/streams.h"

namespace remint::testing {
namespace {

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::Device(kDeviceType, index_of(device)));
  return at::detail::empty_generic_symint(sizes, c10::GetAllocator(kDeviceType),
                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return empty_on_device(index_of(device), sizes, strides, c10::dtype_or_default(dtype));
}

void wait_for(DeviceStream& stream) {
  count(&Counts::synchronizations);
  stream.wait();
}

// One stream does not go on before another has come as far as now.
void order(DeviceStream& first, DeviceStream& then) {
  if (&first == &then) return;
  const auto event = std::make_shared<DeviceEvent>();
  DeviceEvent::record(event, first);
  DeviceEvent::block(event, then);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.numel() == 0) return to;
  const bool on_devices = is_on_device(to) && is_on_device(from);
  StreamTensors on_cpu;
  at::Tensor source = on_cpu.of(from);
  at::Tensor target = on_cpu.of(to);
  // Ordinary host memory may change as soon as the call has returned: it is copied first, as on CUDA.
  const bool pageable_source = !is_on_device(from) && !from.is_pinned();
  if (pageable_source && non_blocking) source = source.clone();
  // On the stream of the source, as on CUDA.
  const c10::DeviceIndex index = is_on_device(from) ? from.device().index() : to.device().index();
  DeviceStream& stream = current_stream(index);
  DeviceStream& other = on_devices ? current_stream(to.device().index()) : stream;
  order(other, stream);
  stream.push(1000 + static_cast<DeviceNanoseconds>(to.nbytes() / 8), [target, source]() mutable {
    const at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source);
  });
  order(stream, other);
  const bool to_host = !is_on_device(to) && !(non_blocking && to.is_pinned());
  const bool from_host = !is_on_device(from) && !non_blocking;
  if (to_host || from_host) wait_for(stream);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, from, non_blocking);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  StreamTensors on_cpu;
  const at::Tensor number = on_cpu.of(tensor);
  wait_for(current_stream(tensor.device().index()));
  return at::_local_scalar_dense(number);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  at::Tensor view = view_like(tensor, tensor);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset.value_or(tensor.storage_offset()));
  return view;
}

void reserve(c10::StorageImpl* storage, c10::Device device, std::size_t nbytes) {
  if (nbytes <= storage->nbytes()) return;
  const c10::DeviceGuard guard(device);
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(
      c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)), nbytes);
}

const at::Tensor& resize_(const at::Tensor& tensor, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const auto elements = static_cast<std::size_t>(impl->numel() + impl->storage_offset());
  reserve(impl->unsafe_storage().unsafeGetStorageImpl(), tensor.device(), elements * tensor.itemsize());
  return tensor;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                        c10::SymIntArrayRef strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.expect_int());
  if (strides.empty()) {
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  } else {
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                offset.expect_int());
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {c10::SymInt(elements)}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& other) {
  return set_storage(self, other.storage(), other.sym_storage_offset(), other.sym_sizes(),
                     other.sym_strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const at::Tensor none = empty_on_device(self.device().index(), {0}, {1}, self.scalar_type());
  return set_storage(self, none.storage(), 0, {c10::SymInt(0)}, {});
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  // The allocator may have been replaced: by a budget, for example.
  c10::getDeviceAllocator(kDeviceType)->recordStream(tensor.storage().data_ptr(), stream);
}

// The fused kernels of attention are the CPU's own, with layouts of their own.
std::int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return static_cast<std::int64_t>(sdp::SDPBackend::math);
}

// Recurrent cells: accelerators have them as one op.

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& of_input,
                                                         const at::Tensor& of_hidden, const at::Tensor& cell,
                                                         const std::optional<at::Tensor>& bias_input,
                                                         const std::optional<at::Tensor>& bias_hidden) {
  at::Tensor gates = at::add(of_input, of_hidden);
  if (bias_input && bias_input->defined()) gates.add_(*bias_input);
  if (bias_hidden && bias_hidden->defined()) gates.add_(*bias_hidden);
  const std::vector<at::Tensor> parts = gates.chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid_();
  const at::Tensor forget = parts[1].sigmoid_();
  const at::Tensor candidate = parts[2].tanh_();
  const at::Tensor out = parts[3].sigmoid_();
  at::Tensor next = at::mul(forget, cell).add_(at::mul(in, candidate));
  at::Tensor hidden = at::mul(out, at::tanh(next));
  return {std::move(hidden), std::move(next), std::move(gates)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_cell,
    const at::Tensor& cell, const at::Tensor& next, const at::Tensor& gates, bool has_bias) {
  const std::vector<at::Tensor> parts = gates.chunk(4, 1);
  const at::Tensor squashed = at::tanh(next);
  at::Tensor grad_next = grad_cell && grad_cell->defined() ? grad_cell->clone() : at::zeros_like(cell);
  at::Tensor grad_out = at::zeros_like(next);
  if (grad_hidden && grad_hidden->defined()) {
    grad_out = at::sigmoid_backward(at::mul(*grad_hidden, squashed), parts[3]);
    grad_next.add_(at::tanh_backward(at::mul(*grad_hidden, parts[3]), squashed));
  }
  const at::Tensor grad_gates = at::cat({at::sigmoid_backward(at::mul(grad_next, parts[2]), parts[0]),
                                         at::sigmoid_backward(at::mul(grad_next, cell), parts[1]),
                                         at::tanh_backward(at::mul(grad_next, parts[0]), parts[2]), grad_out},
                                        1);
  return {grad_gates, at::mul(grad_next, parts[1]), has_bias ? grad_gates.sum({0}, false) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& of_input, const at::Tensor& of_hidden,
                                            const at::Tensor& hidden,
                                            const std::optional<at::Tensor>& bias_input,
                                            const std::optional<at::Tensor>& bias_hidden) {
  const bool has_bias = bias_input && bias_input->defined();
  const at::Tensor input = has_bias ? at::add(of_input, *bias_input) : of_input;
  const at::Tensor recurrent = has_bias ? at::add(of_hidden, *bias_hidden) : of_hidden;
  const std::vector<at::Tensor> i = input.chunk(3, 1);
  const std::vector<at::Tensor> h = recurrent.chunk(3, 1);
  const at::Tensor reset = at::add(i[0], h[0]).sigmoid_();
  const at::Tensor update = at::add(i[1], h[1]).sigmoid_();
  const at::Tensor fresh = at::add(i[2], at::mul(reset, h[2])).tanh_();
  at::Tensor next = at::add(at::mul(at::sub(hidden, fresh), update), fresh);
  return {std::move(next), at::cat({reset, update, fresh, hidden, h[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad, const at::Tensor& workspace, bool has_bias) {
  const std::vector<at::Tensor> w = workspace.chunk(5, 1);
  const at::Tensor grad_update = at::sigmoid_backward(at::mul(grad, at::sub(w[3], w[2])), w[1]);
  const at::Tensor grad_fresh = at::tanh_backward(at::sub(grad, at::mul(grad, w[1])), w[2]);
  const at::Tensor grad_reset = at::sigmoid_backward(at::mul(grad_fresh, w[4]), w[0]);
  const at::Tensor of_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const at::Tensor of_hidden = at::cat({grad_reset, grad_update, at::mul(grad_fresh, w[0])}, 1);
  return {of_input, of_hidden, at::mul(grad, w[1]), has_bias ? of_input.sum({0}, false) : at::Tensor(),
          has_bias ? of_hidden.sum({0}, false) : at::Tensor()};
}

}  // namespace

void register_kernels() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty);
  library->impl("empty_strided", &empty_strided);
  library->impl("copy_", &copy_);
  library->impl("_copy_from", &copy_from);
  library->impl("_local_scalar_dense", &local_scalar_dense);
  library->impl("as_strided", &as_strided);
  library->impl("resize_", &resize_);
  library->impl("set_.source_Storage_storage_offset", &set_storage);
  library->impl("set_.source_Storage", &set_whole_storage);
  library->impl("set_.source_Tensor", &set_tensor);
  library->impl("set_", &set_empty);
  library->impl("record_stream", &record_stream);
  library->impl("_fused_sdp_choice", &choose_attention);
  library->impl("_thnn_fused_lstm_cell", &lstm_cell);
  library->impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library->impl("_thnn_fused_gru_cell", &gru_cell);
  library->impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);

  // An op with a kernel for all backends beside the CPU's own would come in the pieces that this kernel
  // calls: registered by name, it comes whole. Convolutions choose a library by device, so they come whole,
  // too.
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  handles->push_back(dispatcher.registerFallback(
      c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&run_cpu_kernel>(),
      "remint.testing.accelerator"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const bool convolution = name.overload_name.empty() &&
                             (name.name == "aten::convolution" || name.name == "aten::convolution_backward");
    if (!convolution && !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    handles->push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                               c10::KernelFunction::makeFromBoxedFunction<&run_cpu_kernel>(),
                                               std::nullopt, nullptr, "remint.testing.accelerator"));
  }
}

}  // namespace remint::testing
