// What the core throws. All are results of a run, not bugs: they leave no lock behind and memory consistent.
#pragma once

#include <stdexcept>
#include <string>

#include "base/types.h"

namespace remint {

// Nothing evictable is left, and the request still does not fit.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(Bytes requested, Bytes running, Bytes used, Bytes budget)
      : std::runtime_error("a request of " + std::to_string(requested) +
                           " bytes does not fit: " + std::to_string(used) + " of " + std::to_string(budget) +
                           " bytes are in use and nothing more can be evicted"),
        requested(requested),
        at_once(requested + running) {}
  Bytes requested;
  Bytes at_once;  // with what the same op had been given before

 protected:
  OutOfMemory(const char* what, Bytes requested, Bytes at_once)
      : std::runtime_error(what), requested(requested), at_once(at_once) {}
};

// A replay would go on for ever: each value that it makes resident evicts another one that it needs.
// `requested` is the last request that did not fit. `at_once` is what the op that waits for the replay needs
// of inputs that are not pinned.
class ReplayInCircles : public OutOfMemory {
 public:
  ReplayInCircles(Bytes requested, Bytes inputs)
      : OutOfMemory("the values that a rematerialization needs evict each other", requested, inputs) {}
};

// A recipe reads bytes that the program has freed and will write again, and that are not back yet.
class SourceAway : public OutOfMemory {
 public:
  explicit SourceAway(Bytes nbytes)
      : OutOfMemory("the bytes that a rematerialization reads were freed by the program", nbytes, nbytes) {}
};

// More time went into rematerialization than the caller allows.
class Thrash : public std::runtime_error {
 public:
  Thrash() : std::runtime_error("rematerialization takes more time than allowed") {}
};

}  // namespace remint
