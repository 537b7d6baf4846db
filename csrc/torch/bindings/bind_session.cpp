// A budget as Python opens it, and what it tells about itself.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/block_columns.h"
#include "bindings/options.h"
#include "bindings/tier_figures.h"
#include "torch/bindings/bindings.h"
#include "torch/dispatch/legacy_types.h"
#include "torch/dispatch/threads.h"
#include "torch/observe/budget_error.h"
#include "torch/session/session.h"

namespace py = pybind11;

namespace remint {
namespace {

// Whoever has the session's lock may wait for the GIL.
template <typename Get>
auto without_gil(Get&& get) {
  py::gil_scoped_release nogil;
  return get();
}

template <typename T>
py::array_t<T> array_of(const std::vector<T>& column) {
  return py::array_t<T>(static_cast<py::ssize_t>(column.size()), column.data());
}

class PySession {
 public:
  PySession(Bytes budget, const std::string& device, bool chaos, bool spill, bool soft, bool timeline,
            bool events, bool blocks, bool record, bool source_lines, bool learn, bool several, bool sleep,
            double max_slowdown, std::vector<std::string> planner, const std::string& offload_folder,
            bool measure_bandwidth, const PySession* partner, const py::kwargs& engine) {
    SessionOptions options;
    options.budget = budget;
    options.engine = engine_options(engine);
    options.chaos = chaos;
    options.spill = spill;
    options.soft = soft;
    options.timeline = timeline;
    options.events = events;
    options.blocks = blocks;
    options.record = record;
    options.source_lines = source_lines;
    options.learn = learn;
    options.several = several;
    options.sleep = sleep;
    options.max_slowdown = max_slowdown;
    options.planner = std::move(planner);
    options.offload_folder = offload_folder;
    options.measure_bandwidth = measure_bandwidth;
    patch_legacy_types();
    session_ = Session::open(options, backend_for(c10::Device(device)),
                             partner == nullptr ? nullptr : partner->session_.get());
  }

  void enter(const std::vector<const PySession*>& partners) {
    if (session_->closed()) throw py::value_error("this budget has ended: open a new one");
    Sessions sessions{session_};
    for (const PySession* partner : partners) {
      TORCH_CHECK_VALUE(partner->session_->is_partner(*session_), "sessions of one budget share a lock");
      sessions.push_back(partner->session_);
    }
    enter_sessions(std::move(sessions));
  }
  void leave() { leave_sessions(session_.get()); }
  void close() {
    py::gil_scoped_release nogil;
    try {
      session_->close();
    } catch (const OutOfMemory&) {
      raise_budget_error(
          "the budget ended, and some tensors that were evicted in it could not be recomputed in its memory: "
          "they raise "
          "when they are read. Use a larger budget, or drop them before it ends.",
          0);
    }
  }
  bool closed() const { return session_->closed(); }
  std::string device() const { return session_->device().str(); }
  void step() {
    py::gil_scoped_release nogil;
    session_->step();
  }

  Bytes budget_for(double max_slowdown) {
    return without_gil([&] { return session_->budget_for(max_slowdown); });
  }

  py::dict figures() {
    const Figures f = without_gil([&] { return session_->figures(); });
    const Statistics& s = f.statistics;
    py::dict d;
    d["budget_bytes"] = f.budget;
    d["peak_bytes"] = f.peak;
    d["used_bytes"] = f.used;
    d["pinned_bytes"] = f.pinned;
    d["min_budget_bytes"] = f.needed;
    d["spilled_bytes"] = f.spilled;
    d["outside_bytes"] = f.outside;
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
    d["collective_ns"] = f.collectives;
    d["moved_bytes"] = s.moved_bytes;
    add_tier_figures(d, s, f.tier_peak);
    d["tier_used_bytes"] = f.tier_used;
    d["tier_bandwidth"] = f.tier_bandwidth;
    d["transfer_wall_ns"] = f.transferred;
    d["unusable_bytes"] = s.num_searches == 0 ? 0.0 : s.unusable_bytes / static_cast<double>(s.num_searches);
    return d;
  }

  // What came of the steps.
  py::dict learning() {
    const LearningFigures f = without_gil([&] { return session_->learning(); });
    py::dict d;
    for (const auto& [name, steps] : {std::pair("greedy", &f.greedy), std::pair("learned", &f.learned),
                                      std::pair("planned", &f.planned)}) {
      d[name] = py::make_tuple(steps->num_steps, steps->computed, steps->rematerialized, steps->searching);
    }
    for (const auto& [name, outcome] :
         {std::pair("predicted", &f.predicted), std::pair("measured", &f.measured)}) {
      d[name] = py::make_tuple(outcome->peak, outcome->num_rematerializations, outcome->computed,
                               outcome->rematerialized, outcome->cpu);
    }
    d["num_plans"] = f.num_plans;
    d["planning"] = f.planning;
    d["num_departures"] = f.num_departures;
    d["last_departure"] = f.last_departure;
    d["num_known_steps"] = f.num_known;
    d["known_bytes"] = f.known_bytes;
    d["tier_use"] = f.tier_use;
    const SleepFigures sleep = without_gil([&] { return session_->sleep(); });
    d["num_asleep_steps"] = sleep.num_steps;
    d["num_wakes"] = sleep.num_wakes;
    d["last_wake"] = sleep.last_wake;
    return d;
  }

