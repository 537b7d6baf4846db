// The columns of a Python Trace, as the core reads them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/trace_columns.h"

namespace remint {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// The columns of a Python Trace, kept alive for as long as they are read.
class Columns {
 public:
  explicit Columns(const py::object& trace) {
    view_.kinds = column<std::uint8_t>(trace, "kinds", &view_.num_events);
    view_.nanoseconds = column<std::int64_t>(trace, "nanoseconds");
    view_.arg_offsets = column<std::int64_t>(trace, "arg_offsets");
    view_.args = column<std::int32_t>(trace, "args");
    view_.effects = column<std::uint8_t>(trace, "effects");
    view_.out_offsets = column<std::int64_t>(trace, "out_offsets");
    view_.nbytes = column<std::int64_t>(trace, "nbytes", &view_.num_tensors);
    view_.aliases = column<std::int32_t>(trace, "aliases");
    view_.request_offsets = column<std::int64_t>(trace, "request_offsets");
    view_.request_bytes = column<std::int64_t>(trace, "request_bytes");
    view_.request_outputs = column<std::int32_t>(trace, "request_outputs");
    view_.held = column<std::int32_t>(trace, "held", &view_.num_held);
  }
  const TraceColumns& view() const { return view_; }

 private:
  template <typename T>
  const T* column(const py::object& trace, const char* name, std::size_t* length = nullptr) {
    Array<T> array = trace.attr(name).cast<Array<T>>();
    if (length != nullptr) *length = static_cast<std::size_t>(array.size());
    const T* data = array.data();
    kept_.push_back(std::move(array));
    return data;
  }
  std::vector<py::object> kept_;
  TraceColumns view_;
};

}  // namespace remint
