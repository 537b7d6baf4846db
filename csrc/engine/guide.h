// A guide through a step that was seen before: for each request for memory, in order, what is evicted for it
// and where it is placed; for each op, what is made resident ahead of it.
//
// A guide decides nothing that could be wrong: any candidate may be evicted, and any free bytes may be given
// out. If the program departs from the step, the guide ends, and the policy goes on from what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "engine/step_numbers.h"

namespace remint {

struct GuidedRequest {
  Bytes nbytes;
  Bytes address;               // kNoAddress: it is refused, as it was in the simulation
  std::uint32_t first_victim;  // those up to the first one of the next request
};

struct GuidedStep {
  std::vector<GuidedRequest> requests;
  std::vector<std::uint32_t> victims;  // the number of a value among those that the step makes
  // Of a planned step: what is made resident before each op, in this order, by running ops again. Each op
  // has those up to the first one of the next; no entries: nothing is made ahead.
  std::vector<std::uint32_t> makes;
  std::vector<std::uint32_t> first_makes;
};

// Why a guide ended before its step.
enum class Departure : std::uint8_t {
  kNot,
  kSize,     // a request of another size, or one more
  kVictim,   // what was to be evicted is not there
  kAddress,  // where it was to be placed is something else
  kCaller,   // the caller saw another op
};

class Guide {
 public:
  // A value that the step made, and where it was then. Its record may be gone, and another one in its place.
  struct Made {
    std::uint64_t tag = 0;
    StorageId storage = kNone;
  };

  bool active() const { return step_ != nullptr; }
  Departure departure() const { return departure_; }
  // Requests that were served.
  std::size_t num_served() const { return next_; }

  // `numbers` are those of the step at hand, and go on as it does.
  void begin(const GuidedStep& step, const StepNumbers& numbers) {
    step_ = &step;
    numbers_ = &numbers;
    next_ = 0;
    departure_ = Departure::kNot;
    made_.clear();
  }
  void end() { step_ = nullptr; }
  void departs(Departure why) {
    departure_ = why;
    step_ = nullptr;
  }

  // Goes on to the next request; false, and the guide has ended, if it is of another size.
  bool next(Bytes nbytes) {
    if (next_ >= step_->requests.size() || step_->requests[next_].nbytes != nbytes) {
      departs(Departure::kSize);
      return false;
    }
    const GuidedRequest& request = step_->requests[next_++];
    const std::size_t end =
        next_ < step_->requests.size() ? step_->requests[next_].first_victim : step_->victims.size();
    address_ = request.address;
    victims_.clear();
    for (std::size_t i = request.first_victim; i < end; ++i) add_made(step_->victims[i], victims_);
    return true;
  }
  // Of the request at hand: the values to evict, and where it is placed.
  const std::vector<Made>& victims() const { return victims_; }
  Bytes address() const { return address_; }
  bool refuses() const { return address_ == kNoAddress; }

  // The values to make resident before the op of that number. The next call overwrites it.
  const std::vector<Made>& makes(std::size_t op) {
    makes_.clear();
    if (op + 1 < step_->first_makes.size()) {
      for (std::size_t i = step_->first_makes[op]; i < step_->first_makes[op + 1]; ++i)
        add_made(step_->makes[i], makes_);
    }
    return makes_;
  }

  // A value was made.
  void note_made(std::uint64_t tag, StorageId storage) {
    if (step_ == nullptr || tag < numbers_->first()) return;
    const std::size_t index = numbers_->index_of(tag);
    if (index >= made_.size()) made_.resize(index + 1);
    made_[index] = {tag, storage};
  }

 private:
  void add_made(std::uint32_t index, std::vector<Made>& to) const {
    if (index < made_.size() && made_[index].storage != kNone) to.push_back(made_[index]);
  }

  const GuidedStep* step_ = nullptr;
  const StepNumbers* numbers_ = nullptr;
  std::size_t next_ = 0;
  Departure departure_ = Departure::kNot;
  Bytes address_ = 0;
  std::vector<Made> victims_;
  std::vector<Made> makes_;
  std::vector<Made> made_;  // by number
};

}  // namespace remint
