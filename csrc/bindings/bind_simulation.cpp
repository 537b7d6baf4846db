// Python: the simulator, the names of policies, and the window searches (for tests).
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <functional>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/block_columns.h"
#include "bindings/options.h"
#include "bindings/tier_figures.h"
#include "bindings/trace_view.h"
#include "memory/compaction.h"
#include "memory/window.h"
#include "policies/policy_table.h"
#include "simulator/simulation.h"

namespace py = pybind11;

namespace remint {
namespace {

// One simulation as Python drives it: whole traces at once, or growing ones event by event.
class PySimulation {
 public:
  PySimulation(const SimulationOptions& options, bool events, bool timeline, bool blocks)
      : simulation_(options) {
    if (blocks && !options.arena) throw std::invalid_argument("blocks have addresses only in an arena");
    if (events) simulation_.engine().add_observer(&decisions_);
    if (timeline) simulation_.engine().add_observer(&timeline_);
    if (blocks) simulation_.engine().add_observer(&block_log_);
  }

  // Runs the events of `trace` that were not run before; "ok", "oom" or "thrash".
  std::string advance(const py::object& trace, bool finish) {
    // A request between two calls may run ops of it again.
    columns_ = std::make_unique<Columns>(trace);
    const TraceColumns& view = columns_->view();
    py::gil_scoped_release nogil;
    try {
      for (; next_ < view.num_events; ++next_) {
        if (next_ % 65536 == 0) check_signals();
        simulation_.step(view, next_);
      }
      if (finish) simulation_.finish(view);
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

  // Requests of the program between its ops and, from the hook, while a kernel runs.
  void pin(std::int32_t tensor) { simulation_.engine().pin(simulation_.value_of(tensor)); }
  void materialize(std::int32_t tensor) { simulation_.engine().materialize(simulation_.value_of(tensor)); }
  bool evict(std::int32_t tensor) { return simulation_.engine().evict_value(simulation_.value_of(tensor)); }
  void before_write(std::int32_t tensor) { simulation_.engine().before_write(simulation_.value_of(tensor)); }
  bool pinned(std::int32_t tensor) { return simulation_.engine().pinned(simulation_.value_of(tensor)); }
  // Locks and returns what to unlock: an in-place op gives the tensor another value.
  ValueId lock_for_read(std::int32_t tensor) {
    const ValueId value = simulation_.value_of(tensor);
    simulation_.engine().lock_for_read(value);
    return value;
  }
  void unlock_for_read(ValueId value) { simulation_.engine().unlock_for_read(value); }
  void set_kernel_hook(std::function<void(std::size_t)> hook) {
    simulation_.set_kernel_hook([hook = std::move(hook)](std::size_t event) {
      py::gil_scoped_acquire gil;
      hook(event);
    });
  }

  // Each may be None.
  void set_op_hooks(py::object ready, py::object undo, py::object failed) {
    auto hook = [](py::object function) -> std::function<py::object(std::size_t)> {
      return [function = std::move(function)](std::size_t event) { return function(event); };
    };
    Simulation::OpHooks hooks;
    if (!ready.is_none()) {
      hooks.ready = [call = hook(ready)](std::size_t event) {
        py::gil_scoped_acquire gil;
        call(event);
      };
    }
    auto says = [&](py::object function) -> std::function<bool(std::size_t)> {
      if (function.is_none()) return {};
      return [call = hook(function)](std::size_t event) {
        py::gil_scoped_acquire gil;
        return call(event).cast<bool>();
      };
    };
    hooks.undo = says(undo);
    hooks.failed = says(failed);
    simulation_.set_op_hooks(std::move(hooks));
  }

  py::dict statistics() {
    Engine& engine = simulation_.engine();
    const Statistics& s = engine.statistics();
    py::dict d;
    d["peak_bytes"] = engine.memory().peak();
    d["used_bytes"] = engine.memory().used();
    d["pinned_bytes"] = engine.pinned_bytes();
    d["num_ops"] = s.num_ops;
    d["num_evictions"] = s.num_evictions;
    d["num_frees"] = s.num_frees;
    d["num_rematerializations"] = s.num_rematerializations;
    d["num_searches"] = s.num_searches;
    d["num_scores"] = engine.num_scores();
    const WindowComparison& windows = engine.window_comparison();
    d["num_compared_windows"] = windows.num_windows;
    d["num_cheapest_windows"] = windows.num_cheapest;
    d["window_cost_ratio"] =
        windows.num_windows == 0 ? 1.0 : windows.ratios / static_cast<double>(windows.num_windows);
    d["worst_window_cost_ratio"] = windows.worst;
    d["num_storages"] = engine.records().num_storages();
    d["computed_ns"] = s.computed;
    d["rematerialized_ns"] = s.rematerialized;
    d["search_ns"] = s.searching;
    d["unusable_bytes"] = s.num_searches == 0 ? 0.0 : s.unusable_bytes / static_cast<double>(s.num_searches);
    d["moved_bytes"] = s.moved_bytes;
    d["failed_event"] = next_;
    d["oom_bytes"] = oom_bytes_;
    add_tier_figures(d, s, engine.tier() == nullptr ? 0 : engine.tier()->peak());
    return d;
  }

  py::str decisions() const {
    std::string text;
    for (const DecisionLog::Event& event : decisions_.events()) {
      text += event.kind;
      text += std::to_string(event.tag);
      text += ';';
    }
    return text;
  }

  py::tuple timeline() const {
    const std::vector<Timeline::Sample>& samples = timeline_.samples();
    py::array_t<double> seconds(static_cast<py::ssize_t>(samples.size()));
    py::array_t<std::int64_t> bytes(static_cast<py::ssize_t>(samples.size()));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      seconds.mutable_data()[i] = static_cast<double>(samples[i].time - 1) * 1e-9;
      bytes.mutable_data()[i] = samples[i].used;
    }
    return py::make_tuple(seconds, bytes);
  }

  // The columns of the block log: seconds, changes, storages (-1: none), root tensors, addresses, bytes.
  py::tuple block_log() const { return block_columns(block_log_.events()); }

  // (address, bytes, root tensor) of every storage that has an address.
  std::vector<std::tuple<Bytes, Bytes, std::uint64_t>> blocks() {
    std::vector<std::tuple<Bytes, Bytes, std::uint64_t>> result;
    auto* arena = dynamic_cast<Arena*>(&simulation_.engine().memory());
    if (arena == nullptr) return result;
    const Records& records = simulation_.engine().records();
    for (BlockId id = arena->first(); id != kNone; id = arena->block(id).next) {
      const Arena::Block& block = arena->block(id);
      if (!block.has_record()) continue;
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

  DecisionLog decisions_;
  Timeline timeline_;
  BlockLog block_log_;
  std::unique_ptr<Columns> columns_;
  Simulation simulation_;
  std::size_t next_ = 0;
  Bytes oom_bytes_ = 0;
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
  const std::optional<Window> window = WindowSearch().cheapest(cells, nbytes);
  if (!window) return py::none();
  return py::make_tuple(window->first, window->last, window->num_infinite, window->cost);
}

py::object find_compaction_window(
    const std::vector<std::tuple<Bytes, std::optional<double>, std::optional<double>, bool>>& blocks,
    Bytes nbytes) {
  std::vector<CompactionCell> cells;
  for (const auto& [size, cost, move_cost, free] : blocks) {
    CompactionCell cell;
    cell.nbytes = size;
    cell.free = free;
    cell.evictable = cost.has_value();
    cell.cost = cost.value_or(0.0);
    if (move_cost) cell.move_cost = *move_cost;
    cells.push_back(cell);
  }
  const std::optional<CompactionWindow> found = CompactionSearch().cheapest(cells, nbytes);
  if (!found) return py::none();
  std::vector<std::size_t> evicted;
  for (std::size_t i = found->window.first; i <= found->window.last; ++i) {
    if (found->evicts(cells[i])) evicted.push_back(i);
  }
  return py::make_tuple(found->window.first, found->window.last, found->window.num_infinite,
                        found->window.cost, evicted);
}

}  // namespace

void bind_simulation(py::module_& module) {
  module.def("policy_names", &policy_names, "Names of all policies, those that need an arena last.");
  module.def("policy_needs_arena", &policy_needs_arena, py::arg("policy"));
  module.def("cheapest_window", &find_window, py::arg("blocks"), py::arg("nbytes"),
             "The cheapest run of (nbytes, cost or None for a barrier, free) blocks with enough bytes: "
             "(first, last, infinite costs, sum of the others), or None.");
  module.def(
      "cheapest_compaction_window", &find_compaction_window, py::arg("blocks"), py::arg("nbytes"),
      "The same where (nbytes, cost or None, cost of a move or None, free) blocks may be moved: (first, "
      "last, infinite costs, sum of the others, what is evicted), or None.");

  py::class_<TraceFacts>(module, "TraceFacts")
      .def_readonly("peak_bytes", &TraceFacts::peak_bytes)
      .def_readonly("min_budget_bytes", &TraceFacts::min_budget_bytes)
      .def_readonly("min_budget_event", &TraceFacts::min_budget_event)
      .def_readonly("constant_bytes", &TraceFacts::constant_bytes)
      .def_readonly("computed_ns", &TraceFacts::computed);
  module.def(
      "trace_facts", [](const py::object& trace) { return trace_facts(Columns(trace).view()); },
      py::arg("trace"));

  py::class_<PySimulation>(module, "Simulation")
      .def(py::init([](Bytes budget, bool arena, bool placed, bool ghosts, bool events, bool timeline,
                       bool blocks, const py::kwargs& options) {
             SimulationOptions simulation;
             simulation.budget = budget;
             simulation.arena = arena;
             simulation.placed = placed;
             simulation.ghosts = ghosts;
             simulation.engine = engine_options(options);
             return std::make_unique<PySimulation>(simulation, events, timeline, blocks);
           }),
           py::kw_only(), py::arg("budget"), py::arg("arena") = false, py::arg("placed") = true,
           py::arg("ghosts") = false, py::arg("events") = false, py::arg("timeline") = false,
           py::arg("blocks") = false)
      .def("advance", &PySimulation::advance, py::arg("trace"), py::kw_only(), py::arg("finish"))
      .def("is_resident", &PySimulation::resident, py::arg("tensor"))
      .def("check", &PySimulation::check)
      .def("pin", &PySimulation::pin, py::arg("tensor"))
      .def("is_pinned", &PySimulation::pinned, py::arg("tensor"))
      .def("materialize", &PySimulation::materialize, py::arg("tensor"))
      .def("evict", &PySimulation::evict, py::arg("tensor"))
      .def("before_write", &PySimulation::before_write, py::arg("tensor"))
      .def("lock_for_read", &PySimulation::lock_for_read, py::arg("tensor"))
      .def("unlock_for_read", &PySimulation::unlock_for_read, py::arg("value"))
      .def("set_kernel_hook", &PySimulation::set_kernel_hook, py::arg("hook"))
      .def("set_op_hooks", &PySimulation::set_op_hooks, py::arg("ready") = py::none(),
           py::arg("undo") = py::none(), py::arg("failed") = py::none())
      .def("statistics", &PySimulation::statistics)
      .def("decisions", &PySimulation::decisions)
      .def("timeline", &PySimulation::timeline)
      .def("block_log", &PySimulation::block_log)
      .def("blocks", &PySimulation::blocks);
}

}  // namespace remint
