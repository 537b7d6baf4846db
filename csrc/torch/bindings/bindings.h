#pragma once

#include <pybind11/pybind11.h>

namespace remint {

void bind_session(pybind11::module_& module);
void bind_tensor_functions(pybind11::module_& module);

}  // namespace remint
