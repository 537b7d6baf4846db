#include "torch/observe/source_lines.h"

#include <ATen/SequenceNumber.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/function.h>

namespace py = pybind11;

namespace remint {
namespace {

// Where PyTorch and remint are; what is there is not the program.
const std::vector<std::string>& libraries() {
  static const auto* directories = [] {
    auto* all = new std::vector<std::string>();
    for (const char* name : {"torch", "remint"}) {
      const py::list paths = py::module_::import(name).attr("__path__");
      for (const py::handle& path : paths) all->push_back(py::str(path).cast<std::string>() + "/");
    }
    return all;
  }();
  return *directories;
}

std::string file_of(PyCodeObject* code) {
  const std::string file = py::str(reinterpret_cast<PyObject*>(code->co_filename)).cast<std::string>();
  if (file.empty() || file[0] == '<') return "";
  for (const std::string& directory : libraries()) {
    if (file.compare(0, directory.size(), directory) == 0) return "";
  }
  return file;
}

thread_local std::string current_module;

}  // namespace

void SourceLines::enter_module(const std::string& path) {
  current_module = path;
}

std::vector<std::string> SourceLines::texts() const {
  std::vector<std::string> texts;
  for (const Place& place : places_) texts.push_back(place.text());
  return texts;
}

std::uint32_t SourceLines::number_of(const Place& place) {
  auto [found, is_new] = numbers_.try_emplace(place.text(), static_cast<std::uint32_t>(places_.size()));
  if (is_new) places_.push_back(place);
  return found->second;
}

std::uint32_t SourceLines::python_line() {
  PyThreadState* thread = PyThreadState_Get();
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  while (frame) {
    auto* at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* code = PyFrame_GetCode(at);  // a new reference
    auto known = files_.find(code);
    if (known == files_.end()) {
      known = files_.emplace(code, file_of(code)).first;
    } else {
      Py_DECREF(code);
    }
    if (!known->second.empty()) {
      return number_of({known->second + ":" + std::to_string(PyFrame_GetLineNumber(at)), current_module});
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return kNone;
}

std::uint32_t SourceLines::current() {
  py::gil_scoped_acquire gil;
  if (const auto node = torch::autograd::get_current_node()) {
    const std::uint64_t number = node->sequence_nr() - first_node_;
    if (number < of_node_.size() && of_node_[number] != kNone) return of_node_[number];
    return number_of({node->name(), ""});
  }
  const std::uint32_t line = python_line();
  // If this op has a node, it is the last one that was made. Ops without one leave those of others alone.
  if (at::sequence_number::peek() == 0) return line;
  if (of_node_.empty()) first_node_ = at::sequence_number::peek() - 1;
  const std::uint64_t last = at::sequence_number::peek() - 1 - first_node_;
  if (last >= of_node_.size()) of_node_.resize(last + 1, kNone);
  if (of_node_[last] == kNone) of_node_[last] = line;
  return line;
}

}  // namespace remint
