// Sleep: while memory is plentiful, operator calls need not be seen.
//
//   awake    calls are seen, recipes are written, tensors can be evicted
//   asleep   the thread gives up the dispatch key, so only its requests for memory arrive here. There are no
//            recipes, and every tensor is pinned where it is.
//
// A budget falls asleep after some windows (steps, or so many ops) that needed the same memory, less than
// half of it. It wakes up when the program needs more memory than in those windows, or asks for other sizes.
// So there is room left for what is made afterwards, which can be evicted again.
//
// It wakes up between two instructions of Python, outside of backward passes: a kernel that runs now may
// hold addresses, and autograd gives its nodes the thread-local state from before the backward pass. Hence
// only the main thread sleeps, where Python has such a moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch/session/owned_storages.h"
#include "torch/session/state.h"

namespace remint {

struct SleepFigures {
  std::uint64_t num_steps = 0;  // that were slept through
  std::uint64_t num_wakes = 0;
  std::string last_wake;  // why; empty: it never woke up
};

class Sleep {
 public:
  explicit Sleep(SessionState& state)
      : state_(state), num_needed_(state.store == nullptr ? kQuietWindows : kQuietWindowsWithTier) {}

  bool asleep() const { return asleep_.load(std::memory_order_relaxed); }

  // ── Awake ──

  // An op is about to run. It may be the first one that is not seen: true.
  bool before_op() { return !has_steps_ && ++num_ops_ >= kWindowOps && end_window(); }
  // Notes a request of the program.
  void note_request(Bytes nbytes) {
    if (has_steps_) requests_.push_back(nbytes);
  }

  // ── Both ──

  // A step of the program ends. True: the budget fell asleep, or woke up.
  bool step_ended();
  // The session closes.
  void end();

  // ── Asleep ──

  // A free block of this size from an earlier request: its offset in the arena.
  std::optional<Bytes> take(Bytes nbytes);
  // The arena gave a new block.
  void took();
  // Keeps a block for the next request of its size. False: it has to be freed.
  bool keep(Bytes offset, const RawBlock& raw);
  // Frees the blocks that are kept. False: there were none.
  bool free_kept();
  // The main thread is between two instructions of Python. Wakes up, if that is wanted.
  void wake_if_possible();

  SleepFigures figures() const { return figures_; }

 private:
  bool end_window();
  bool can_sleep() const;
  bool fall_asleep();
  void want_to_wake(const char* why);
  void wake();
  void check_request(Bytes nbytes);
  void expect_next_step();
  std::size_t size_class(Bytes nbytes) const;

  // Quiet windows before it sleeps. What was there while it slept can never be offloaded again: with a tier
  // it takes longer to believe that none is needed.
  static constexpr std::uint32_t kQuietWindows = 2;
  static constexpr std::uint32_t kQuietWindowsWithTier = 8;
  // Ops of a window where nothing says where steps end.
  static constexpr std::uint32_t kWindowOps = 512;
  // Blocks up to this size are kept: allocating those is most of what a small op costs.
  static constexpr Bytes kLargestKept = 64 << 10;
  static constexpr std::size_t kMostKnown = 8;

  SessionState& state_;
  std::atomic<bool> asleep_{false};

  // The window at hand.
  bool has_steps_ = false;
  std::uint32_t num_ops_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t rematerializations_ = 0;
  // Windows in a row that needed little, how many it takes, and the most that they needed.
  std::uint32_t num_quiet_ = 0;
  std::uint32_t num_needed_;
  Bytes quiet_peak_ = 0;

  // The sizes that steps asked for, and those of the step at hand.
  std::vector<std::vector<Bytes>> known_;
  std::vector<Bytes> requests_;
  std::vector<std::size_t> possible_;  // known steps that the one at hand can be

  Bytes limit_ = 0;       // more than this wakes it up
  bool guarded_ = false;  // other requests wake it up, too
  bool wanted_ = false;
  bool queued_ = false;                   // Python was asked to call
  std::vector<std::vector<Bytes>> kept_;  // offsets, by size
  Bytes kept_bytes_ = 0;
  SleepFigures figures_;
};

}  // namespace remint
