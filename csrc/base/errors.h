// What the core throws. Both are results of a run, not bugs: they leave no lock behind and memory consistent.
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
};

// More time went into rematerialization than the caller allows.
class Thrash : public std::runtime_error {
 public:
  Thrash() : std::runtime_error("rematerialization takes more time than allowed") {}
};

}  // namespace remint
