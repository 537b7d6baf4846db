// SearchState: a schedule under local changes, with its cost and memory kept up to date.
//
// Stage t ends with the first run of op t; a last stage, the sink, reads the graph's outputs. The decisions
// are sparse: a *drop* (v, b) lets value v go before stage b; a *force* (i, t) runs op i again in stage t
// although nothing there asks for it. All else follows: a stage rematerializes, in the graph's order, the
// closure of what it needs and does not find; a value that was made stays until a drop or its last use.
// Several drops on one value rematerialize it several times. Every schedule of Checkmate's class is of this
// form.
//
// A change re-simulates only the stages whose needs it touches, in increasing order, since a stage depends on
// earlier ones alone. A journal undoes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace remint {

struct SearchProblem {
  std::vector<double> cost;               // per op
  std::vector<char> again;                // per op: may run again
  std::vector<std::vector<int>> inputs;   // per op: values, without constants, each once
  std::vector<std::vector<int>> outputs;  // per op: values
  std::vector<double> bytes;              // per value; whole numbers, exact below 2^53
  std::vector<int> results;               // values that must be resident at the end
  double constant_bytes = 0;
  // Per op: (input, output) of equal bytes. The output takes over the bytes of the input, which is not
  // resident after the op. Empty: no op does.
  std::vector<std::vector<std::pair<int, int>>> consumes;
  // Per op: the last stage that may run it. Later, something that it reads is gone for good. Empty: each.
  std::vector<int> until;

  int ops() const { return static_cast<int>(cost.size()); }
  int values() const { return static_cast<int>(bytes.size()); }
};

struct Decision {
  enum Kind : char { kDrop, kForce };
  Kind kind;
  int id;     // value of a drop, op of a force
  int stage;  // boundary before this stage, or the stage itself
  bool operator<(const Decision& o) const {
    return kind != o.kind ? kind < o.kind : id != o.id ? id < o.id : stage < o.stage;
  }
};

class SearchState {
 public:
  using Interval = std::pair<int, int>;  // made in stage first, used last in stage second

  SearchState(SearchProblem problem, double budget);

  const SearchProblem& problem() const { return problem_; }
  int stages() const { return problem_.ops(); }  // without the sink
  double cost() const { return cost_; }
  double excess() const { return excess_; }  // bytes over budget, summed over stages
  double budget() const { return budget_; }
  double peak() const;
  double memory(int stage) const { return memory_[stage]; }
  const std::vector<Interval>& intervals(int value) const { return intervals_[value]; }
  const std::vector<int>& drops(int value) const { return drops_[value]; }
  const std::vector<int>& runs(int op) const { return runs_[op]; }
  const std::vector<int>& rematerialized(int stage) const { return again_[stage]; }
  const std::vector<Interval>& uses(int value) const { return uses_[value]; }  // (stage, how many)
  int producer(int value) const { return producer_[value]; }
  bool droppable(int value) const { return problem_.again[producer_[value]] != 0; }
  bool has(const Decision& d) const;
  std::vector<Decision> decisions() const;
  std::vector<int> sequence() const;

  // Changes collect until `settle`; then `commit` or `undo` all of them.
  void set(const Decision& d, bool on);
  void settle();
  void commit();
  void undo();

  // Replaces all decisions, from scratch.
  void assign(const std::vector<Decision>& decisions);
  void set_budget(double budget);

 private:
  struct Entry {
    enum Kind : char { kDecision, kRun, kStage, kIntervals, kRange, kExtra } kind;
    int id;
    int stage;
    double amount;
    std::vector<Interval> intervals;
    std::vector<int> ops;
  };

  bool available(int value, int stage) const;
  double price(int op, int stage) const;
  int last_drop(int value, int stage) const;
  void flip(const Decision& d, bool on);
  void mark(int stage);
  void mark_forced(int op, int from);
  void touch(int value);
  void mark_extra(int stage);
  void simulate(int stage);
  void change_run(int op, int stage, bool on);
  void change_use(int value, int stage, int by);
  void mark_next_use(int value, int stage);
  void rebuild(int value);
  double extra(int stage);
  void add_range(int first, int last, double bytes);
  bool kept_after(int value, int stage) const;
  Entry& log(Entry::Kind kind, int id, int stage, double amount);
  void reset();

  SearchProblem problem_;
  double budget_;
  double cost_ = 0, excess_ = 0;
  double saved_cost_ = 0, saved_excess_ = 0;
  std::vector<int> producer_;
  std::vector<int> consumer_;                     // per value, the op that takes over its bytes, or -1
  double forbidden_ = 0;                          // the price of a run that is not allowed
  std::vector<std::vector<int>> inputs_;          // per op and the sink
  std::vector<std::vector<int>> drops_, forces_;  // per value; per stage
  std::vector<std::vector<int>> forced_in_;       // per op, the stages that force it
  std::vector<std::vector<int>> runs_;            // per op, the stages it runs in, ascending
  std::vector<std::vector<int>> again_;           // per stage, the ops rematerialized in it, ascending
  std::vector<std::vector<Interval>> uses_, intervals_;
  std::vector<double> memory_, extra_;

  std::vector<Entry> journal_;
  std::size_t journal_size_ = 0;
  std::vector<int> queue_;  // heap of stages to simulate
  std::vector<char> queued_, touched_flag_, extra_flag_;
  std::vector<int> touched_, extra_stages_;
  std::vector<int> closure_, stack_, stamp_, last_user_;
  int stamp_now_ = 0;
};

}  // namespace remint
