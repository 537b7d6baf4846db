// Observers: who wants to know what the engine does. The logs that reports are made from are observers, and
// so is the torch runtime's recorder.
//
// An observer says what it is interested in. Nothing is computed for what nobody is interested in.
#pragma once

#include <algorithm>
#include <vector>

#include "base/types.h"

namespace remint {

// What became of a block, for a picture of the arena.
enum class BlockChange : char {
  kTaken = 'A',      // by the op that is running: scratch, or an output to be
  kGiven = 'F',      // back by the op that took it
  kMade = 'C',       // it holds a storage from now on
  kPinned = 'P',     // its storage is never evicted from now on
  kEvicted = 'E',    // its storage was evicted; without a block, its copy in the tier was dropped
  kOffloaded = 'O',  // its storage left for the tier
  kFetched = 'B',    // its storage is back from the tier
  kReleased = 'L',   // the program released its storage, resident or not, which recipes still need
  kDropped = 'D',    // its storage is gone for good; also one that has no block any more (0 bytes)
  kGhost = 'G',      // an in-place op took the bytes over
  kMoved = 'M',      // to this address
  kMark = 'K',       // none: the program passed a point with a name
};

// `tag` is that of the storage's root value; slots of dropped storages are used again.
struct BlockEvent {
  Nanoseconds time;
  BlockChange change;
  StorageId storage;  // kNone where an op took or gave back bytes
  std::uint64_t tag;
  Bytes address;
  Bytes nbytes;
};

class Observer {
 public:
  enum Interest : unsigned {
    kDecisions = 1,
    kMemoryUse = 2,
    kBlocks = 4,
    kRequests = 8,
    kCandidates = 16,
  };
  virtual ~Observer() = default;
  // A sum of interests; it never changes.
  virtual unsigned interests() const = 0;

  // kDecisions: an op of the program ran (the tag of its first output; also for constants), a value was
  // rematerialized, the bytes of a storage (the tag of its root value) were evicted, or freed after a
  // release.
  virtual void computed(std::uint64_t /*tag*/) {}
  virtual void rematerialized(std::uint64_t /*tag*/) {}
  virtual void evicted(std::uint64_t /*tag*/) {}
  virtual void freed(std::uint64_t /*tag*/) {}
  // Instead of being evicted they left for the tier; they came back from there.
  virtual void offloaded(std::uint64_t /*tag*/) {}
  virtual void fetched(std::uint64_t /*tag*/) {}

  // kCandidates: from now on, until it is used again, the storage can be evicted (the tag of its root value,
  // and its block).
  virtual void became_candidate(std::uint64_t /*tag*/, BlockId) {}

  // kMemoryUse: after every op.
  virtual void used(Nanoseconds /*now*/, Bytes /*used*/) {}

  // kBlocks, on the arena.
  virtual void block(const BlockEvent&) {}

  // kRequests: the caller of the engine asked for this; what the engine decides by itself is not told. It is
  // told before it takes effect. A pin that was asked for while an op runs is told when it takes effect, at
  // the end of the op, about the value that the op wrote. `tag` is that of the value.
  virtual void pinned(ValueId, std::uint64_t /*tag*/) {}  // it was not pinned before
  virtual void fixed(ValueId, std::uint64_t /*tag*/) {}   // it was not fixed before
  virtual void released(ValueId, std::uint64_t /*tag*/) {}
  virtual void materialized(ValueId, std::uint64_t /*tag*/) {}
};

// All observers of one engine. They are not owned.
class Observers {
 public:
  void add(Observer* observer) {
    observers_.push_back(observer);
    interests_ |= observer->interests();
  }
  void remove(Observer* observer) {
    observers_.erase(std::remove(observers_.begin(), observers_.end(), observer), observers_.end());
    interests_ = 0;
    for (const Observer* other : observers_) interests_ |= other->interests();
  }
  bool interested(Observer::Interest interest) const { return (interests_ & interest) != 0; }

  // Calls tell(observer) for all that are interested.
  template <typename Tell>
  void tell(Observer::Interest interest, Tell&& tell) const {
    if (!interested(interest)) return;
    for (Observer* observer : observers_) {
      if ((observer->interests() & interest) != 0) tell(*observer);
    }
  }

 private:
  std::vector<Observer*> observers_;
  unsigned interests_ = 0;
};

// The decisions of a run in order. C: an op of the program ran, R: a rematerialization, E: bytes were
// dropped, O: they were offloaded, F: they were fetched.
class DecisionLog final : public Observer {
 public:
  struct Event {
    char kind;
    std::uint64_t tag;
  };
  unsigned interests() const override { return kDecisions; }
  void computed(std::uint64_t tag) override { events_.push_back({'C', tag}); }
  void rematerialized(std::uint64_t tag) override { events_.push_back({'R', tag}); }
  void evicted(std::uint64_t tag) override { events_.push_back({'E', tag}); }
  void freed(std::uint64_t tag) override { events_.push_back({'E', tag}); }
  void offloaded(std::uint64_t tag) override { events_.push_back({'O', tag}); }
  void fetched(std::uint64_t tag) override { events_.push_back({'F', tag}); }
  const std::vector<Event>& events() const { return events_; }

 private:
  std::vector<Event> events_;
};

// The bytes in use after each op.
class Timeline final : public Observer {
 public:
  struct Sample {
    Nanoseconds time;
    Bytes used;
  };
  unsigned interests() const override { return kMemoryUse; }
  void used(Nanoseconds now, Bytes used) override { samples_.push_back({now, used}); }
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  std::vector<Sample> samples_;
};

// What became of every block.
class BlockLog final : public Observer {
 public:
  unsigned interests() const override { return kBlocks; }
  void block(const BlockEvent& event) override { events_.push_back(event); }
  const std::vector<BlockEvent>& events() const { return events_; }

 private:
  std::vector<BlockEvent> events_;
};

}  // namespace remint
