// Python's view of the local search.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"
#include "planner/annealing.h"
#include "planner/backward_search.h"
#include "planner/least_memory.h"
#include "planner/minimum_cut.h"
#include "planner/segment_search.h"

namespace py = pybind11;

namespace {

using Item = std::tuple<bool, int, int>;  // (is a drop, value or op, stage)

std::vector<remint::Decision> from_items(const std::vector<Item>& items, const remint::SearchState& state) {
  std::vector<remint::Decision> all;
  for (auto [drop, id, stage] : items) {
    int limit = drop ? state.problem().values() : state.problem().ops();
    if (id < 0 || id >= limit || stage < 0 || stage > state.stages())
      throw std::invalid_argument("a decision names no value, op or stage of this graph");
    if (drop ? !state.droppable(id) : !state.problem().again[id]) continue;
    all.push_back({drop ? remint::Decision::kDrop : remint::Decision::kForce, id, stage});
  }
  return all;
}

std::vector<Item> to_items(const std::vector<remint::Decision>& decisions) {
  std::vector<Item> items;
  for (const remint::Decision& d : decisions)
    items.emplace_back(d.kind == remint::Decision::kDrop, d.id, d.stage);
  return items;
}

// CPU time of this thread: a busy machine changes no plan.
double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Says whether there is time left, and lets Ctrl-C through.
std::function<bool()> until(double seconds) {
  const double end = cpu_seconds() + seconds;
  return [=] {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return cpu_seconds() < end;
  };
}

}  // namespace

void remint::bind_search(py::module_& module) {
  py::class_<remint::SearchProblem>(module, "SearchProblem")
      .def(py::init([](std::vector<double> cost, std::vector<bool> again,
                       std::vector<std::vector<int>> inputs, std::vector<std::vector<int>> outputs,
                       std::vector<double> bytes, std::vector<int> results, double constant_bytes,
                       std::vector<std::vector<std::pair<int, int>>> consumes, std::vector<int> until) {
             remint::SearchProblem p;
             p.cost = std::move(cost);
             p.again.assign(again.begin(), again.end());
             p.inputs = std::move(inputs);
             p.outputs = std::move(outputs);
             p.bytes = std::move(bytes);
             p.results = std::move(results);
             p.constant_bytes = constant_bytes;
             p.consumes = std::move(consumes);
             p.until = std::move(until);
             return p;
           }),
           py::kw_only(), py::arg("cost"), py::arg("again"), py::arg("inputs"), py::arg("outputs"),
           py::arg("bytes"), py::arg("results"), py::arg("constant_bytes"),
           py::arg("consumes") = std::vector<std::vector<std::pair<int, int>>>(),
           py::arg("until") = std::vector<int>());

  py::class_<remint::Search>(module, "Search")
      .def(py::init<remint::SearchProblem, double, uint64_t, std::vector<int>>(), py::arg("problem"),
           py::arg("budget"), py::arg("seed"), py::arg("twins"))
      .def("start",
           [](remint::Search& s, const std::vector<Item>& items) { s.start(from_items(items, s.state())); })
      .def("set_budget", &remint::Search::set_budget)
      .def("run", &remint::Search::run, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("feasible", &remint::Search::feasible)
      .def_property_readonly("best_cost", &remint::Search::best_cost)
      .def_property_readonly("least_peak", &remint::Search::least_peak)
      .def_property_readonly("best", [](const remint::Search& s) { return to_items(s.best()); })
      .def_property_readonly("least", [](const remint::Search& s) { return to_items(s.least()); })
      .def_property_readonly("moves", &remint::Search::moves)
      .def_property_readonly("cycles", &remint::Search::cycles)
      .def_property_readonly("cost", [](remint::Search& s) { return s.state().cost(); })
      .def_property_readonly("peak", [](remint::Search& s) { return s.state().peak(); })
      .def_property_readonly("excess", [](remint::Search& s) { return s.state().excess(); })
      .def_property_readonly("sequence", [](remint::Search& s) { return s.state().sequence(); })
      .def_property_readonly("memory", [](remint::Search& s) {
        std::vector<double> all;
        for (int t = 0; t <= s.state().stages(); ++t) all.push_back(s.state().memory(t));
        return all;
      });

  module.def(
      "cut_bound",
      [](const remint::SearchProblem& problem, double budget, int stage, double seconds) {
        if (stage < 0 || stage >= problem.ops()) throw std::invalid_argument("there is no such op");
        remint::Cut cut = remint::cut_bound(problem, budget, stage, until(seconds));
        return py::make_tuple(cut.bound, cut.let_go);
      },
      py::arg("problem"), py::arg("budget"), py::arg("stage"), py::arg("seconds"));

  module.def(
      "cuts_at_prices",
      [](const remint::SearchProblem& problem, double budget, int stage, const std::vector<double>& prices,
         double seconds) {
        if (stage < 0 || stage >= problem.ops()) throw std::invalid_argument("there is no such op");
        return remint::cuts_at_prices(problem, budget, stage, prices, until(seconds));
      },
      py::arg("problem"), py::arg("budget"), py::arg("stage"), py::arg("prices"), py::arg("seconds"));

  py::class_<remint::LeastMemory>(module, "LeastMemory")
      .def(py::init<remint::SearchProblem>(), py::arg("problem"))
      .def("bound", &remint::LeastMemory::bound, py::arg("effort"), py::arg("ops"))
      .def("peak", &remint::LeastMemory::peak, py::arg("sequence"))
      .def(
          "schedule",
          [](remint::LeastMemory& least, double budget, int64_t effort, int turn, double patience,
             double seconds) { return least.schedule(budget, effort, turn, patience, until(seconds)); },
          py::arg("budget"), py::arg("effort"), py::arg("turn"), py::arg("patience"), py::arg("seconds"));

  py::class_<remint::BackwardSearch, std::shared_ptr<remint::BackwardSearch>>(module, "BackwardSearch")
      .def(py::init<const remint::SearchProblem&, double, const std::vector<int>&,
                    std::shared_ptr<remint::BackwardSearch>, double>(),
           py::arg("problem"), py::arg("budget"), py::arg("watched"), py::arg("easier") = nullptr,
           py::arg("hurry") = 1.0)
      .def("learn_prefixes", &remint::BackwardSearch::learn_prefixes, py::arg("states"),
           py::call_guard<py::gil_scoped_release>())
      .def("run", &remint::BackwardSearch::run, py::arg("states"), py::arg("limit"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("ended", &remint::BackwardSearch::ended)
      .def_property_readonly("found", &remint::BackwardSearch::found)
      .def_property_readonly("full", &remint::BackwardSearch::full)
      .def_property_readonly("bound", &remint::BackwardSearch::bound)
      .def_property_readonly("looked_into", &remint::BackwardSearch::looked_into)
      .def_property_readonly("states", &remint::BackwardSearch::states)
      .def_property_readonly("sequence", &remint::BackwardSearch::sequence);

  py::class_<remint::SegmentSearch>(module, "SegmentSearch")
      .def(py::init<const remint::SearchProblem&, double>(), py::arg("problem"), py::arg("budget"))
      .def(
          "improve",
          [](remint::SegmentSearch& search, const std::vector<int>& sequence, int begin, int end,
             int64_t states,
             double seconds) { return search.improve(sequence, begin, end, states, until(seconds)); },
          py::arg("sequence"), py::arg("begin"), py::arg("end"), py::arg("states"), py::arg("seconds"))
      .def_property_readonly("looked_into", &remint::SegmentSearch::looked_into);
}
