// The Python module `remint._torch`.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <cmath>

#include "bindings/block_columns.h"
#include "bindings/options.h"
#include "torch/session/session.h"

namespace py = pybind11;

namespace remint {

void raise_budget_error(const std::string& message, Bytes min_budget) {
  python_error error;
  {
    py::gil_scoped_acquire gil;
    py::object type = py::module_::import("remint.errors").attr("BudgetError");
    py::object instance = type(message, py::arg("min_budget_bytes") = min_budget);
    PyErr_SetObject(type.ptr(), instance.ptr());
    error.persist();
  }
  throw std::move(error);
}

namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

Held* held_of(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  return storage == nullptr ? nullptr : holder_of(storage);
}

bool is_loose(const c10::StorageImpl* storage) {
  return const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get_deleter() ==
         &loose_deleter;
}

// What holds the tensor's storage; if it is loose memory of an open budget, it is in no danger.
template <typename Do>
auto with_held(const at::Tensor& tensor, Do&& act, decltype(act(static_cast<Held*>(nullptr))) otherwise) {
  py::gil_scoped_release nogil;
  Held* held = held_of(tensor);
  return held == nullptr ? otherwise : act(held);
}

// A budget as Python opens it.
// Whoever holds the session's lock may wait for the GIL.
template <typename Get>
auto without_gil(Get&& get) {
  py::gil_scoped_release nogil;
  return get();
}

class PySession {
 public:
  PySession(Bytes budget, bool chaos, bool spill, bool timeline, bool events, bool blocks, bool record,
            bool source_lines, const py::kwargs& engine) {
    SessionOptions options;
    options.budget = budget;
    options.engine = engine_options(engine);
    options.chaos = chaos;
    options.spill = spill;
    options.timeline = timeline;
    options.events = events;
    options.blocks = blocks;
    options.record = record;
    options.source_lines = source_lines;
    session_ = Session::open(options);
  }

  void enter() {
    if (session_->closed()) throw py::value_error("this budget has ended: open a new one");
    outer_.push_back(enter_session(session_));
  }
  void leave() {
    enter_session(outer_.back());
    outer_.pop_back();
  }
  void close() {
    py::gil_scoped_release nogil;
    try {
      session_->close();
    } catch (const OutOfMemory&) {
      raise_budget_error(
          "the budget ended, and not all tensors that were evicted in it could be made again: they raise "
          "when they are read",
          0);
    }
  }
  bool closed() const { return session_->closed(); }

  py::dict figures() {
    Session::Figures f;
    {
      py::gil_scoped_release nogil;
      f = session_->figures();
    }
    const Statistics& s = f.statistics;
    py::dict d;
    d["budget_bytes"] = f.budget;
    d["peak_bytes"] = f.peak;
    d["used_bytes"] = f.used;
    d["pinned_bytes"] = f.pinned;
    d["min_budget_bytes"] = f.needed;
    d["spilled_bytes"] = f.spilled;
    d["num_ops"] = s.num_ops;
    d["num_evictions"] = s.num_evictions;
    d["num_frees"] = s.num_frees;
    d["num_rematerializations"] = s.num_rematerializations;
    d["num_searches"] = s.num_searches;
    d["num_scores"] = f.num_scores;
    d["num_storages"] = f.num_storages;
    d["computed_ns"] = s.computed;
    d["rematerialized_ns"] = s.rematerialized;
    d["search_ns"] = s.searching;
    d["bookkeeping_ns"] = f.bookkeeping;
    d["moved_bytes"] = s.moved_bytes;
    d["unusable_bytes"] = s.num_searches == 0 ? 0.0 : s.unusable_bytes / static_cast<double>(s.num_searches);
    return d;
  }

  py::list by_operator() {
    py::list rows;
    for (const OperatorStatistics& row : without_gil([&] { return session_->by_operator(); })) {
      std::vector<std::pair<std::string, std::uint64_t>> needed_by;
      for (const auto& [op, times] : row.needed_by)
        needed_by.emplace_back(op == nullptr ? "" : op->name, times);
      rows.append(py::make_tuple(row.op->name, row.place.line, row.place.module, row.num_rematerializations,
                                 row.rematerialized, needed_by));
    }
    return rows;
  }

  std::string events() {
    std::string text;
    for (const DecisionLog::Event& event : without_gil([&] { return session_->events(); })) {
      text += event.kind;
      text += std::to_string(event.tag);
      text += ';';
    }
    return text;
  }

  // What became of every block, as columns; the first number, the name and the source of every maker; marks.
  py::tuple block_log() {
    const Session::Blocks log = without_gil([&] { return session_->block_log(); });
    std::vector<std::uint64_t> firsts;
    std::vector<std::pair<std::string, std::string>> makers;
    for (const Session::Maker& maker : log.makers) {
      firsts.push_back(maker.first_number);
      makers.emplace_back(maker.op == nullptr ? "memory" : maker.op->name,
                          maker.source == kNone ? "" : session_->source_lines()->place(maker.source).text());
    }
    return py::make_tuple(block_columns(log.events), array_of(firsts), makers,
                          std::vector<std::string>(std::begin(Session::kMarks), std::end(Session::kMarks)));
  }

