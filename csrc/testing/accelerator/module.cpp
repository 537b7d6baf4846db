// The Python module remint._accelerator: the test devices. src/remint/testing/accelerator.py is its front.
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <chrono>
#include <thread>

#include "testing/accelerator/allocator.h"
#include "testing/accelerator/device.h"
#include "testing/accelerator/generator.h"
#include "testing/accelerator/memory.h"
#include "testing/accelerator/streams.h"

namespace py = pybind11;

namespace remint::testing {
namespace {

void open(int num_devices, std::size_t nbytes) {
  DeviceMemory::open(num_devices, nbytes);
  register_device();
  register_kernels();
}

py::dict counts_as_dict() {
  const Counts now = counts();
  py::dict d;
  d["kernels"] = now.kernels;
  d["waited_kernels"] = now.waited_kernels;
  d["work"] = now.work;
  d["synchronizations"] = now.synchronizations;
  d["events"] = now.events;
  d["stream_waits"] = now.stream_waits;
  d["allocations"] = now.allocations;
  return d;
}

void wait_for_all() {
  py::gil_scoped_release nogil;
  for (int i = 0; i < DeviceMemory::get().num_devices(); ++i)
    wait_for_device(static_cast<c10::DeviceIndex>(i));
}

}  // namespace

PYBIND11_MODULE(_accelerator, module) {
  module.attr("torch_version") = TORCH_VERSION;
  module.def("open", &open, py::arg("num_devices"), py::arg("nbytes"));
  module.def("set_delay", &DeviceStream::set_delay, py::arg("microseconds"));
  module.def("set_seed", &DeviceStream::set_seed, py::arg("seed"));
  module.def("set_poison", [](bool on) { TestAllocator::get().set_poison(on); }, py::arg("on"));
  module.def("counts", &counts_as_dict);
  module.def(
      "sleep",
      [](int microseconds) {
        current_stream(current_device()).push(0, [microseconds] {
          std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
        });
      },
      py::arg("microseconds"));
  module.def(
      "copy_bytes",
      [](std::uintptr_t to, std::uintptr_t from, std::size_t nbytes) {
        TestAllocator::get().copy_data(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                                       nbytes);
      },
      py::arg("to"), py::arg("source"), py::arg("nbytes"));
  module.def(
      "default_generator",
      [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); }, py::arg("device"));
  module.def("wait_for_all", &wait_for_all);
}

}  // namespace remint::testing
