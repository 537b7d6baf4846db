// The Python module `remint._torch`: one bind_* function per part.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "torch/bindings/bindings.h"
#include "torch/dispatch/threads.h"

namespace py = pybind11;

#ifdef REMINT_CUDA
#define REMINT_BUILT_FOR TORCH_VERSION " with CUDA"
#else
#define REMINT_BUILT_FOR TORCH_VERSION " without CUDA"
#endif

PYBIND11_MODULE(_torch, module) {
  // remint.torch_extension finds the version in the file, before it loads it.
  module.doc() = "remint's engine on real tensors, built for torch " REMINT_BUILT_FOR
                 ". `remint.budget` is the way to use it.";
  module.attr("torch_version") = TORCH_VERSION;
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (python_error& error) {
      error.restore();
    }
  });
  remint::set_main_thread(
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>());
  remint::bind_session(module);
  remint::bind_tensor_functions(module);
}
