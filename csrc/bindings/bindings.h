#pragma once

#include <pybind11/pybind11.h>

namespace remint {

void bind_simulation(pybind11::module_& module);
void bind_search(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_learning(pybind11::module_& module);

}  // namespace remint
