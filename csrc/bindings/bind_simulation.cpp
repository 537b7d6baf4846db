#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>

#include "bindings/bindings.h"
#include "bindings/block_columns.h"
#include "memory/compaction.h"
#include "memory/window.h"
#include "simulator/simulation.h"

namespace py = pybind11;

namespace remint {
namespace {

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

// One simulation as Python drives it: whole traces at once, or growing ones event by event.
class PySimulation {
 public:
  PySimulation(const SimulationOptions& options, bool events, bool timeline, bool blocks)
      : simulation_(options) {
    simulation_.engine().observe(events ? &events_ : nullptr, timeline ? &timeline_ : nullptr);
    if (blocks && !options.arena) throw std::invalid_argument("blocks have addresses only in an arena");
    if (blocks) simulation_.engine().observe_blocks(&block_log_);
  }

  // Runs the events of `trace` that were not run before; "ok", "oom" or "thrash".
  std::string advance(const py::object& trace, bool finish) {
    Columns columns(trace);
    py::gil_scoped_release nogil;
    try {
      for (; next_ < columns.view().num_events; ++next_) {
        if (next_ % 65536 == 0) check_signals();
        simulation_.step(columns.view(), next_);
      }
      if (finish) simulation_.finish(columns.view());
    } catch (const OutOfMemory& error) {
      oom_bytes_ = error.requested;
      return "oom";
    } catch (const Thrash&) {
      return "thrash";
    }
    return "ok";
  }

  bool resident(std::int32_t tensor) const { return simulation_.resident(tensor); }
  void check() { simulation_.engine().check(); }

  py::dict statistics() {
    Engine& engine = simulation_.engine();
    const Statistics& s = engine.statistics();
    py::dict d;
    d["peak_bytes"] = engine.memory().peak();
    d["used_bytes"] = engine.memory().used();
    d["pinned_bytes"] = engine.pinned_bytes();
    d["num_ops"] = s.num_ops;
    d["num_evictions"] = s.num_evictions;
    d["num_rematerializations"] = s.num_rematerializations;
    d["num_searches"] = s.num_searches;
    d["num_scores"] = engine.num_scores();
    d["num_storages"] = engine.records().num_storages();
    d["computed_ns"] = s.computed;
    d["rematerialized_ns"] = s.rematerialized;
    d["search_ns"] = s.searching;
    d["unusable_bytes"] = s.num_searches == 0 ? 0.0 : s.unusable_bytes / static_cast<double>(s.num_searches);
    d["moved_bytes"] = s.moved_bytes;
    d["failed_event"] = next_;
    d["oom_bytes"] = oom_bytes_;
    return d;
  }

  py::str decisions() const {
    std::string text;
    for (const Event& event : events_) {
      text += event.kind;
      text += std::to_string(event.tag);
      text += ';';
    }
    return text;
  }

  py::tuple timeline() const {
    py::array_t<double> seconds(static_cast<py::ssize_t>(timeline_.size()));
    py::array_t<std::int64_t> bytes(static_cast<py::ssize_t>(timeline_.size()));
    for (std::size_t i = 0; i < timeline_.size(); ++i) {
      seconds.mutable_data()[i] = static_cast<double>(timeline_[i].time - 1) * 1e-9;
      bytes.mutable_data()[i] = timeline_[i].used;
    }
    return py::make_tuple(seconds, bytes);
  }

  // The columns of the block log: seconds, changes, storages (-1: none), root tensors, addresses, bytes.
  py::tuple block_log() const { return block_columns(block_log_); }

  // (address, bytes, root tensor) of every storage that has an address.
  std::vector<std::tuple<Bytes, Bytes, std::uint64_t>> blocks() {
    std::vector<std::tuple<Bytes, Bytes, std::uint64_t>> result;
    auto* arena = dynamic_cast<Arena*>(&simulation_.engine().memory());
    if (arena == nullptr) return result;
    const Records& records = simulation_.engine().records();
    for (BlockId id = arena->first(); id != kNone; id = arena->block(id).next) {
      const Arena::Block& block = arena->block(id);
      if (block.free()) continue;
      result.emplace_back(block.address, block.nbytes,
                          records.value(records.storage(block.owner).values[0]).tag);
    }
    return result;
  }

