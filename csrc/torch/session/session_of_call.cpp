#include "torch/session/session_of_call.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "torch/dispatch/arguments.h"
#include "torch/session/session.h"

namespace remint {
namespace {

Session* find(c10::ArrayRef<std::shared_ptr<Session>> sessions, c10::Device device) {
  for (const std::shared_ptr<Session>& session : sessions) {
    if (session->is_of(device)) return session.get();
  }
  return nullptr;
}

c10::Device exact(c10::Device device) {
  if (device.has_index() || device.is_cpu()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

Session& session_of_call(c10::ArrayRef<std::shared_ptr<Session>> sessions, const Operator& op,
                         const torch::jit::Stack& stack) {
  if (sessions.size() == 1) return *sessions[0];
  // What the kernel of a custom op calls is a part of that op, whatever the device.
  for (const std::shared_ptr<Session>& session : sessions) {
    if (session->is_in_kernel_here()) return *session;
  }
  const std::size_t first = stack.size() - op.writes.size();
  Session* of_written = nullptr;
  Session* of_accelerator = nullptr;
  Session* of_host = nullptr;
  for (std::size_t a = 0; a < op.writes.size(); ++a) {
    const bool written = op.writes[a] != Operator::Write::kNo;
    for_tensors(stack[first + a], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined()) return;
      Session*& found = written ? of_written : tensor.is_cpu() ? of_host : of_accelerator;
      if (found == nullptr) found = find(sessions, tensor.device());
    });
  }
  if (of_written != nullptr) return *of_written;
  if (op.device >= 0) {
    const c10::IValue& device = stack[first + static_cast<std::size_t>(op.device)];
    Session* of_results = device.isDevice() ? find(sessions, exact(device.toDevice())) : nullptr;
    if (of_results != nullptr) return *of_results;
  }
  // An op with tensors of the host and of an accelerator is the accelerator's.
  if (of_accelerator != nullptr) return *of_accelerator;
  return of_host != nullptr ? *of_host : *sessions[0];
}

}  // namespace remint
