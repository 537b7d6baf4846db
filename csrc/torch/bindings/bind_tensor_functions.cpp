// What Python can ask about one tensor, or tell about this thread. Tensors of no budget are left alone.
#include <c10/core/TensorOptions.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "torch/bindings/bindings.h"
#include "torch/dispatch/arguments.h"
#include "torch/dispatch/tags.h"
#include "torch/dispatch/threads.h"
#include "torch/dispatch/visit.h"
#include "torch/session/session.h"

namespace py = pybind11;

namespace remint {
namespace {

// Asks the open sessions, one after the other, until one knows the storage of `tensor`.
template <typename Ask>
auto ask_owner(const at::Tensor& tensor, Ask&& ask)
    -> decltype(ask(*static_cast<Session*>(nullptr), nullptr)) {
  using Answer = decltype(ask(*static_cast<Session*>(nullptr), nullptr));
  py::gil_scoped_release nogil;
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return Answer{};
  for (const std::shared_ptr<Session>& session : Regions::open_sessions()) {
    if (Answer answer = ask(*session, storage)) return answer;
  }
  return Answer{};
}

void materialize(const at::Tensor& tensor) {
  ask_owner(tensor, [](Session& session, c10::StorageImpl* storage) { return session.materialize(storage); });
}

void pin(const at::Tensor& tensor, bool asked) {
  const PinReason reason = asked ? PinReason::kAsked : PinReason::kAddressKnown;
  ask_owner(tensor,
            [&](Session& session, c10::StorageImpl* storage) { return session.pin(storage, reason); });
}

// Every session may have recipes that read it.
void before_write(const at::Tensor& tensor) {
  ask_owner(tensor, [](Session& session, c10::StorageImpl* storage) {
    session.before_write(storage);
    return false;
  });
}

// A storage that is resized is written, and its old bytes are gone.
void before_resize(const py::object& storage, std::size_t nbytes) {
  const c10::Storage resized = torch::createStorage(storage.ptr());
  const c10::DispatchKeySet keys(c10::computeDispatchKey(std::nullopt, at::kStrided, resized.device()));
  const at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(resized), keys,
                                                                     caffe2::TypeMeta::Make<std::uint8_t>());
  ask_owner(tensor, [nbytes](Session& session, c10::StorageImpl* impl) {
    if (nbytes == 0) {
      session.before_free(impl);
    } else {
      session.before_write(impl);
    }
    return false;
  });
}

bool is_resident(const at::Tensor& tensor) {
  return ask_owner(tensor,
                   [](Session& session, c10::StorageImpl* storage) { return session.is_resident(storage); })
      .value_or(true);
}

bool evict(const at::Tensor& tensor) {
  return ask_owner(tensor, [](Session& session, c10::StorageImpl* storage) { return session.evict(storage); })
      .value_or(false);
}

// Keeps a tensor resident, where it is, until it is released.
class TensorReadLock {
 public:
  explicit TensorReadLock(const at::Tensor& tensor) {
    py::gil_scoped_release nogil;
    visit_ = std::make_unique<Visit>();
    visit_->read(tensor);
  }
  ~TensorReadLock() { release(); }
  void release() {
    py::gil_scoped_release nogil;
    visit_.reset();
  }

 private:
  std::unique_ptr<Visit> visit_;
};

// The same tensor, as far as its type and device go, without our dispatch key.
at::Tensor without_tag(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_tagged(tensor)) return tensor;
  at::Tensor alias = tensor.variable_data();
  untag(alias);
  return alias;
}

// Whether this thread's operator calls go unseen from now on; its memory still comes from the budget. Returns
// whether they did before.
bool hide(bool hidden) {
  thread_local std::unique_ptr<InKernel> in_kernel;
  const bool before = c10::impl::tls_is_dispatch_key_excluded(kKey);
  c10::impl::tls_set_dispatch_key_excluded(kKey, hidden);
  if (hidden != before) in_kernel = hidden ? std::make_unique<InKernel>() : nullptr;
  return before;
}

py::dict facts_of(const std::string& name, const std::string& overload) {
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const Operator& facts = operator_facts(handle);
  py::list writes;
  for (std::size_t a = 0; a < facts.writes.size(); ++a) {
    if (facts.writes[a] != Operator::Write::kNo) writes.append(handle.schema().arguments()[a].name());
  }
  py::dict d;
  d["writes"] = writes;
  d["view"] = facts.view;
  d["seeded"] = facts.seeded;
  d["collective"] = facts.collective;
  d["pins_arguments"] = facts.pins_arguments;
  return d;
}

}  // namespace

void bind_tensor_functions(py::module_& module) {
  module.def("materialize", &materialize, py::arg("tensor"));
  module.def("pin", &pin, py::arg("tensor"), py::kw_only(), py::arg("asked"));
  module.def("before_write", &before_write, py::arg("tensor"));
  module.def("before_resize", &before_resize, py::arg("storage"), py::arg("nbytes"));
  module.def("is_resident", &is_resident, py::arg("tensor"));
  module.def("evict", &evict, py::arg("tensor"));
  py::class_<TensorReadLock>(module, "ReadLock")
      .def(py::init<const at::Tensor&>(), py::arg("tensor"))
      .def("release", &TensorReadLock::release);
  module.def("without_tag", &without_tag, py::arg("tensor"));
  module.def("inside", [] { return !current_sessions().empty(); });
  module.def("hide", &hide, py::arg("hidden"));
  module.def("operator_facts", &facts_of, py::arg("name"), py::arg("overload") = "");
}

}  // namespace remint
