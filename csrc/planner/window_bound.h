// WindowBound: what holding a set of values when an op begins must have cost in rematerializations; a lower
// bound.
//
// Cut the time before op f at the first run of an op t. What is wanted between t and f (the inputs of the ops
// in between, and the set) was kept at t, where memory is short, or its maker ran again after t: a minimum
// cut at a price per byte, as in minimum_cut.h. What happened before t costs at least what the same argument
// says of the ops before t. These are different runs, so that the bounds of windows that follow each other
// add up.
//
// A price lets a part of a value be kept. Where large values decide, that says little: so a window has cases,
// with a large value kept and without it, and its bound is that of the least case. Which windows are good
// depends on the set: those that were good for the last sets of a frontier are asked, and others are tried
// now and then.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/watched_problem.h"

namespace remint {

class WindowBound {
 public:
  // `easier` is one for the same ops with no smaller budget and a beginning of the same list of values.
  WindowBound(const WatchedProblem& problem, const WindowBound* easier);

  // The least that rematerializations before op `frontier` cost if `held` is there when it begins; infinite
  // if it cannot be there.
  double operator()(const ValueSet& held, int frontier);
  // The same for nothing held, prepared ahead.
  double of_prefix(int frontier) const { return prefix_[frontier]; }
  // The same is known to be so much at least, by a search for it.
  void raise_prefix(int frontier, double bound);

 private:
  struct Stage {
    int op;
    ValueSet held;    // the inputs and outputs of the op
    ValueSet before;  // values that were made before
    double room;      // for all others
  };
  // A case of what is kept while the stage runs; the cases of a window are all there are.
  struct Case {
    ValueSet kept, gone;
    double price;
  };
  struct Window {
    int stage;  // index into stages_
    std::vector<Case> cases;
    std::int64_t wins;  // how often it gave the best bound
  };
  // What has been good for the states of a frontier.
  struct Pool {
    std::vector<Window> windows;
    std::int64_t asked = 0;
  };
  struct Edge {
    int to;
    std::int64_t room;
  };

  void choose_stages();
  Stage stage_of(int op) const;
  void build_network();
  ValueSet wanted_in(int stage, const ValueSet& held, int frontier) const;
  double cut(const ValueSet& wanted, const Stage& stage, const Case& kind);
  double best_price(const ValueSet& wanted, const Stage& stage, Case* kind);
  std::vector<int> kept_by(const ValueSet& wanted, const Stage& stage, Case kind);
  double least_case(const ValueSet& wanted, Window* window, double enough);
  double split(const ValueSet& wanted, Window* window, double bound);
  double look_for_windows(const ValueSet& held, int frontier, double best);
  void learn_from(const WindowBound& easier);
  std::int64_t push(int node, std::int64_t most);

  const WatchedProblem& problem_;
  double scale_ = 1;  // of costs to whole numbers, so that the flow ends
  std::vector<Stage> stages_;
  std::vector<double> prefix_;
  std::vector<Pool> pools_;                    // per frontier
  std::vector<std::vector<ValueSet>> wanted_;  // per stage and frontier: inputs of the ops in between
  // Nodes: ops, values, source, sink. The edges of a node are those in `edges_of_`; edge e and e ^ 1 are
  // opposite.
  std::vector<std::vector<int>> edges_of_;
  std::vector<Edge> edges_;
  std::vector<int> demand_edge_, keep_edge_, run_edge_;
  std::vector<std::int64_t> run_cost_;
  std::vector<char> seen_;
};

}  // namespace remint