 private:
  static void check_signals() {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

  Simulation simulation_;
  std::size_t next_ = 0;
  Bytes oom_bytes_ = 0;
  std::vector<Event> events_;
  std::vector<Sample> timeline_;
  std::vector<BlockEvent> block_log_;
};

py::object find_window(const std::vector<std::tuple<Bytes, py::object, bool>>& blocks, Bytes nbytes) {
  std::vector<Cell> cells;
  for (const auto& [size, cost, free] : blocks) {
    Cell cell;
    cell.nbytes = size;
    cell.free = free;
    cell.barrier = cost.is_none();
    cell.cost = cell.barrier ? 0.0 : cost.cast<double>();
    cells.push_back(cell);
  }
  const std::optional<Window> window = cheapest_window(cells, nbytes);
  if (!window) return py::none();
  return py::make_tuple(window->first, window->last, window->num_infinite, window->cost);
}

py::object find_clearing(
    const std::vector<std::tuple<Bytes, std::optional<double>, std::optional<double>, bool>>& blocks,
    Bytes nbytes) {
  std::vector<ClearingCell> cells;
  for (const auto& [size, cost, move_cost, free] : blocks) {
    ClearingCell cell;
    cell.nbytes = size;
    cell.free = free;
    cell.evictable = cost.has_value();
    cell.cost = cost.value_or(0.0);
    if (move_cost) cell.move_cost = *move_cost;
    cells.push_back(cell);
  }
  const std::optional<Clearing> clearing = ClearingSearch().cheapest(cells, nbytes);
  if (!clearing) return py::none();
  std::vector<std::size_t> evicted;
  for (std::size_t i = clearing->window.first; i <= clearing->window.last; ++i) {
    if (clearing->evicts(cells[i])) evicted.push_back(i);
  }
  return py::make_tuple(clearing->window.first, clearing->window.last, clearing->window.num_infinite,
                        clearing->window.cost, evicted);
}

}  // namespace

void bind_simulation(py::module_& module) {
  module.def("policy_names", &policy_names, "Names of all policies, those that need an arena last.");
  module.def("policy_needs_arena", &policy_needs_arena, py::arg("policy"));
  module.def("cheapest_window", &find_window, py::arg("blocks"), py::arg("nbytes"),
             "The cheapest run of (nbytes, cost or None for a barrier, free) blocks with enough bytes: "
             "(first, last, infinite costs, sum of the others), or None.");
  module.def(
      "cheapest_clearing", &find_clearing, py::arg("blocks"), py::arg("nbytes"),
      "The same where (nbytes, cost or None, cost of a move or None, free) blocks may be moved: (first, "
      "last, infinite costs, sum of the others, what is evicted), or None.");

  py::class_<TraceFacts>(module, "TraceFacts")
      .def_readonly("peak_bytes", &TraceFacts::peak_bytes)
      .def_readonly("min_budget_bytes", &TraceFacts::min_budget_bytes)
      .def_readonly("constant_bytes", &TraceFacts::constant_bytes)
      .def_readonly("computed_ns", &TraceFacts::computed);
  module.def(
      "trace_facts", [](const py::object& trace) { return trace_facts(Columns(trace).view()); },
      py::arg("trace"));

  py::enum_<Deallocation>(module, "Deallocation")
      .value("ignore", Deallocation::kIgnore)
      .value("eager", Deallocation::kEager)
      .value("banish", Deallocation::kBanish);
  py::class_<SimulationOptions>(module, "SimulationOptions")
      .def(py::init<>())
      .def_readwrite("budget", &SimulationOptions::budget)
      .def_readwrite("policy", &SimulationOptions::policy)
      .def_readwrite("arena", &SimulationOptions::arena)
      .def_readwrite("ghosts", &SimulationOptions::ghosts)
      .def_readwrite("partition", &SimulationOptions::partition)
      .def_readwrite("moving", &SimulationOptions::moving)
      .def_readwrite("max_depth", &SimulationOptions::max_depth)
      .def_readwrite("deallocation", &SimulationOptions::deallocation)
      .def_readwrite("max_rematerialized_ns", &SimulationOptions::max_rematerialized)
      .def_readwrite("ignore_small", &SimulationOptions::ignore_small)
      .def_readwrite("sample", &SimulationOptions::sample)
      .def_readwrite("seed", &SimulationOptions::seed)
      .def_readwrite("check", &SimulationOptions::check);
  py::class_<PySimulation>(module, "Simulation")
      .def(py::init<const SimulationOptions&, bool, bool, bool>(), py::arg("options"), py::kw_only(),
           py::arg("events") = false, py::arg("timeline") = false, py::arg("blocks") = false)
      .def("advance", &PySimulation::advance, py::arg("trace"), py::kw_only(), py::arg("finish"))
      .def("is_resident", &PySimulation::resident, py::arg("tensor"))
      .def("check", &PySimulation::check)
      .def("statistics", &PySimulation::statistics)
      .def("decisions", &PySimulation::decisions)
      .def("timeline", &PySimulation::timeline)
      .def("block_log", &PySimulation::block_log)
      .def("blocks", &PySimulation::blocks);
}

}  // namespace remint