  // (operator, line, module, times, nanoseconds, who needed it) of what was rematerialized.
  py::list by_operator() {
    py::list rows;
    for (const Rematerializations::Row& row : without_gil([&] { return session_->rematerializations(); })) {
      const SourceLines::Place place =
          row.source == kNone ? SourceLines::Place() : session_->source_lines()->place(row.source);
      std::vector<std::pair<std::string, std::uint64_t>> needed_by;
      for (const auto& [op, times] : row.needed_by)
        needed_by.emplace_back(op == nullptr ? "" : op->name, times);
      rows.append(py::make_tuple(row.op->name, place.line, place.module, row.times, row.cost, needed_by));
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
    const Logs::Blocks log = without_gil([&] { return session_->blocks(); });
    std::vector<std::uint64_t> firsts;
    std::vector<std::pair<std::string, std::string>> makers;
    for (const BlockMakers::Maker& maker : log.makers) {
      firsts.push_back(maker.first_number);
      makers.emplace_back(maker.op == nullptr ? "memory" : maker.op->name,
                          maker.source == kNone ? "" : session_->source_lines()->place(maker.source).text());
    }
    return py::make_tuple(block_columns(log.events), array_of(firsts), makers,
                          std::vector<std::string>(std::begin(Logs::kMarks), std::end(Logs::kMarks)));
  }

  // The columns of what was recorded, by the names of those of a trace.
  py::object recorded() {
    const Recorder* recorder = session_->recorder();
    if (recorder == nullptr) return py::none();
    const RecordedColumns& c = recorder->columns();
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
    return without_gil([&] { return session_->pinned_by(); });
  }
  void check() {
    py::gil_scoped_release nogil;
    session_->check();
  }
  void set_costs(const std::vector<Nanoseconds>& nanoseconds, const std::vector<Bytes>& nbytes) {
    std::vector<GivenCosts::Given> costs;
    for (std::size_t i = 0; i < nanoseconds.size(); ++i) costs.push_back({nanoseconds[i], nbytes.at(i)});
    session_->set_costs(std::move(costs));
  }

 private:
  std::shared_ptr<Session> session_;
};

}  // namespace

void bind_session(py::module_& module) {
  py::class_<PySession>(module, "Session")
      .def(py::init<Bytes, const std::string&, bool, bool, bool, bool, bool, bool, bool, bool, bool, bool,
                    bool, double, std::vector<std::string>, const std::string&, bool, const PySession*,
                    const py::kwargs&>(),
           py::kw_only(), py::arg("budget"), py::arg("device"), py::arg("chaos"), py::arg("spill"),
           py::arg("soft"), py::arg("timeline"), py::arg("events"), py::arg("blocks"), py::arg("record"),
           py::arg("source_lines"), py::arg("learn"), py::arg("several"), py::arg("sleep"),
           py::arg("max_slowdown"), py::arg("planner"), py::arg("offload_folder"),
           py::arg("measure_bandwidth"), py::arg("partner"))
      .def("enter", &PySession::enter, py::arg("partners") = std::vector<const PySession*>())
      .def("leave", &PySession::leave)
      .def("close", &PySession::close)
      .def_property_readonly("closed", &PySession::closed)
      .def_property_readonly("device", &PySession::device)
      .def("step", &PySession::step)
      .def("figures", &PySession::figures)
      .def("budget_for", &PySession::budget_for, py::arg("max_slowdown"))
      .def("learning", &PySession::learning)
      .def("by_operator", &PySession::by_operator)
      .def("timeline", &PySession::timeline)
      .def("events", &PySession::events)
      .def("block_log", &PySession::block_log)
      .def("recorded", &PySession::recorded)
      .def("pinned_by", &PySession::pinned_by)
      .def("check", &PySession::check)
      .def("set_costs", &PySession::set_costs, py::arg("nanoseconds"), py::arg("nbytes"));
  // A step of the program ends, in the budget that the thread is in.
  module.def("waited_for_ranks", [](Nanoseconds took) {
    py::gil_scoped_release nogil;
    const c10::ArrayRef<std::shared_ptr<Session>> sessions = current_sessions();
    if (!sessions.empty()) sessions[0]->note_wait(took);
  });
  module.def("step_ends", [] {
    py::gil_scoped_release nogil;
    for (const std::shared_ptr<Session>& session : current_sessions()) session->step();
  });
  module.def("enter_module", &SourceLines::enter_module, py::arg("path"));
}

}  // namespace remint
