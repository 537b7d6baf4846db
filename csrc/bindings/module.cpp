// The Python module `remint._core`: one bind_* function per part of the core.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The torch-free core of remint.";
  remint::bind_simulation(module);
  remint::bind_search(module);
  remint::bind_memory(module);
  remint::bind_learning(module);
}
