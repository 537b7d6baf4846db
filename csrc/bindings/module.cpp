// The Python module `remint._core`: one bind_* function per part of the core.
#include <pybind11/pybind11.h>

void bind_search(pybind11::module_& module);

PYBIND11_MODULE(_core, module) {
  module.doc() = "The torch-free core of remint.";
  bind_search(module);
}
