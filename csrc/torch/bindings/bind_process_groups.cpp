// Process groups, for a rank that fails: the others must not wait for it until their network times out.
#include <pybind11/pybind11.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch/bindings/bindings.h"

namespace py = pybind11;

namespace remint {

void bind_process_groups(py::module_& module) {
  // Closes the connections of a group that the program may still hold. gloo has no other way to abort: its
  // connections live as long as its backend.
  module.def("drop_backends", [](const py::object& group) {
    auto* const process_group = group.cast<c10d::ProcessGroup*>();
    // A thread of the backend may wait for the GIL.
    const py::gil_scoped_release nogil;
    process_group->release_resources();
  });
}

}  // namespace remint
