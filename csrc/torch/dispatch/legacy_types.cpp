#include "torch/dispatch/legacy_types.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "torch/dispatch/tags.h"

namespace py = pybind11;

namespace remint {
namespace {

py::object& original() {
  static auto* function = new py::object();
  return *function;
}

PyObject* instance_check(PyObject* type, PyObject* instance) {
  try {
    if (!THPVariable_Check(instance) || !is_tagged(THPVariable_Unpack(instance))) {
      return original()(py::handle(type), py::handle(instance)).release().ptr();
    }
    // The same tensor without our key.
    const at::Tensor alias = THPVariable_Unpack(instance).variable_data();
    untag(alias);
    return original()(py::handle(type), py::cast(alias)).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

}  // namespace

void patch_legacy_types() {
  if (original()) return;
  PyTypeObject* meta = Py_TYPE(py::module_::import("torch").attr("FloatTensor").ptr());
  static PyMethodDef method{"__instancecheck__", &instance_check, METH_O, nullptr};
  const py::handle name_space(meta->tp_dict);
  original() = name_space["__instancecheck__"];
  // The metaclass is a C type, which cannot be changed from Python.
  const auto descriptor = py::reinterpret_steal<py::object>(PyDescr_NewMethod(meta, &method));
  PyDict_SetItemString(meta->tp_dict, "__instancecheck__", descriptor.ptr());
  PyType_Modified(meta);
}

}  // namespace remint
