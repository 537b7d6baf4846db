// Python: a step that is known to its end, simulated and followed. For the process that plans, and for tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/bindings.h"
#include "bindings/trace_view.h"
#include "learning/step_plan.h"
#include "simulator/simulation.h"

namespace remint {
namespace {

using Actions = std::pair<std::vector<std::pair<bool, std::uint32_t>>, std::vector<std::uint32_t>>;

template <typename T>
std::vector<T> copy(const T* data, std::int64_t count) {
  return std::vector<T>(data, data + count);
}

// The constants that come first are what there was before the step.
StepTrace step_of(const TraceColumns& trace) {
  StepTrace step;
  const std::size_t events = trace.num_events;
  step.columns.kinds = copy(trace.kinds, static_cast<std::int64_t>(events));
  step.columns.nanoseconds = copy(trace.nanoseconds, static_cast<std::int64_t>(events));
  step.columns.arg_offsets = copy(trace.arg_offsets, static_cast<std::int64_t>(events) + 1);
  step.columns.args = copy(trace.args, trace.arg_offsets[events]);
  step.columns.effects = copy(trace.effects, trace.arg_offsets[events]);
  step.columns.out_offsets = copy(trace.out_offsets, static_cast<std::int64_t>(events) + 1);
  step.columns.nbytes = copy(trace.nbytes, static_cast<std::int64_t>(trace.num_tensors));
  step.columns.aliases = copy(trace.aliases, static_cast<std::int64_t>(trace.num_tensors));
  step.columns.request_offsets = copy(trace.request_offsets, static_cast<std::int64_t>(events) + 1);
  step.columns.request_bytes = copy(trace.request_bytes, trace.request_offsets[events]);
  step.columns.request_outputs = copy(trace.request_outputs, trace.request_offsets[events]);
  step.held = copy(trace.held, static_cast<std::int64_t>(trace.num_held));
  while (step.constants.size() < events && trace.kind(step.constants.size()) == EventKind::kConstant)
    step.constants.push_back(step.constants.size());
  step.read.assign(step.constants.size(), 1);
  return step;
}

std::string text_of(const DecisionLog& log) {
  std::string text;
  for (const DecisionLog::Event& event : log.events()) {
    text += event.kind;
    text += std::to_string(event.tag);
    text += ';';
  }
  return text;
}

// Runs the step on an arena, by the guide that follows from the simulation.
py::object follow(const StepTrace& step, const SimulatedStep& simulated, Bytes arena_bytes, Bytes alignment) {
  SimulationOptions options;
  options.budget = arena_bytes;
  options.arena = true;
  options.alignment = alignment;
  options.ghosts = true;
  options.engine.policy = "coop";
  options.engine.check = true;
  Simulation simulation(options);
  Engine& engine = simulation.engine();
  const TraceColumns trace = step.view();
  Surroundings surroundings;
  for (std::size_t constant = 0; constant < step.num_constants(); ++constant) {
    simulation.step(trace, constant);
    const BlockId block = simulation.block_of(static_cast<std::int32_t>(constant));
    const auto& arena = static_cast<const Arena&>(engine.memory());
    surroundings.constants.push_back(
        block == kNone ? Occupied{-1, 0} : Occupied{arena.block(block).address, arena.block(block).nbytes});
  }
  const std::optional<GuidedStep> guide = place_step(simulated, surroundings, arena_bytes, alignment);
  if (!guide) return py::none();
  DecisionLog decisions;
  engine.add_observer(&decisions);
  StepNumbers numbers;
  numbers.begin(step.num_constants());
  engine.follow(*guide, numbers);
  for (std::size_t event = step.num_constants(); event < trace.num_events; ++event)
    simulation.step(trace, event);
  py::dict d;
  d["departed"] = !engine.guide().active() || engine.guide().num_served() != guide->requests.size();
  d["peak_bytes"] = engine.memory().peak();
  d["rematerialized_ns"] = engine.statistics().rematerialized;
  d["num_rematerializations"] = engine.statistics().num_rematerializations;
  d["decisions"] = text_of(decisions);
  return d;
}

py::object simulate(const py::object& trace, Bytes budget, Bytes alignment,
                    const std::optional<Actions>& actions, Bytes arena_bytes,
                    std::optional<std::size_t> search_events) {
  const Columns columns(trace);
  const StepTrace step = step_of(columns.view());
  const std::vector<Bytes> sizes(
      step.columns.nbytes.begin(),
      step.columns.nbytes.begin() + static_cast<std::ptrdiff_t>(step.num_constants()));
  DecisionLog decisions;
  StepLimits limits;
  limits.budget = budget;
  limits.alignment = alignment;
  limits.max_slowdown = 100.0;
  limits.observer = &decisions;
  limits.search_events = search_events.value_or(limits.search_events);
  std::optional<SimulatedStep> found;
  if (actions) {
    PlannedActions plan;
    for (const auto& [makes, number] : actions->first) plan.actions.push_back({makes, number});
    plan.first = actions->second;
    found = simulate_planned(step, sizes, step.held, limits, plan);
  } else {
    found = simulate_step(step, sizes, step.held, limits);
  }
  if (!found) return py::none();
  py::dict d;
  d["peak_bytes"] = found->peak;
  d["rematerialized_ns"] = found->rematerialized;
  d["num_rematerializations"] = found->num_rematerializations;
  d["decisions"] = text_of(decisions);
  d["followed"] = arena_bytes > 0 ? follow(step, *found, arena_bytes, alignment) : py::none();
  return d;
}

std::vector<Bytes> shrunk_budgets(Bytes budget) {
  std::vector<Bytes> budgets;
  for (Bytes shrink : kShrinks) budgets.push_back(shrunk(budget, shrink));
  return budgets;
}

}  // namespace

void bind_learning(py::module_& module) {
  module.def(
      "simulate_step", &simulate, py::arg("trace"), py::kw_only(), py::arg("budget"),
      py::arg("alignment") = kCpuAlignment, py::arg("actions") = py::none(), py::arg("arena_bytes") = 0,
      py::arg("search_events") = py::none(),
      "Simulate a step that is known to its end: with the policy that knows the future, or as a plan's "
      "actions say. With `arena_bytes`, also follow the guide that comes of it on such an arena. None if "
      "the step does not fit. `search_events`: how many events are simulated to find something better.");
  // Blocks of the CPU's arena begin at multiples of this.
  module.attr("CPU_ALIGNMENT") = kCpuAlignment;
  module.def("shrunk_budgets", &shrunk_budgets, py::arg("budget"),
             "The limits that the runtime tries in turn to learn a step in a budget: smaller ones leave room "
             "where blocks do not find places.");
}

}  // namespace remint