  // The columns of what was recorded, by the names of those of a trace.
  py::object recorded() {
    const Recorder* recorder = session_->recorder();
    if (recorder == nullptr) return py::none();
    const Recorder::Columns& c = recorder->columns();
    py::dict d;
    d["kinds"] = array_of(c.kinds);
    d["nanoseconds"] = array_of(c.nanoseconds);
    d["signatures"] = array_of(c.signatures);
    d["name_ids"] = array_of(c.names);
    d["names"] = recorder->names();
    d["source_ids"] = array_of(c.sources);
    d["sources"] =
        session_->source_lines() == nullptr ? std::vector<std::string>() : session_->source_lines()->texts();
    d["arg_offsets"] = array_of(c.arg_offsets);
    d["args"] = array_of(c.args);
    d["effects"] = array_of(c.effects);
    d["out_offsets"] = array_of(c.out_offsets);
    d["nbytes"] = array_of(c.nbytes);
    d["aliases"] = array_of(c.aliases);
    d["request_offsets"] = array_of(c.request_offsets);
    d["request_bytes"] = array_of(c.request_bytes);
    d["request_outputs"] = array_of(c.request_outputs);
    return d;
  }

  py::tuple timeline() {
    const std::vector<Timeline::Sample> samples = without_gil([&] { return session_->timeline(); });
    py::array_t<double> seconds(static_cast<py::ssize_t>(samples.size()));
    py::array_t<std::int64_t> nbytes(static_cast<py::ssize_t>(samples.size()));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      seconds.mutable_data()[i] = static_cast<double>(samples[i].time - 1) * 1e-9;
      nbytes.mutable_data()[i] = samples[i].used;
    }
    return py::make_tuple(seconds, nbytes);
  }

  std::vector<std::pair<std::string, Bytes>> pinned_by() {
    py::gil_scoped_release nogil;
    return session_->pinned_by();
  }
  void check() {
    py::gil_scoped_release nogil;
    session_->check();
  }
  void set_costs(const std::vector<Nanoseconds>& nanoseconds, const std::vector<Bytes>& nbytes) {
    std::vector<Session::Given> costs;
    for (std::size_t i = 0; i < nanoseconds.size(); ++i) costs.push_back({nanoseconds[i], nbytes.at(i)});
    session_->set_costs(std::move(costs));
  }

 private:
  template <typename T>
  static py::array_t<T> array_of(const std::vector<T>& column) {
    return py::array_t<T>(static_cast<py::ssize_t>(column.size()), column.data());
  }

  std::shared_ptr<Session> session_;
  std::vector<std::shared_ptr<Session>> outer_;
};

}  // namespace
}  // namespace remint

PYBIND11_MODULE(_torch, module) {
  using namespace remint;
  module.doc() = "remint's engine on real tensors. `remint.budget` is the way to use it.";
  module.attr("torch_version") = TORCH_VERSION;
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (python_error& error) {
      error.restore();
    }
  });

  py::class_<PySession>(module, "Session")
      .def(py::init<Bytes, bool, bool, bool, bool, bool, bool, bool, const py::kwargs&>(), py::kw_only(),
           py::arg("budget"), py::arg("chaos"), py::arg("spill"), py::arg("timeline"), py::arg("events"),
           py::arg("blocks"), py::arg("record"), py::arg("source_lines"))
      .def("enter", &PySession::enter)
      .def("leave", &PySession::leave)
      .def("close", &PySession::close)
      .def_property_readonly("closed", &PySession::closed)
      .def("figures", &PySession::figures)
      .def("by_operator", &PySession::by_operator)
      .def("timeline", &PySession::timeline)
      .def("events", &PySession::events)
      .def("block_log", &PySession::block_log)
      .def("recorded", &PySession::recorded)
      .def("pinned_by", &PySession::pinned_by)
      .def("check", &PySession::check)
      .def("set_costs", &PySession::set_costs, py::arg("nanoseconds"), py::arg("nbytes"));

  module.def("enter_module", &SourceLines::enter_module, py::arg("path"));
  module.def("inside", [] { return current_session() != nullptr; });
  // Whether this thread's operator calls go unseen from now on; returns whether they did before.
  module.def(
      "hide",
      [](bool hidden) {
        const bool before = c10::impl::tls_is_dispatch_key_excluded(kKey);
        c10::impl::tls_set_dispatch_key_excluded(kKey, hidden);
        return before;
      },
      py::arg("hidden"));
  module.def(
      "is_held", [](const at::Tensor& tensor) { return held_of(tensor) != nullptr; }, py::arg("tensor"));
  module.def(
      "materialize",
      [](const at::Tensor& tensor) {
        with_held(tensor, [](Held* held) { return held->session->materialize(held), true; }, true);
      },
      py::arg("tensor"));
  module.def(
      "pin",
      [](const at::Tensor& tensor, bool asked) {
        const c10::StorageImpl* storage = storage_of(tensor);
        if (storage != nullptr && is_loose(storage)) {
          py::gil_scoped_release nogil;
          void* address = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks().get();
          if (auto session = Regions::session_of(address))
            session->pin_loose(const_cast<c10::StorageImpl*>(storage));
          return;
        }
        with_held(
            tensor,
            [&](Held* held) { return held->session->pin(held, asked ? Why::kAsked : Why::kHandedOut), true; },
            true);
      },
      py::arg("tensor"), py::kw_only(), py::arg("asked"));
  module.def(
      "before_write",
      [](const at::Tensor& tensor) {
        with_held(tensor, [](Held* held) { return held->session->before_write(held), true; }, true);
        py::gil_scoped_release nogil;
        if (Session* session = current_session()) {
          if (const c10::StorageImpl* storage = storage_of(tensor)) session->before_write(storage);
        }
      },
      py::arg("tensor"));
  module.def(
      "is_resident",
      [](const at::Tensor& tensor) {
        return with_held(tensor, [](Held* held) { return held->session->is_resident(held); }, true);
      },
      py::arg("tensor"));
  module.def(
      "evict",
      [](const at::Tensor& tensor) {
        return with_held(tensor, [](Held* held) { return held->session->evict(held); }, false);
      },
      py::arg("tensor"));
}
