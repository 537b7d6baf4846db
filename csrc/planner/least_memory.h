// LeastMemory: how little memory a step can do with, and a schedule that does with little.
//
// Looks backwards. Values that are held together were made one after the other, and whichever was made last:
// while its maker ran, the others and the maker's inputs were there. So one set of values leads to others,
// and a best-first walk over sets finds the way that needs least, down to what is resident, or to nothing. A
// walk that is given up still proves something: every way needs at least what the best open end needs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/schedule_state.h"

namespace remint {

class LeastMemory {
 public:
  explicit LeastMemory(SearchProblem problem);

  // Bytes below which no schedule exists, whatever its order. Looks at that many sets for each of the ops
  // that hold most.
  double bound(std::int64_t effort, int ops);

  // The ops to run, in order, so that no more than `budget` is ever held: op after op, what it misses is made
  // in the cheapest way that is found to fit, and what is worth least is let go: the less, the longer it
  // waits to the power of `patience`. What ops from `turn` on made is taken to be hard to make again. Empty
  // if there is an op for which no way is found among that many sets, or when `go_on`, asked now and then,
  // says no.
  std::vector<int> schedule(double budget, std::int64_t effort, int turn, double patience,
                            const std::function<bool()>& go_on);

  // The most that is held when these ops run in order and each value is freed as early as it can be.
  double peak(const std::vector<int>& sequence) const;

 private:
  // How hard a resident value that is read again is to replace.
  enum Level : char { kEasy = 0, kResult = 1, kHard = 2, kPinned = 4 };
  enum class Order { kNeed, kCost, kNear };
  struct Node {
    std::vector<int> held;  // ascending; without what stays in any case
    std::uint64_t hash;
    double bytes;  // of `held` and what stays in any case
    double need;   // the most that is held from here to the end
    double cost;   // of the ops from here to the end
    double left;   // the least cost of making what is not resident
    int op;        // runs next
    int parent;    // what is held then
  };
  struct Entry {
    double first, second;
    int id;
    bool operator<(const Entry& o) const {
      return first != o.first ? first > o.first : second != o.second ? second > o.second : id < o.id;
    }
  };

  Node root(int op) const;
  int walk(Node start, Order order, double limit, std::int64_t effort, bool missing_only);
  std::int64_t expand(int node, Order order, double limit, bool missing_only);
  void enter(Node node, Order order);
  bool reached(const Node& node) const;
  bool stays(int value) const { return (level_[value] & staying_) != 0; }
  double bytes_made(int op) const;
  double cost_of_missing(const std::vector<int>& held);

  int find_way(int op, double budget, std::int64_t effort);
  void run(int op, const std::vector<int>& held, int stage, double budget);
  void set_resident(int value, bool on, int stage);
  void enter_by_worth(int value, int stage);
  void set_level(int value, char level);
  double worth(int value, int stage);

  SearchProblem problem_;
  std::vector<int> producer_;
  std::vector<std::vector<int>> heavy_;  // per op and the end, what it reads that has bytes; ascending
  std::vector<std::vector<int>> uses_;   // per value, the ops that read it; the number of ops is the end
  std::vector<std::uint64_t> hash_;

  std::vector<Node> nodes_;
  std::vector<Entry> heap_;
  std::function<bool()> go_on_;
  bool ended_ = false;  // by `go_on_`
  double open_ = 0;     // what the best open end needs, when a walk was given up or its limit was met

  std::vector<char> resident_, level_;
  std::array<double, 2 * kPinned> level_bytes_{};
  char staying_ = 0;  // what stays in any case: resident values of these levels
  double patience_ = 1;
  double bytes_ = 0;
  int turn_ = 0;
  std::vector<Entry> cheapest_;  // heap of resident values by what they were worth when entered
  std::vector<int> sequence_, stack_, stamp_;
  int stamp_now_ = 0;
};

}  // namespace remint
